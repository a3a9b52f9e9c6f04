package await

import (
	"testing"
	"testing/synctest"
	"time"
)

// attributes keeps the attributes of a test.
type attributes struct {
	testing.TB

	values []string
}

func (a *attributes) Attr(_, value string) { a.values = append(a.values, value) }

// A wait says how long it took.
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
		if want := "3s 1s a wait for a condition, with patience for 1m0s"; len(recorder.values) != 1 || recorder.values[0] != want {
			t.Errorf("attributes %q, want %q", recorder.values, want)
		}
	})
}
