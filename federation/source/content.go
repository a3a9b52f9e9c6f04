package source

import (
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// content is what a part holds.
type content struct {
	// whole has the services as they were replaced last; it is nil when they have been
	// updated since.
	whole []*wire.Encoded

	// The same by name and by fqdn, the latter in the order of the names; nil until
	// it is needed.
	items map[string]*item
	fqdns map[string][]*item

	hidden int                 // items that are
	news   map[string]struct{} // names of services that are hidden otherwise than was told
}

// item is a service of a part.
type item struct {
	service *wire.Encoded
	fqdn    string
	by      string // what hides it, as a Listener is told; empty when it is published
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
// difference.
func (c *content) replace(services []*wire.Encoded) Difference {
	before := c.services()
	c.whole = append(make([]*wire.Encoded, 0, len(services)), services...)
	return compare(before, c.whole)
}

// index makes the index, unless there is one.
func (c *content) index() {
	if c.items != nil {
		return
	}
	c.items = make(map[string]*item, len(c.whole))
	c.fqdns = make(map[string][]*item, len(c.whole))
	for _, s := range c.whole {
		c.insert(s)
	}
}

// insert adds a service to the index. There is none of its name.
func (c *content) insert(s *wire.Encoded) *item {
	it := &item{service: s, fqdn: s.FQDN()}
	c.items[it.name()] = it
	c.enter(it)
	return it
}

// remove takes an item out of the index.
func (c *content) remove(it *item) {
	delete(c.items, it.name())
	c.leave(it)
}

// enter adds an item to those of its fqdn.
func (c *content) enter(it *item) {
	group := c.fqdns[it.fqdn]
	i, _ := search(group, it)
	c.fqdns[it.fqdn] = slices.Insert(group, i, it)
}

// leave takes an item out of those of its fqdn.
func (c *content) leave(it *item) {
	group := c.fqdns[it.fqdn]
	if len(group) == 1 {
		delete(c.fqdns, it.fqdn)
		return
	}
	i, _ := search(group, it)
	c.fqdns[it.fqdn] = slices.Delete(group, i, i+1)
}

func search(group []*item, it *item) (int, bool) {
	return slices.BinarySearchFunc(group, it, func(a, b *item) int { return strings.Compare(a.name(), b.name()) })
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
	return compare(before, slices.Clone(after))
}

// compare is Compare. Where a service has stayed equal, it puts the value of before into
// after, so that there are never two.
func compare(before, after []*wire.Encoded) Difference {
	same := func(i, j int) bool {
		if before[i] != after[j] && !before[i].Equal(after[j]) {
			return false
		}
		after[j] = before[i]
		return true
	}
	for len(before) > 0 && len(after) > 0 && same(0, 0) {
		before, after = before[1:], after[1:]
	}
	for len(before) > 0 && len(after) > 0 && same(len(before)-1, len(after)-1) {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	if len(before) == 0 {
		return Difference{Added: after}
	}
	var d Difference
	places := make(map[string]int, len(before))
	for i, s := range before {
		places[s.Name()] = i
	}
	for j, s := range after {
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
