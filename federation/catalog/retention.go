package catalog

import (
	"slices"
	"time"
)

// grace is how much later than the retention Status.Expires is. Answers carry
// the whole seconds up to Expires as their TTL, and a service with less than
// one is gone, so without it the last second of the retention would not be
// answered.
const grace = time.Second

// loss is one retention clock: services that were last announced on a stream up
// to generation are lost since at.
//
// There is more than one only when a stream is lost that had left services to
// the guard. Were there a single clock, it would start again for those as well,
// and an owner that reconnects once an hour would keep what it no longer offers
// for ever.
type loss struct {
	generation uint64
	at         time.Time
}

// clocks returns the retention clocks as they are when the open stream ends at
// now, or has ended already.
func (c *Catalog) clocks(now time.Time) []loss {
	ended := loss{generation: c.generation, at: now}
	running := len(c.losses) > 0 && !c.expired
	switch {
	case !c.stream.open:
		return c.losses
	case c.stream.synced, c.stream.renews.live > 0:
		return append(slices.Clip(c.losses), ended) // behind those of what the guard holds
	case running:
		// The last clock goes on, now for what this stream announced as well.
		losses := slices.Clone(c.losses)
		losses[len(losses)-1].generation = c.generation
		return losses
	case c.services > 0:
		return []loss{ended}
	}
	return c.losses
}

// expiry returns the instant from which the services of l are gone, as in
// Status.Expires, and false when they are kept without limit.
func (c *Catalog) expiry(l loss) (time.Time, bool) {
	return l.at.Add(c.config.Retention).Add(grace), c.config.Retention > 0
}

// due returns when Advance has to remove the services of l: when less than a
// second is left until their expiry, for then no TTL is left for an answer.
func (c *Catalog) due(l loss) (time.Time, bool) {
	expiry, ok := c.expiry(l)
	return expiry.Add(1 - time.Second), ok
}

// expires returns when the oldest clock runs out.
func (c *Catalog) expires() (time.Time, bool) {
	if len(c.losses) == 0 || c.expired {
		return time.Time{}, false
	}
	return c.due(c.losses[0])
}

// expire removes the services of the oldest clock, which has run out.
func (c *Catalog) expire() {
	c.removeBefore(c.losses[0].generation + 1)
	switch {
	case len(c.losses) > 1:
		c.losses = c.losses[1:]
	case len(c.losses) == 1:
		c.expired = true
	}
}
