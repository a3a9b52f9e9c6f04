package catalog

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/packed"
)

// Restore fills a new catalog with the services that were kept through a restart,
// and reports whether it did. It does not when their retention is over, or after the
// first stream was opened. The services are stale from lastUp on, the time when a
// stream was last up. A lastUp after now counts as now, as the clock of the machine
// may have been set back. Services that are not admitted, and those that are beyond
// the limits of Config, are left out.
func (c *Catalog) Restore(services []packed.Service, lastUp, now time.Time) bool {
	if lastUp.After(now) {
		lastUp = now
	}
	l := loss{at: lastUp}
	if c.generation > 0 || c.known {
		return false
	}
	if due, ok := c.due(l); ok && !due.After(now) {
		return false
	}
	c.known = true
	c.losses = []loss{l}
	for _, p := range services {
		_ = c.upsert("", p, c.unpacker.Unpack(p)) // the error was reported when the owner sent the service
	}
	return true
}

// Snapshot returns what Restore takes: the services that are worth keeping through a
// restart, and the time when a stream that vouches for them was last up. It returns
// false as long as no catalog was ever complete: a part of one, restored, would deny
// that the rest exists.
//
// Services that the guard holds are left out. Their retention is shorter than that of
// the others, and there is only one time for all.
func (c *Catalog) Snapshot(now time.Time) (services []packed.Service, lastUp time.Time, ok bool) {
	clocks := c.clocks(now)
	n := len(clocks)
	if !c.known || n == 0 {
		return nil, time.Time{}, false
	}
	var oldest uint64
	if n > 1 {
		oldest = clocks[n-2].generation + 1
	}
	for p, generation := range c.All() {
		if generation >= oldest {
			services = append(services, p)
		}
	}
	return services, clocks[n-1].at, true
}
