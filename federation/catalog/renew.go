package catalog

import (
	"slices"
	"time"
)

// renewPatience is how long a stream that renews another one may be silent before
// the services that it has not announced are stale. An owner that takes longer is
// not known to work any more.
const renewPatience = 30 * time.Second

// renewal is the replacement of a stream by another one on purpose, for what was
// refused and may be admitted now. Nothing was lost, so what the stream before
// announced stays live until the catalog is complete once more.
type renewal struct {
	live uint64    // the first generation that is live meanwhile; 0: there is no renewal
	at   time.Time // when the stream before was given up
}

// Renew says that the open stream is about to be given up for a new one, whose
// Opened is expected next. It does nothing, and returns false, while the catalog is
// not complete, and when a new stream is expected already. That the new one cannot
// be had is the loss of the old one: see Lost.
func (c *Catalog) Renew(now time.Time) bool {
	if !c.stream.synced || c.stream.renews.live > 0 {
		return false
	}
	c.stream.renews = renewal{live: c.live(), at: now}
	return true
}

// renewalEnds returns when a renewal has taken too long.
func (c *Catalog) renewalEnds() (time.Time, bool) {
	r := c.stream.renews
	since := r.at
	if c.stream.heard.After(since) {
		since = c.stream.heard
	}
	return since.Add(renewPatience), r.live > 0 && !c.stream.synced
}

// endRenewal makes of a renewal what it is without the knowledge that nothing was
// lost: a new stream whose catalog is not complete, with the retention clock of
// those before it running since the last one was given up.
func (c *Catalog) endRenewal() {
	r := c.stream.renews
	if r.live == 0 || c.stream.synced { // ... which has not happened yet
		return
	}
	c.stream.renews = renewal{}
	c.losses = append(slices.Clip(c.losses), loss{generation: c.generation - 1, at: r.at})
	c.expired = false
	c.stale = 0
	for _, record := range c.records {
		if record.service != nil && record.generation < c.generation {
			c.stale++
		}
	}
}
