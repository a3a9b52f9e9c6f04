// Package await waits in tests for what processes do in their own time, and notes how long
// that takes. A test is patient, because machines are busy; what is promised is less, and
// holds in most cases. Command runner compares the two over a whole run.
package await

import (
	"fmt"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/runner/race"
)

// interval is how often a condition is looked at.
const interval = 10 * time.Millisecond

// Attribute is the key of the attributes of tests that Took writes: what it took, what is
// promised, and for what, with a space in between.
const Attribute = "took"

// Took notes how long something took that is promised to take no longer than promised in
// the median. With the race detector, which makes programs several times slower, it notes
// nothing: the promise is of the programs that users run.
func Took(t testing.TB, what string, promised, took time.Duration) {
	t.Helper()
	if race.Enabled {
		return
	}
	t.Attr(Attribute, fmt.Sprintf("%v %v %s", took, promised, what))
}

// Until calls condition until it returns "", and fails the test when it does not within
// the bound. Any other result says why the condition is not met yet. The median of all
// such waits of a package is promised to be no longer than promised; where nothing has to
// be waited for, there is none.
func Until(t testing.TB, promised, bound time.Duration, condition func() string) {
	t.Helper()
	why := condition()
	if why == "" {
		return
	}
	begin := time.Now()
	deadline, ticker := time.NewTimer(bound), time.NewTicker(interval)
	defer deadline.Stop()
	defer ticker.Stop()
	for ; why != ""; why = condition() {
		select {
		case <-deadline.C:
			t.Fatalf("after %v: %s", bound, why)
		case <-ticker.C:
		}
	}
	Took(t, fmt.Sprintf("a wait for a condition, with patience for %v", bound), promised, time.Since(begin))
}

// Patience bounds the waits of tests for something that must happen.
const Patience = 2 * time.Minute

// Within returns Until with the usual patience.
func Within(promised time.Duration) func(t testing.TB, condition func() string) {
	return func(t testing.TB, condition func() string) {
		t.Helper()
		Until(t, promised, Patience, condition)
	}
}
