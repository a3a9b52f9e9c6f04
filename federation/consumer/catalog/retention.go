package catalog

import (
	"slices"
	"time"
)

// expiryMargin is how much later than the end of the retention Summary.Expires is. The
// TTL of an answer is the whole seconds up to Expires, and a service with less than
// one is gone. Without expiryMargin, the last second of the retention would get no
// answers.
const expiryMargin = time.Second

// loss is one retention clock: services whose last stream was of this generation or
// an earlier one are lost since at.
//
// There is more than one clock only when a stream is lost while the guard holds
// services. With a single clock, their retention would start again, and an owner that
// reconnects once an hour would keep for ever what it no longer offers.
type loss struct {
	generation uint32
	at         time.Time
}

// clocks returns the retention clocks as they are when the open stream ends at now.
// When no stream is open, they are the current ones.
func (c *Catalog) clocks(now time.Time) []loss {
	ended := loss{generation: c.generation, at: now}
	running := len(c.losses) > 0 && !c.expired
	switch {
	case !c.stream.open:
		return c.losses
	case c.stream.synced, c.stream.refetch.live > 0:
		return append(slices.Clip(c.losses), ended) // behind those of what the guard holds
	case running:
		// The last clock goes on, now also for what this stream announced.
		losses := slices.Clone(c.losses)
		losses[len(losses)-1].generation = c.generation
		return losses
	case c.services > 0:
		return []loss{ended}
	}
	return c.losses
}

// expiry returns the instant from which the services of l are gone, as in
// Summary.Expires, and false when they are kept without limit.
func (c *Catalog) expiry(l loss) (time.Time, bool) {
	return l.at.Add(c.rules.Retention).Add(expiryMargin), c.rules.Retention > 0
}

// due returns when Advance has to remove the services of l, and false when they are
// kept without limit: when less than a second is left until their expiry, as no TTL
// is left for an answer then.
func (c *Catalog) due(l loss) (time.Time, bool) {
	expiry, ok := c.expiry(l)
	return expiry.Add(1 - time.Second), ok
}

// expires returns when the oldest clock runs out, and false when no clock is running.
func (c *Catalog) expires() (time.Time, bool) {
	if len(c.losses) == 0 || c.expired {
		return time.Time{}, false
	}
	return c.due(c.losses[0])
}

// expire removes the services of the oldest clock, which has run out.
func (c *Catalog) expire() {
	c.removeBefore(c.losses[0].generation+1, CauseExpired)
	switch {
	case len(c.losses) > 1:
		c.losses = c.losses[1:]
	case len(c.losses) == 1:
		c.expired = true
	}
}
