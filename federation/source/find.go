package source

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Observer is told what becomes of what a catalog publishes. Its methods do not block, and
// do not call the catalog. They may be called by several goroutines at once.
type Observer interface {
	// Changed says how many services were added, changed or withdrawn at once.
	Changed(services int)

	// Withdrawn says that a service is not published any more, and why: a clause. Of
	// many at once only some are told.
	Withdrawn(s *wire.Encoded, cause string)

	// Refused says that a consumer refuses a service, or with an empty rule that it
	// takes it again, and the fqdn under which the service is published.
	Refused(r registry.Refusal, fqdn string)
}

// Leaver is a Source that services come to and leave by themselves, and that knows why
// they leave.
type Leaver interface {
	// Left returns why a service has gone that the source has just withdrawn: a clause,
	// or "" where there is nothing to say. It may be called during Part.Update.
	Left(service string) string
}

// maxObserved is how many of the services that go at once an observer is told of.
const maxObserved = 1000

// observe tells the observer of a difference that is about to be published.
func (c *Catalog) observe(d Difference, left func(service string) string) {
	n := len(d.Added) + len(d.Changed) + len(d.Gone)
	if c.observer == nil || n == 0 {
		return
	}
	c.observer.Changed(n)
	for _, name := range d.Gone[:min(len(d.Gone), maxObserved)] {
		if s := c.registry.Lookup(name); s != nil {
			c.observer.Withdrawn(s, c.cause(name, left))
		}
	}
}

// cause says why a service is about to be withdrawn.
func (c *Catalog) cause(name string, left func(service string) string) string {
	for _, p := range c.active {
		if it := p.items[name]; it != nil && it.by != "" {
			return "hidden by " + it.by
		}
	}
	return left(name)
}

// left says why a service of the part has gone.
func (p *part) left(service string) string {
	cause := "withdrawn by source " + p.Name
	if l, ok := p.Source.(Leaver); ok {
		if why := l.Left(service); why != "" {
			cause += ": " + why
		}
	}
	return cause
}

// stamp returns the stamp of what the source says now: none for the first state of a
// catalog, which was so before. What comes to a Leaver was not.
func (p *part) stamp() uint32 {
	if _, ok := p.Source.(Leaver); !ok && !p.complete && !p.catalog.begun {
		return 0
	}
	return uint32(time.Now().Unix()) //nolint:gosec // until 2106
}

// when returns the time of a stamp.
func when(stamp uint32) time.Time {
	if stamp == 0 {
		return time.Time{}
	}
	return time.Unix(int64(stamp), 0)
}

// Held is a service that a source of a catalog has.
type Held struct {
	Service *wire.Encoded
	Source  string
	Hidden  string    // why it is not published: a clause; empty when it is
	Kept    bool      // whether its origin does not have it any more, and it is held (Entry.MaxWithdraw)
	Updated time.Time // when this version came; zero: it was in the first state of the catalog
}

// MaxFound is how many services Find returns at most.
const MaxFound = 100

// notYet is why a service is hidden whose source is not published.
const notYet = "its source is not published before all sources of the new configuration are complete"

// Find returns the services with one of the fqdns, which have no final dot, or with that
// name, whatever the case of its letters where nothing else is found. It returns those of all
// sources, in their order.
func (c *Catalog) Find(fqdns []string, name string) []Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.find(func(p *part) []*item { return p.find(fqdns, name) })
	if len(found) == 0 {
		found = c.find(func(p *part) []*item {
			return p.matching(func(it *item) bool { return strings.EqualFold(it.name(), name) })
		})
	}
	return found[:min(len(found), MaxFound)]
}

// find returns what of finds in the parts of both lists.
func (c *Catalog) find(of func(p *part) []*item) (found []Held) {
	add := func(p *part, source, hidden string) {
		for _, it := range of(p) {
			h := Held{Service: it.service, Source: source, Hidden: hidden, Updated: when(it.stamp)}
			if it.by != "" {
				h.Hidden = it.by + " has its name or its fqdn, and stands first"
			}
			_, h.Kept = p.held[it.name()]
			found = append(found, h)
		}
	}
	for _, p := range c.active {
		hidden := ""
		if p.lapsed {
			hidden = "its source " + p.overdue()
		}
		add(p, p.Name, hidden)
	}
	for _, l := range c.next {
		if l.part.level == inactive {
			add(l.part, l.Name, notYet)
		}
	}
	return found
}

// find returns the items with the name, and with one of the fqdns. Where there are no claims
// of the part, all are looked through.
func (p *part) find(fqdns []string, name string) (found []*item) {
	if p.level == inactive || !p.catalog.shared() {
		return p.matching(func(it *item) bool { return it.name() == name || slices.Contains(fqdns, it.service.FQDN()) })
	}
	if it := p.items[name]; it != nil {
		found = append(found, it)
	}
	for _, fqdn := range fqdns {
		for _, it := range p.catalog.claims[fqdn] {
			if it.part == p && it.name() != name {
				found = append(found, it)
			}
		}
	}
	return found
}

// matching returns the items that match, by name.
func (p *part) matching(matches func(*item) bool) (found []*item) {
	for _, it := range p.items {
		if matches(it) {
			found = append(found, it)
		}
	}
	slices.SortFunc(found, func(a, b *item) int { return strings.Compare(a.name(), b.name()) })
	return found[:min(len(found), MaxFound)]
}

// All yields the services that are published at that moment, in no order, with the time at
// which each version came, as in Held. Changes go on meanwhile.
func (c *Catalog) All() iter.Seq2[*wire.Encoded, time.Time] {
	return func(yield func(*wire.Encoded, time.Time) bool) {
		var all []item
		c.mu.Lock()
		for it := range c.visible() {
			all = append(all, *it)
		}
		c.mu.Unlock()
		for i := range all {
			if !yield(all[i].service, when(all[i].stamp)) {
				return
			}
		}
	}
}
