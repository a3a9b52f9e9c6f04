package catalog

import (
	"cmp"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// BeginRestore prepares a new catalog for services that were kept through a restart,
// and reports whether it did. It returns false when the retention of the services is over, when the
// catalog is known, or after the first stream was opened. What an earlier, incomplete restoration
// left is removed.
//
// The services are stale from lastUp on, the time when a stream was last up. A lastUp after now
// counts as now, because the clock of the machine may have been set back. Until EndRestore, the
// catalog is not known, because a name that is not in the catalog may still come.
func (c *Catalog) BeginRestore(lastUp, now time.Time) bool {
	if lastUp.After(now) {
		lastUp = now
	}
	l := retentionClock{at: lastUp}
	if c.generation > 0 || c.known {
		return false
	}
	if due, ok := l.expiresAt(c.rules.Retention); ok && !due.After(now) {
		return false
	}
	c.removeBefore(1, CauseUnproven)
	c.leftOut = leftOut{}
	c.restoring, c.retention, c.limited = true, retentionClocks{losses: []retentionClock{l}}, 0
	return true
}

// RestoreOmitted records that rules with these Admits admitted all of the restored services, and
// that the owner has had others that these rules did not admit. Without words, the owner has had no
// others. RestoreOmitted reports whether the rules in force may admit some of those others.
func (c *Catalog) RestoreOmitted(admits string) bool {
	c.covers, c.omitted = cmp.Or(admits, c.rules.Admits), admits != ""
	return c.covers != c.rules.Admits
}

// RestoreMore adds some of the services that are restored. It leaves out services that are not
// imported, not admitted or beyond a limit of Rules. It does nothing when no restoration is under
// way, or when the retention has ended meanwhile.
func (c *Catalog) RestoreMore(services []packed.Service) {
	if !c.restoring || c.retention.over {
		return
	}
	c.changes = slices.Grow(c.changes, len(services))
	for _, p := range services {
		s := c.unpacker.Unpack(p)
		if invalid := c.admissionError(s); invalid == ErrNotImported {
			c.leftOut.now++
		} else {
			_ = c.upsertService("", p, s, invalid, 0) // the error was reported when the owner sent the service
		}
	}
}

// EndRestore ends a restoration, if one is under way. With complete, all services were restored,
// and the catalog is known. Otherwise the services that were restored stay, as stale as the others,
// and the catalog is not known before a stream has completed it, because a name that is not in the
// catalog may be one that was lost.
func (c *Catalog) EndRestore(complete bool) {
	c.known = c.known || c.restoring && complete
	c.restoring = false
}

// Snapshot returns what can be restored later: the services that are worth keeping through a
// restart, and the time when a stream that vouches for them was last up. It returns false as long
// as no catalog was ever complete, because a part of a catalog, once restored, would deny that the
// rest exists.
//
// Services that the guard holds are left out: their retention is shorter than that of the others,
// and there is only one time for all.
func (c *Catalog) Snapshot(now time.Time) (services []packed.Service, lastUp time.Time, ok bool) {
	clocks := c.clocksAfterLoss(now)
	n := len(clocks)
	if !c.known || n == 0 {
		return nil, time.Time{}, false
	}
	var oldest uint64
	if n > 1 {
		oldest = uint64(clocks[n-2].generation) + 1
	}
	services = make([]packed.Service, 0, c.count.services)
	for p, announced := range c.All() {
		if announced.Generation >= oldest {
			services = append(services, p)
		}
	}
	return services, clocks[n-1].at, true
}
