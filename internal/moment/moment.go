// Package moment compares times of which zero stands for none.
package moment

import "time"

// Earlier returns the earlier of two times, or the other one where one of them is zero.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
