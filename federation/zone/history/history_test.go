package history_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/zone/history"
)

var start = time.Unix(1_800_000_000, 0)

// filled returns a log with the versions v0, v1 and so on, a second apart, under the
// serials from the first on, each with one name and so many octets.
func filled(n int, first uint32, octets int) history.Log[string] {
	var log history.Log[string]
	for i := range n {
		log = log.Add(&history.Version[string]{
			Serial: first + uint32(i), At: start.Add(time.Duration(i) * time.Second), Zone: fmt.Sprint("v", i),
			Changed: []string{fmt.Sprint("n", i)}, Octets: octets,
		}, math.MaxInt)
	}
	return log
}

func TestSince(t *testing.T) {
	var none history.Log[string]
	if v, _ := none.Since(0); v != nil || none.Last() != nil {
		t.Errorf("an empty log has %v and %v", v, none.Last())
	}
	log := filled(4, math.MaxUint32-1, 0) // the serials wrap
	for _, tt := range []struct {
		serial  uint32
		zone    string
		changed []string
	}{
		{math.MaxUint32 - 1, "v0", []string{"n1", "n2", "n3"}},
		{math.MaxUint32, "v1", []string{"n2", "n3"}},
		{0, "v2", []string{"n3"}},
		{1, "v3", nil},
	} {
		v, changed := log.Since(tt.serial)
		if v == nil || v.Zone != tt.zone {
			t.Fatalf("since %d: %v", tt.serial, v)
		}
		if d := cmp.Diff(tt.changed, changed); d != "" {
			t.Errorf("since %d (-want +got):\n%s", tt.serial, d)
		}
	}
	for _, serial := range []uint32{2, math.MaxUint32 - 2} {
		if v, _ := log.Since(serial); v != nil {
			t.Errorf("since %d: %v", serial, v)
		}
	}
	if last := log.Last(); last.Zone != "v3" {
		t.Errorf("last is %v", last)
	}
}

// TestAddKeepsTheBounds adds one version to a log of many: how many stay, the new one
// among them.
func TestAddKeepsTheBounds(t *testing.T) {
	second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	tests := []struct {
		name     string
		log      history.Log[string]
		add      history.Version[string]
		maxNames int
		want     int
	}{
		{"the first", history.Log[string]{}, history.Version[string]{}, 0, 1},
		{"one more", filled(3, 1, 1), history.Version[string]{At: second(3)}, math.MaxInt, 4},
		{"versions", filled(599, 1, 1), history.Version[string]{At: second(599)}, math.MaxInt, 600},
		{"too many versions", filled(600, 1, 1), history.Version[string]{At: second(600)}, math.MaxInt, 600},
		{"an hour", filled(3, 1, 1), history.Version[string]{At: second(3601)}, math.MaxInt, 3},
		{"longer", filled(3, 1, 1), history.Version[string]{At: second(9999)}, math.MaxInt, 1},
		{"names", filled(9, 1, 1), history.Version[string]{At: second(9), Changed: []string{"x", "y"}}, 5, 5}, // n6, n7, n8
		{"too many names", filled(9, 1, 1), history.Version[string]{At: second(9), Changed: []string{"x", "y"}}, 1, 1},
		{"octets", filled(9, 1, 16<<20), history.Version[string]{At: second(9), Octets: 16 << 20}, math.MaxInt, 5},
		{"too many octets", filled(9, 1, 16<<20), history.Version[string]{At: second(9), Octets: 65 << 20}, math.MaxInt, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Collect(serials(tt.log))
			tt.add.Serial, tt.add.Zone = 5000, "new"
			log := tt.log.Add(&tt.add, tt.maxNames)
			if last := log.Last(); last != &tt.add {
				t.Errorf("last is %v", last)
			}
			if got := len(slices.Collect(serials(log))); got != tt.want {
				t.Errorf("%d versions, want %d", got, tt.want)
			}
			if d := cmp.Diff(before, slices.Collect(serials(tt.log))); d != "" {
				t.Errorf("the log before has changed:\n%s", d)
			}
		})
	}
}

// serials yields those that the log has, of the ones that the tests use.
func serials(log history.Log[string]) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for serial := range uint32(5001) {
			if v, _ := log.Since(serial); v != nil && !yield(serial) {
				return
			}
		}
	}
}
