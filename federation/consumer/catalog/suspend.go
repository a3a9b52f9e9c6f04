package catalog

import (
	"errors"
	"time"
)

// errExpired ends a stream that would go on with services that are gone.
var errExpired = errors.New("the retention was over before the owner was available again")

// suspend records that the owner is unavailable: the stream is lost until it goes on.
func (c *Catalog) suspend(now time.Time) error {
	if !c.stream.open && !c.suspended.open {
		return errNoStream
	}
	if c.stream.open {
		suspended := c.stream
		c.Lost(now)
		suspended.synced, suspended.refetch = false, refetch{}
		c.suspended = suspended
	}
	return nil
}

// goOn has a stream go on that was suspended. It fails where no stream is open or suspended.
func (c *Catalog) goOn() error {
	switch {
	case c.stream.open:
		return nil
	case !c.suspended.open:
		return errNoStream
	case c.suspended.lapsed:
		return errExpired
	}
	c.stream, c.suspended = c.suspended, stream{}
	c.retention.vouch(c.generation)
	c.countStale()
	return nil
}
