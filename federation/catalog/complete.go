package catalog

import "time"

// The mass-deletion guard of rule 2: a sweep of more than one in guardShare of
// the services, and of at least guardCount, is not carried out. Below that count
// a wrong guess does little harm, and the guard would be in the way of every
// small owner.
const (
	guardShare = 2
	guardCount = 10
)

// settles returns when the open stream has been silent for long enough.
func (c *Catalog) settles() (time.Time, bool) {
	s := c.stream
	// The pause of a marked catalog is a slow owner, never its end.
	return s.heard.Add(c.config.Settle), s.open && s.content && !s.synced && !s.marked
}

// settle draws the conclusion from the silence of the open stream at now: rule 2.
func (c *Catalog) settle(now time.Time) {
	if c.stale >= guardCount && guardShare*c.stale > c.services {
		c.hold()
	} else {
		c.sweep()
	}
	c.synced(now)
}

// synced ends the initial catalog of the open stream.
func (c *Catalog) synced(now time.Time) {
	c.stream.synced = true
	c.known = true
	c.lastSync = now
}

// sweep removes what the open stream has not announced. All clocks stop.
func (c *Catalog) sweep() {
	if c.announced < len(c.records) { // a first catalog has nothing to sweep
		c.removeBefore(c.generation)
	}
	c.losses, c.expired = nil, false
}

// hold leaves what sweep would remove as stale data to its retention.
func (c *Catalog) hold() {
	var newest uint64 // generation of what is held
	for name, r := range c.records {
		switch {
		case r.generation == c.generation:
		case r.service == nil:
			c.set(name, record{}) // nobody is served from it
		default:
			newest = max(newest, r.generation)
		}
	}
	// Clocks that nothing held is waiting for stop, so that the list stays
	// short under an owner that flaps.
	for i, l := range c.losses {
		if l.generation >= newest {
			c.losses = c.losses[:i+1]
			return
		}
	}
}
