package catalog

import (
	"slices"
	"time"
)

// refetchPatience is how long a stream of a refetch may be silent before the
// services that it has not announced are stale. An owner that takes longer may no
// longer work.
const refetchPatience = 30 * time.Second

// refetch is the replacement of a stream by another one on purpose: to fetch services
// that were refused and may be accepted now, or because a certificate is about to expire.
// No stream was lost, so the services of
// the stream before stay live until the catalog is complete once more.
type refetch struct {
	live uint32    // the first generation that is live meanwhile; 0: there is no refetch
	at   time.Time // when the stream before was given up
}

// Refetch records that the open stream is about to be given up for a new one, whose
// Opened is expected next, and reports whether it did. It does nothing as long as the
// catalog is not complete, or a new stream is expected already. When the new stream
// cannot be had, the old one is lost: see Lost.
func (c *Catalog) Refetch(now time.Time) bool {
	if !c.stream.synced || c.stream.refetch.live > 0 {
		return false
	}
	c.stream.refetch = refetch{live: c.live(), at: now}
	return true
}

// refetchEnds returns when the refetch in progress will have taken too long, and false
// when there is none.
func (c *Catalog) refetchEnds() (time.Time, bool) {
	r := c.stream.refetch
	since := r.at
	if c.stream.heard.After(since) {
		since = c.stream.heard
	}
	return since.Add(refetchPatience), r.live > 0 && !c.stream.synced
}

// endRefetch turns a refetch in progress into an ordinary new stream, one that follows
// a loss: services that it has not announced are stale, and their retention clock has
// run since the stream before was given up.
func (c *Catalog) endRefetch() {
	r := c.stream.refetch
	if r.live == 0 || c.stream.synced { // no refetch, or the new stream is still to come
		return
	}
	c.stream.refetch = refetch{}
	c.retention = retention{losses: append(slices.Clip(c.retention.losses), loss{generation: c.generation - 1, at: r.at})}
	c.countStale()
}

// countStale counts the services that only an earlier stream than the open one has announced.
func (c *Catalog) countStale() {
	c.count.stale = 0
	for _, r := range c.records.all() {
		if !r.service.IsZero() && r.generation < c.generation {
			c.count.stale++
		}
	}
}
