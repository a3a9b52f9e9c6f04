package catalog

import (
	"cmp"
	"fmt"
	"slices"
)

// smallestSize is the smallest of some numbers of octets, all above 0; 0: there is none.
type smallestSize int64

func (l *smallestSize) lowerTo(octets int64) {
	if *l == 0 || octets < int64(*l) {
		*l = smallestSize(octets)
	}
}

// exceededRule returns the rule that would be broken if the current stream announced next
// in place of the record r, which is zero for a name that is not in the catalog, or "".
//
// Records of earlier streams do not count, as they are about to be swept: otherwise an
// owner that comes back with new names would be refused half of them. They are bounded
// all the same, for an owner that never completes a catalog.
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
	return fmt.Sprintf("it counts %d octets, with which this owner has more than the %d that max_catalog allows", next.octets, limit)
}

// isLowerLimit reports whether a limit is lower than another one. 0 is no limit.
func isLowerLimit(limit, other int64) bool { return limit > 0 && (other == 0 || limit < other) }

// keepPublished marks the published version of a service as announced when a later version is
// beyond the limit: the owner still offers the service.
func (c *Catalog) keepPublished(name string, r nameRecord) {
	if r == (nameRecord{}) || c.exceededRule(r, nameRecord{octets: r.octets}) != "" {
		return
	}
	r.generation = c.generation
	c.setRecord(name, r)
}

// HasFreedRoom reports whether a service that the open stream announced was refused for the
// limit, and would be within it now. A new stream brings it.
func (c *Catalog) HasFreedRoom() bool {
	limit, more := c.rules.MaxCatalog, int64(c.limited)
	return c.stream.synced && (c.fqdns.freed || more > 0 && (limit == 0 || c.count.current+more <= limit && c.count.octets+more <= 2*limit))
}

// trimToLimit removes records until the catalog is within its limit: names without a service
// first, then stale services, and last by name from the end on. The order in which the
// services came makes no difference.
func (c *Catalog) trimToLimit() {
	limit := c.rules.MaxCatalog
	if limit == 0 || c.count.octets <= limit {
		return
	}
	rank := func(name string) int { // the lowest is kept first
		switch r, _ := c.records.get(name); {
		case r.service.IsZero():
			return 2
		case r.generation < c.liveGeneration():
			return 1
		}
		return 0
	}
	var names []string
	for name := range c.records.allRecords() {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	size := int64(0)
	for _, name := range names {
		r, _ := c.records.get(name)
		if size+int64(r.octets) <= limit {
			size += int64(r.octets)
			continue
		}
		c.limited.lowerTo(int64(r.octets))
		c.removeRecord(name, CauseExcluded)
	}
}
