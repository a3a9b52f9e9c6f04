package catalog

import "time"

// Grace is for how long after its loss a synced stream counts as open. An owner is restarted in
// less time, and a consumer opens another stream with another certificate in less time.
const Grace = 5 * time.Second

// graceEnds returns when the services of the last synced stream are no longer live, and false when
// there is no grace.
func (c *Catalog) graceEnds() (time.Time, bool) {
	if c.grace == 0 {
		return time.Time{}, false
	}
	lost := c.retention.losses[len(c.retention.losses)-1]
	at := lost.at.Add(Grace)
	if expiry, ok := lost.expiresAt(c.rules.Retention); ok && expiry.Before(at) {
		at = expiry
	}
	return at, true
}

// endGrace ends the grace, if there is one: services that no stream has announced since the loss
// become stale.
func (c *Catalog) endGrace() {
	if c.grace == 0 {
		return
	}
	c.grace, c.count.stale = 0, 0
	for _, r := range c.records {
		if !r.service.IsZero() && r.generation < c.liveGeneration() {
			c.count.stale++
		}
	}
}
