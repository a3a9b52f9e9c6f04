// Package await waits in tests for what processes do in their own time. A test is patient,
// because machines are busy.
package await

import (
	"testing"
	"time"
)

// interval is how often a condition is looked at.
const interval = 10 * time.Millisecond

// Patience bounds the waits of tests for something that must happen.
const Patience = 2 * time.Minute

// Eventually is Until with the usual patience.
func Eventually(t testing.TB, condition func() string) {
	t.Helper()
	Until(t, Patience, condition)
}

// Until calls condition until it returns "", and fails the test when it does not within
// the bound. Any other result says why the condition is not met yet.
func Until(t testing.TB, bound time.Duration, condition func() string) {
	t.Helper()
	deadline, ticker := time.NewTimer(bound), time.NewTicker(interval)
	defer deadline.Stop()
	defer ticker.Stop()
	for why := condition(); why != ""; why = condition() {
		select {
		case <-deadline.C:
			t.Fatalf("after %v: %s", bound, why)
		case <-ticker.C:
		}
	}
}
