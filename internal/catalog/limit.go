package catalog

import (
	"cmp"
	"fmt"
	"slices"
)

// smallestSize is the smallest of some numbers of octets, all above 0. Its zero value says that
// there is none.
type smallestSize int64

// lowerTo notes one more number of octets.
func (l *smallestSize) lowerTo(octets int64) {
	if *l == 0 || octets < int64(*l) {
		*l = smallestSize(octets)
	}
}

// exceededRule returns the rule that would be broken if the current stream announced next in place
// of the record r, or "". The record r is zero for a name that is not in the catalog.
//
// Records of earlier streams do not count, because they are about to be swept: otherwise an owner
// that comes back with new names would have half of them refused. For an owner that never completes
// a catalog they are bounded all the same, by twice the limit.
func (c *Catalog) exceededRule(r, next nameRecord) string {
	if rule := c.fqdns.exceededRule(r.service, next.service); rule != "" {
		return rule
	}
	limit, more, announced := c.rules.MaxCatalog, int64(next.octets), r.generation == c.generation
	if announced {
		more -= int64(r.octets)
	}
	if limit == 0 || c.count.current+more <= limit && c.count.octets-int64(r.octets)+int64(next.octets) <= 2*limit || announced && more <= 0 {
		return ""
	}
	c.limited.lowerTo(more)
	return fmt.Sprintf("with its %d octets this owner has more than the %d that max_catalog allows; raise max_catalog, or have the owner publish less", next.octets, limit)
}

// isLowerLimit reports whether limit is lower than other. A limit of 0 is no limit.
func isLowerLimit(limit, other int64) bool { return limit > 0 && (other == 0 || limit < other) }

// keepPublished marks the published version of a service as announced, where the version that the
// stream announced is beyond the limit, because the owner still offers the service.
func (c *Catalog) keepPublished(name string, r nameRecord) {
	if r == (nameRecord{}) || c.exceededRule(r, nameRecord{octets: r.octets}) != "" {
		return
	}
	r.generation = c.generation
	c.setRecord(name, r)
}

// HasFreedRoom reports whether the open stream announced a service that was refused for a limit and
// would be within the limit now. A new stream brings that service.
func (c *Catalog) HasFreedRoom() bool {
	limit, more := c.rules.MaxCatalog, int64(c.limited)
	return c.stream.synced && (c.fqdns.freed || more > 0 && (limit == 0 || c.count.current+more <= limit && c.count.octets+more <= 2*limit))
}

// trimToLimit removes records until the catalog is within its limit: first names without a service,
// then stale services, and then the others from the last name on. The order in which services came
// makes no difference.
func (c *Catalog) trimToLimit() {
	limit := c.rules.MaxCatalog
	if limit == 0 || c.count.octets <= limit {
		return
	}
	rank := func(name string) int { // the lowest is kept first
		switch r := c.records[name]; {
		case r.service.IsZero():
			return 2
		case r.generation < c.liveGeneration():
			return 1
		}
		return 0
	}
	var names []string
	for name := range c.records {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	size := int64(0)
	for _, name := range names {
		r := c.records[name]
		if size+int64(r.octets) <= limit {
			size += int64(r.octets)
			continue
		}
		c.limited.lowerTo(int64(r.octets))
		c.removeRecord(name, CauseExcluded)
	}
}
