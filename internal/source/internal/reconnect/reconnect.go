// Package reconnect connects a source to its origin again and again.
package reconnect

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// newBackoff returns the delays between two connections. All owners lose an origin at the same
// moment, so they are spread: by as much again.
func newBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Steps: 5, Cap: 15 * time.Second}
}

// steady is how long a connection must have been of use to be made anew at once.
const steady = 10 * time.Second

// Loop calls follow, which follows the origin over one connection and says whether that was of use
// and why it has ended, until ctx ends. A connection that has been of use and ends, as all do whose certificate
// expires, is made anew at once: setAway is told when that fails.
func Loop(ctx context.Context, setAway func(reason error), follow func(context.Context) (useful bool, err error)) {
	delay := newBackoff()
	for {
		began := time.Now()
		useful, err := follow(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case useful:
			delay = newBackoff()
			if time.Since(began) >= steady {
				continue
			}
		}
		setAway(err)
		if !WaitFor(ctx, delay.Step()) {
			return
		}
	}
}

// WaitFor reports whether the time has passed before ctx ended.
func WaitFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
