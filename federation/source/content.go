package source

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// content is what a part holds.
type content struct {
	// whole has the services as they were replaced last; it is nil when they have been
	// updated since.
	whole []*wire.Encoded

	// stamps has the stamp of each of whole, as an item has it; nil where all are 0, and
	// once there is an index.
	stamps []uint32

	items map[string]*item // the same by name; nil until it is needed

	hidden int                 // items that are
	news   map[string]struct{} // names of services that are hidden otherwise than was told
}

// item is a service of a part.
type item struct {
	service *wire.Encoded
	fqdn    string
	by      string // what hides it, as a Listener is told; empty when it is published
	stamp   uint32 // when this version came, in seconds from 1970; 0: with the first state that was published
	level   int32  // of its part
}

func (i *item) name() string { return i.service.Name() }

// services returns what the part holds.
func (c *content) services() []*wire.Encoded {
	if c.whole != nil {
		return c.whole
	}
	services := make([]*wire.Encoded, 0, len(c.items))
	for _, it := range c.items {
		services = append(services, it.service)
	}
	return services
}

// len returns the number of services.
func (c *content) len() int {
	if c.whole != nil {
		return len(c.whole)
	}
	return len(c.items)
}

// replace makes services the whole content, but for the index, and returns the
// difference. What is new or changed gets the stamp.
func (c *content) replace(services []*wire.Encoded, stamp uint32) Difference {
	before, stamps := c.services(), c.stamps
	c.whole, c.stamps = append(make([]*wire.Encoded, 0, len(services)), services...), nil
	if c.items != nil || stamp == 0 && stamps == nil {
		return compare(before, c.whole, func(int, int) {})
	}
	c.stamps = slices.Repeat([]uint32{stamp}, len(services))
	return compare(before, c.whole, func(i, j int) {
		c.stamps[j] = stampAt(stamps, i)
	})
}

// Difference is what turns some services into others, in no order.
type Difference struct {
	Added   []*wire.Encoded // of names that there were not before
	Changed []*wire.Encoded
	Gone    []string // names
}

// Compare returns what turns before into after. In each the names are unique. It takes
// no memory for what has stayed at its place.
func Compare(before, after []*wire.Encoded) Difference {
	return compare(before, slices.Clone(after), func(int, int) {})
}

// compare is Compare. Where a service has stayed equal, it puts the value of before into
// after, so that there are never two, and calls stayed with both indices.
func compare(before, after []*wire.Encoded, stayed func(i, j int)) Difference {
	same := func(i, j int) bool {
		if before[i] != after[j] && !before[i].Equal(after[j]) {
			return false
		}
		after[j] = before[i]
		stayed(i, j)
		return true
	}
	first, ends := 0, [2]int{len(before), len(after)} // what is between them has not been compared
	for first < min(ends[0], ends[1]) && same(first, first) {
		first++
	}
	for first < min(ends[0], ends[1]) && same(ends[0]-1, ends[1]-1) {
		ends[0]--
		ends[1]--
	}
	if first == ends[0] {
		return Difference{Added: after[first:ends[1]]}
	}
	var d Difference
	places := make(map[string]int, ends[0]-first)
	for i := first; i < ends[0]; i++ {
		places[before[i].Name()] = i
	}
	for j := first; j < ends[1]; j++ {
		s := after[j]
		switch i, known := places[s.Name()]; {
		case !known:
			d.Added = append(d.Added, s)
			continue
		case !same(i, j):
			d.Changed = append(d.Changed, s)
		}
		delete(places, s.Name())
	}
	for name := range places {
		d.Gone = append(d.Gone, name)
	}
	return d
}
