// Package health finds out whether a program is healthy, by a check that is repeated.
//
// Only packages of this module import it: it is not a stable API.
package health

import (
	"context"
	"errors"
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

// errTimeout is why a check has failed that took too long.
var errTimeout = errors.New("it has taken too long")

// RepeatCheck repeats the check until ctx ends, the first time at once. It tells changed when
// it is known whether the program is healthy, and whenever that has changed, with the
// reason of the last failure: nil for a program that is healthy.
func RepeatCheck(ctx context.Context, c Config, changed func(failure error)) {
	var known, healthy bool
	failing, row := false, 0 // whether the last check has failed, and how many results are as that one
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
		if err != nil && attempt.Err() != nil {
			err = errTimeout
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		if failing != (err != nil) {
			failing, row = !failing, 0
		}
		row++
		needed := c.Successes
		if failing {
			needed = c.Failures
		}
		if row >= needed && (!known || healthy == failing) {
			known, healthy = true, !failing
			changed(err)
		}
		timer.Reset(c.Interval)
	}
}
