package await

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/runner/race"
)

// attributes keeps the attributes of a test.
type attributes struct {
	testing.TB

	values []string
}

func (a *attributes) Attr(_, value string) { a.values = append(a.values, value) }

// A wait says how long it took, but not with the race detector.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder, begin := &attributes{TB: t}, time.Now()
		Until(recorder, time.Second, time.Minute, func() string { return "" }) // is no wait
		Until(recorder, time.Second, time.Minute, func() string {
			if time.Since(begin) < 3*time.Second {
				return "it is early"
			}
			return ""
		})
		want := []string{"3s 1s a wait for a condition, with patience for 1m0s"}
		if race.Enabled {
			want = nil
		}
		if !slices.Equal(recorder.values, want) {
			t.Errorf("attributes %q, want %q", recorder.values, want)
		}
	})
}
