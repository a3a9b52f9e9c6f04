package catalog

import (
	"cmp"
	"fmt"
	"slices"
)

// limited is what a stream announced beyond the limits: the least that would have
// to fit. Names would not do: there is no end to those that an owner can send.
type limited struct {
	names  least // of names that are not held
	growth least // of versions that are larger than the one that is held
}

// least is the smallest of some numbers.
type least struct {
	octets int64
	any    bool
}

func (l *least) note(octets int64) {
	if !l.any || octets < l.octets {
		*l = least{octets, true}
	}
}

// full returns the limit that is exceeded when the current stream announces next
// instead of the record r, which is there already when ok; or "".
//
// Records of earlier streams do not count, as they are about to be swept: an owner
// that comes back with new names would be refused half of them. They are bounded
// all the same, for an owner that never completes a catalog.
func (c *Catalog) full(r record, ok bool, next record) string {
	announced := ok && r.generation == c.generation
	if limit := c.config.MaxServices; limit > 0 && !announced {
		if c.announced >= limit || !ok && len(c.records)/2 >= limit {
			c.limited.names.note(next.octets)
			return fmt.Sprintf("one service more than the %d that max_services allows this owner", limit)
		}
	}
	if limit := c.config.MaxCatalog; limit > 0 {
		more := next.octets
		if announced {
			more -= r.octets
		}
		if c.current+more <= limit && c.octets-r.octets+next.octets <= 2*limit || announced && more <= 0 {
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

// below reports whether a limit, of which 0 is none, is lower than another one.
func below(limit, other int64) bool { return limit > 0 && (other == 0 || limit < other) }

// keep has the version that is held of a service stay, where a later one is beyond
// the limits: the owner still offers the service.
func (c *Catalog) keep(name string, r record, ok bool) {
	if !ok || c.full(r, ok, record{octets: r.octets}) != "" {
		return
	}
	r.generation = c.generation
	c.set(name, r)
}

// Wanting reports whether something that the open stream announced was refused for
// a limit, and would now be within it. A new stream brings it: see Renew.
func (c *Catalog) Wanting() bool {
	fits := func(l least) bool {
		limit := c.config.MaxCatalog
		return l.any && (limit == 0 || c.current+l.octets <= limit && c.octets+l.octets <= 2*limit)
	}
	places := c.config.MaxServices
	return c.stream.synced && (fits(c.limited.growth) ||
		fits(c.limited.names) && (places == 0 || c.announced < places && len(c.records)/2 < places))
}

// trim removes what is beyond limits that were lowered: stale services first, and
// then by name, from the last one on, so that it does not depend on who came first.
func (c *Catalog) trim() {
	services, octets := c.config.MaxServices, c.config.MaxCatalog
	within := func(n int, size int64) bool {
		return (services == 0 || n <= services) && (octets == 0 || size <= octets)
	}
	if within(len(c.records), c.octets) {
		return
	}
	names := make([]string, 0, len(c.records))
	for name := range c.records {
		names = append(names, name)
	}
	rank := func(name string) int { // the lowest is kept first
		switch r := c.records[name]; {
		case r.service == nil:
			return 2
		case r.generation < c.live():
			return 1
		}
		return 0
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	kept, size := 0, int64(0)
	for _, name := range names {
		r := c.records[name]
		if within(kept+1, size+r.octets) {
			kept, size = kept+1, size+r.octets
			continue
		}
		c.limited.names.note(r.octets)
		c.set(name, record{})
	}
}
