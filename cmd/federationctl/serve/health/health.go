// Package health finds out whether a program is healthy, by a check that is repeated.
//
// Only packages of this module import it: it is not a stable API.
package health

import (
	"context"
	"time"
)

// Check asks a program once. It returns nil if it is healthy, and otherwise why not. The
// text is safe to show. It returns when ctx ends, at the latest.
type Check func(ctx context.Context) error

// Config says how a check is repeated.
type Config struct {
	Check     Check
	Interval  time.Duration // from the end of one check to the begin of the next
	Timeout   time.Duration // of each
	Successes int           // in a row, that make a program healthy; at least 1
	Failures  int           // in a row, that make a program unhealthy; at least 1
}

// Follow repeats the check until ctx ends, the first time at once. It tells changed when
// it is known whether the program is healthy, and whenever that has changed, with the
// reason of the last failure: nil for a program that is healthy.
func Follow(ctx context.Context, c Config, changed func(failure error)) {
	f := follower{Config: c}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		attempt, cancel := context.WithTimeout(ctx, c.Timeout)
		err := c.Check(attempt)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if f.counts(err) {
			changed(err)
		}
		timer.Reset(c.Interval)
	}
}

// follower counts the results of a check.
type follower struct {
	Config

	known, healthy bool
	failing        bool // the last check has failed
	row            int  // how many results are as the last one
}

// counts takes a result, and reports whether it makes a change.
func (f *follower) counts(err error) bool {
	if failing := err != nil; failing != f.failing {
		f.failing, f.row = failing, 0
	}
	f.row++
	needed := f.Successes
	if f.failing {
		needed = f.Failures
	}
	if f.row < needed || f.known && f.healthy != f.failing {
		return false
	}
	f.known, f.healthy = true, !f.failing
	return true
}
