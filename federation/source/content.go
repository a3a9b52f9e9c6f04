package source

import (
	"github.com/hamlet-federation/coredns-federation/federation/source/internal/claim"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// item is a service of a part.
type item struct {
	part    *part
	service *wire.EncodedService
	by      string // what hides it, as a Listener is told
	awaits  *part  // what may come to hide it; nil when there is no such part
}

func (i *item) name() string { return i.service.Name() }

// shown reports whether the item, which may be nil, is published.
func (i *item) shown() bool { return i.stands() && i.awaits == nil }

// stands reports whether the item, which may be nil, hides those behind it. One that waits does:
// they would have to go when it is published.
func (i *item) stands() bool { return i != nil && i.by == "" && !i.part.lapsed }

// Rank is the place of the item among those with its fqdn.
func (i *item) Rank() claim.Rank { return claim.Rank{Source: i.part.level, Service: i.name()} }

// conceal notes what hides the item, or with an empty by that nothing does.
func (i *item) conceal(by string) {
	if i.by == by {
		return
	}
	if i.by != "" {
		i.part.hidden--
	}
	if by != "" {
		i.part.hidden++
	}
	i.by = by
	i.part.news[i.name()] = struct{}{}
	i.part.catalog.rouse()
}

// lookup returns the item of that name that is published, or nil.
func (c *Catalog) lookup(name string) *item {
	for _, p := range c.parts {
		if it := p.items[name]; it.shown() {
			return it
		}
	}
	return nil
}
