package catalog

import (
	"cmp"
	"fmt"
	"slices"
)

// limited is what the stream announced beyond the limits: the least that would have
// to fit for a new stream to be of use. The names are not kept, as an owner can send
// them without end.
type limited struct {
	names  least // sizes of records that were not announced before
	growth least // octets by which a version is larger than the announced one
}

// least is the smallest of some numbers of octets, all above 0; 0: there is none.
type least int64

func (l *least) note(octets int64) {
	if *l == 0 || octets < int64(*l) {
		*l = least(octets)
	}
}

// exceeded returns the rule that would be broken if the current stream announced next
// in place of the record r, or "". With ok, the catalog has r already.
//
// Records of earlier streams do not count, as they are about to be swept: otherwise an
// owner that comes back with new names would be refused half of them. They are bounded
// all the same, for an owner that never completes a catalog.
func (c *Catalog) exceeded(r record, ok bool, next record) string {
	if rule := c.fqdns.exceeded(r.service, next.service); rule != "" {
		return rule
	}
	announced := ok && r.generation == c.generation
	if limit := c.rules.MaxServices; limit > 0 && !announced {
		if c.count.announced >= limit || !ok && c.records.len()/2 >= limit {
			c.limited.names.note(int64(next.octets))
			return fmt.Sprintf("one service more than the %d that are taken of one owner", limit)
		}
	}
	if limit := c.rules.MaxCatalog; limit > 0 {
		more := int64(next.octets)
		if announced {
			more -= int64(r.octets)
		}
		if c.count.current+more <= limit && c.count.octets-int64(r.octets)+int64(next.octets) <= 2*limit || announced && more <= 0 {
			return ""
		}
		if announced {
			c.limited.growth.note(more)
		} else {
			c.limited.names.note(more)
		}
		return fmt.Sprintf("it counts %d octets, with which this owner has more than the %d that max_catalog allows", next.octets, limit)
	}
	return ""
}

// below reports whether a limit is lower than another one. 0 is no limit.
func below(limit, other int64) bool { return limit > 0 && (other == 0 || limit < other) }

// keep marks the published version of a service as announced when a later version is
// beyond the limits: the owner still offers the service.
func (c *Catalog) keep(name string, r record, ok bool) {
	if !ok || c.exceeded(r, ok, record{octets: r.octets}) != "" {
		return
	}
	r.generation = c.generation
	c.set(name, r)
}

// Wanting reports whether a service that the open stream announced was refused for a
// limit, and would be within it now. A new stream brings it: see Refetch.
func (c *Catalog) Wanting() bool {
	fits := func(l least) bool {
		limit, more := c.rules.MaxCatalog, int64(l)
		return more > 0 && (limit == 0 || c.count.current+more <= limit && c.count.octets+more <= 2*limit)
	}
	places := c.rules.MaxServices
	return c.stream.synced && (c.fqdns.freed || fits(c.limited.growth) ||
		fits(c.limited.names) && (places == 0 || c.count.announced < places && c.records.len()/2 < places))
}

// trim removes records until the catalog is within its limits: names without a service
// first, then stale services, and last by name from the end on. The order in which the
// services came makes no difference.
func (c *Catalog) trim() {
	services, octets := c.rules.MaxServices, c.rules.MaxCatalog
	within := func(n int, size int64) bool {
		return (services == 0 || n <= services) && (octets == 0 || size <= octets)
	}
	if within(c.records.len(), c.count.octets) {
		return
	}
	rank := func(name string) int { // the lowest is kept first
		switch r, _ := c.records.get(name); {
		case r.service.IsZero():
			return 2
		case r.generation < c.live():
			return 1
		}
		return 0
	}
	var names []string
	for name := range c.records.all() {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	kept, size := 0, int64(0)
	for _, name := range names {
		r, _ := c.records.get(name)
		if within(kept+1, size+int64(r.octets)) {
			kept, size = kept+1, size+int64(r.octets)
			continue
		}
		c.limited.names.note(int64(r.octets))
		c.remove(name, CauseExcluded)
	}
}
