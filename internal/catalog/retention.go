package catalog

import (
	"slices"
	"time"
)

// retentionClock is one retention clock: services whose last stream was of this generation, or of
// an earlier one, are lost since at.
type retentionClock struct {
	generation uint32
	at         time.Time
}

// expiresAt returns the end of the retention, from which the services are gone, and false when
// the retention is without limit.
func (l retentionClock) expiresAt(retention time.Duration) (time.Time, bool) {
	return l.at.Add(retention), retention > 0
}

// retentionClocks are the retention clocks of one owner. The end of a stream starts a clock or
// moves the last one, a complete catalog stops the clocks that no service needs, and expireOldest
// takes off the oldest.
//
// There is more than one clock only when a stream is lost while the guard holds services. With a
// single clock, the retention of these services would start again, and an owner that reconnects
// once an hour would keep for ever what it no longer offers. A service has no clock of its own,
// because with a million services every word counts.
type retentionClocks struct {
	losses []retentionClock // oldest first; the last one is the owner's
	over   bool             // the last clock has run out
}

// clocksAfterLoss returns the clocks as they are when a stream of the generation has ended, lost at
// since. Vouched says that the catalog of the stream was complete, and services that the owner has
// any.
func (r *retentionClocks) clocksAfterLoss(generation uint32, since time.Time, vouched, services bool) []retentionClock {
	losses := slices.Clone(r.losses)
	switch running := len(losses) > 0 && !r.over; {
	case vouched: // behind those of what the guard holds
		losses = append(losses, retentionClock{generation, since})
	case running:
		// The last clock goes on, now also for what this stream announced. It may be that the origin
		// of the services was lost before.
		last := &losses[len(losses)-1]
		last.generation = generation
		if since.Before(last.at) {
			last.at = since
		}
	case services:
		return []retentionClock{{generation, since}}
	default:
		return losses
	}
	if n := len(losses); n > 1 && losses[n-1].at.Before(losses[n-2].at) {
		losses[n-1].at = losses[n-2].at // they are in order
	}
	return losses
}

// nextExpiry returns when the oldest clock runs out, and false when no clock is running.
func (r *retentionClocks) nextExpiry(limit time.Duration) (time.Time, bool) {
	if len(r.losses) == 0 || r.over {
		return time.Time{}, false
	}
	return r.losses[0].expiresAt(limit)
}

// expireOldest stops the oldest clock, whose services have been removed.
func (r *retentionClocks) expireOldest() {
	switch len(r.losses) {
	case 0: // all clocks have stopped with that
	case 1:
		r.over = true
	default:
		r.losses = r.losses[1:]
	}
}

// stopUnneeded stops the clocks that no service needs, where the newest service that is held is of
// the generation newest. Otherwise the list of clocks would grow under an owner that flaps.
func (r *retentionClocks) stopUnneeded(newest uint32) {
	if i := slices.IndexFunc(r.losses, func(l retentionClock) bool { return l.generation >= newest }); i >= 0 {
		r.losses = r.losses[:i+1]
	}
}

// clocksAfterLoss returns the retention clocks as they are when the open stream ends, lost at
// since. When no stream is open, these are the current clocks.
func (c *Catalog) clocksAfterLoss(since time.Time) []retentionClock {
	if !c.stream.open {
		return c.retention.losses
	}
	return c.retention.clocksAfterLoss(c.generation, since, c.stream.synced, c.count.services > 0)
}

// expireOldest removes the services of the oldest clock, which has run out, and stops that clock.
func (c *Catalog) expireOldest() {
	c.removeBefore(c.retention.losses[0].generation+1, CauseExpired)
	c.retention.expireOldest()
}
