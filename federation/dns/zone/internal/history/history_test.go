package history_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/history"
)

var start = time.Unix(1_800_000_000, 0)

// after is a time so many seconds after the start.
func after(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// run is a log with what comes next.
type run struct {
	history.Log[string]
	history.Recent
}

// publish adds a version in which names have changed, each of which holds so many
// octets in the version before.
func (r *run) publish(serial uint32, at time.Time, octets int, names ...string) {
	for _, name := range names {
		r.Note(name)
	}
	r.Begin(serial)
	v := &history.Version[string]{Serial: serial, At: at, Zone: fmt.Sprint("v", serial)}
	r.Log = r.Continue(&r.Recent, v, func(string, string) int { return octets })
}

// filled has n versions, a second apart, under the serials from the first on, each
// with one changed name and so many octets. The serial before the first does not
// count, as it could be that of another process.
func filled(n int, first uint32, octets int) *run {
	r := &run{Recent: history.NewRecent()}
	r.publish(first-1, start, 0)
	for i := range n {
		r.publish(first+uint32(i), after(i), octets, fmt.Sprint("n", i))
	}
	return r
}

func TestSince(t *testing.T) {
	var none history.Log[string]
	if v, _ := none.Since(0); v != nil || none.Last() != nil {
		t.Errorf("an empty log has %v and %v", v, none.Last())
	}
	log := filled(4, math.MaxUint32-1, 0) // the serials wrap
	for _, tt := range []struct {
		serial  uint32
		changed []string
	}{
		{math.MaxUint32 - 1, []string{"n1", "n2", "n3"}},
		{math.MaxUint32, []string{"n2", "n3"}},
		{0, []string{"n3"}},
		{1, nil},
	} {
		v, changed := log.Since(tt.serial)
		if want := fmt.Sprint("v", tt.serial); v == nil || v.Zone != want {
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
	if last := log.Last(); last.Serial != 1 {
		t.Errorf("last is %v", last)
	}
}

// TestContinueKeepsTheBounds adds one version to a log of many: how many stay, the new
// one among them.
func TestContinueKeepsTheBounds(t *testing.T) {
	const perName = 2048
	names := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint("x", i), fmt.Sprint("x", i)) // twice
		}
		return names
	}
	tests := []struct {
		name     string
		before   *run
		services int
		at       time.Time
		octets   int
		names    []string
		want     int
	}{
		{"the first", filled(0, 1, 0), 0, after(0), 0, nil, 1},
		{"one more", filled(3, 1, 1), 0, after(3), 0, nil, 4},
		{"versions", filled(599, 1, 1), 0, after(599), 0, nil, 600},
		{"too many versions", filled(600, 1, 1), 0, after(600), 0, nil, 600},
		{"an hour", filled(3, 1, 1), 0, after(3601), 0, nil, 3},
		{"longer", filled(3, 1, 1), 0, after(9999), 0, nil, 1},
		{"names", filled(9, 1, 1), 0, after(9), 0, names(997), 5}, // the names of three before
		{"too many names", filled(9, 1, 1), 0, after(9), 0, names(1001), 1},
		{"names of a larger zone", filled(9, 1, 1), 2002, after(9), 0, names(1001), 2},
		{"octets", filled(9, 1, 16<<20-perName), 0, after(9), 16<<20 - perName, []string{"x"}, 5},
		{"one octet more", filled(9, 1, 16<<20-perName), 0, after(9), 16<<20 - perName + 1, []string{"x"}, 4},
		{"too many octets", filled(9, 1, 1), 0, after(9), 64 << 20, []string{"x"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.before.Log
			had := serials(&before)
			tt.before.Count(tt.services)
			tt.before.publish(5000, tt.at, tt.octets, tt.names...)
			if last := tt.before.Last(); last.Serial != 5000 {
				t.Errorf("last is %v", last)
			}
			if got := len(serials(&tt.before.Log)); got != tt.want {
				t.Errorf("%d versions, want %d", got, tt.want)
			}
			if d := cmp.Diff(had, serials(&before)); d != "" {
				t.Errorf("the log before has changed:\n%s", d)
			}
			tt.before.publish(5001, tt.at, 0, "y")
			if _, changed := tt.before.Since(5000); !slices.Equal(changed, []string{"y"}) {
				t.Errorf("the next version has %v", changed)
			}
		})
	}
}

// TestContinueAnew cuts a log, or lets somebody else publish under its serials.
func TestContinueAnew(t *testing.T) {
	r := filled(5, 1, 0)
	r.Cut()
	if !r.IsCut() {
		t.Error("it is not cut")
	}
	r.publish(6, after(6), 0)
	if d := cmp.Diff([]uint32{6}, serials(&r.Log)); d != "" || r.IsCut() {
		t.Errorf("after a cut (-want +got):\n%s", d)
	}
	r.Contest(8)
	for serial, want := range map[uint32][]uint32{7: nil, 8: nil, 9: {9}} {
		r := *r
		r.publish(serial, after(int(serial)), 0)
		if d := cmp.Diff(want, serials(&r.Log)); d != "" {
			t.Errorf("serial %d, of which 8 was published by somebody else (-want +got):\n%s", serial, d)
		}
	}
	if v, _ := filled(1, 4, 0).Since(3); v != nil {
		t.Errorf("the first serial of a process is known: %v", v)
	}
}

// TestNoteIsBounded notes more names than a log may have, and the same ones over and
// over, which are no more.
func TestNoteIsBounded(t *testing.T) {
	r := filled(2, 1, 0)
	for i := range 100_000 {
		r.Note(fmt.Sprint(i % 1000))
	}
	if r.IsCut() {
		t.Error("1,000 names are too many")
	}
	for i := range 2001 {
		r.Note(fmt.Sprint(i))
	}
	if !r.IsCut() {
		t.Error("2,001 names are not too many")
	}
}

// serials returns those that the log has, of the ones that the tests use.
func serials(log *history.Log[string]) (found []uint32) {
	for serial := range uint32(5002) {
		if v, _ := log.Since(serial); v != nil {
			found = append(found, serial)
		}
	}
	return found
}
