package catalog

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// The guard of rule 2 prevents a sweep of more than one in guardShare of the services, if these are
// at least guardCount. Below that count a wrong guess does little harm, and the guard would be in the
// way of every small owner.
const (
	guardShare = 2
	guardCount = 10
)

// commonWords returns the words that are in both texts, or "none".
func commonWords(a, b string) string {
	words := strings.Fields(b)
	both := slices.DeleteFunc(strings.Fields(a), func(word string) bool { return !slices.Contains(words, word) })
	return cmp.Or(strings.Join(both, " "), "none")
}

// settleDeadline returns when the open stream will have been silent for Rules.Settle, and
// false when its silence proves nothing.
func (c *Catalog) settleDeadline() (time.Time, bool) {
	s := c.stream
	// Silence before a promised end marker means a slow owner, never the end.
	return s.heard.Add(c.rules.Settle), s.open && s.content && !s.synced && !s.marked
}

// completeBySilence completes the catalog of the open stream by rule 2, because the owner has been
// silent for Rules.Settle.
func (c *Catalog) completeBySilence(now time.Time) {
	c.endGrace()
	if c.count.stale >= guardCount && guardShare*c.count.stale > c.count.services {
		c.holdUnannounced()
	} else {
		c.sweepUnannounced()
	}
	c.markSynced(now)
}

// IsComplete reports whether the catalog of the open stream is complete.
func (c *Catalog) IsComplete() bool { return c.stream.synced }

// markSynced records that the catalog of the open stream is complete.
func (c *Catalog) markSynced(now time.Time) {
	c.stream.synced = true
	c.known = true
	c.lastSync = now
	c.covers, c.omitted = c.stream.admits, false
	c.leftOut.before = 0
}

// sweepUnannounced removes the services that the open stream has not announced, and stops all
// retention clocks.
func (c *Catalog) sweepUnannounced() {
	if c.count.current < c.count.octets { // a first catalog has nothing to sweep
		c.removeBefore(c.generation, CauseAbsent)
	}
	c.retention = retentionClocks{}
}

// holdUnannounced leaves the services that sweepUnannounced would remove to their retention, as
// stale data.
func (c *Catalog) holdUnannounced() {
	var newest uint32 // generation of what is held
	for name, r := range c.records {
		switch {
		case r.generation == c.generation:
		case r.service.IsZero():
			c.removeRecord(name, CauseAbsent) // no answer depends on it
		default:
			newest = max(newest, r.generation)
		}
	}
	c.retention.stopUnneeded(newest)
}
