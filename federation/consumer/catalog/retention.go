package catalog

import (
	"slices"
	"time"
)

// loss is one retention clock: services whose last stream was of this generation or
// an earlier one are lost since at.
type loss struct {
	generation uint32
	at         time.Time
}

// expiry returns the end of the retention, from which the services are gone, and false when
// the retention is without limit.
func (l loss) expiry(retention time.Duration) (time.Time, bool) {
	return l.at.Add(retention), retention > 0
}

// retention is the retention clocks of an owner. There is more than one only when a stream is
// lost while the guard holds services. With a single clock, their retention would start again,
// and an owner that reconnects once an hour would keep for ever what it no longer offers.
type retention struct {
	losses []loss // oldest first; the last one is the owner's
	over   bool   // the last clock has run out
}

// lost returns the clocks as they are when a stream of the generation ends, lost at since: one that
// vouched for its services, or one that was not complete, while there were services or none.
func (r *retention) lost(generation uint32, since time.Time, vouched, services bool) []loss {
	losses := slices.Clone(r.losses)
	switch running := len(losses) > 0 && !r.over; {
	case vouched: // behind those of what the guard holds
		losses = append(losses, loss{generation, since})
	case running:
		// The last clock goes on, now also for what this stream announced. It may be that the origin
		// of the services was lost before.
		last := &losses[len(losses)-1]
		last.generation = generation
		if since.Before(last.at) {
			last.at = since
		}
	case services:
		return []loss{{generation, since}}
	default:
		return losses
	}
	if n := len(losses); n > 1 && losses[n-1].at.Before(losses[n-2].at) {
		losses[n-1].at = losses[n-2].at // they are in order
	}
	return losses
}

// due returns when the oldest clock runs out, and false when no clock is running.
func (r *retention) due(limit time.Duration) (time.Time, bool) {
	if len(r.losses) == 0 || r.over {
		return time.Time{}, false
	}
	return r.losses[0].expiry(limit)
}

// expired notes that what the oldest clock ran for is gone.
func (r *retention) expired() {
	switch len(r.losses) {
	case 0: // all clocks have stopped with that
	case 1:
		r.over = true
	default:
		r.losses = r.losses[1:]
	}
}

// hold stops the clocks that no service waits for when the newest one that is held is of this
// generation, or their list would grow under an owner that flaps.
func (r *retention) hold(newest uint32) {
	if i := slices.IndexFunc(r.losses, func(l loss) bool { return l.generation >= newest }); i >= 0 {
		r.losses = r.losses[:i+1]
	}
}

// clocks returns the retention clocks as they are when the open stream ends, lost at since.
// When no stream is open, they are the current ones.
func (c *Catalog) clocks(since time.Time) []loss {
	if !c.stream.open {
		return c.retention.losses
	}
	return c.retention.lost(c.generation, since, c.stream.synced, c.count.services > 0)
}

// expire removes the services of the oldest clock, which has run out.
func (c *Catalog) expire() {
	c.removeBefore(c.retention.losses[0].generation+1, CauseExpired)
	c.retention.expired()
}
