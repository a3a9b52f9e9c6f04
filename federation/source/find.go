package source

import (
	"iter"
	"maps"
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
	cause := "withdrawn by source " + p.name
	if l, ok := p.source.(Leaver); ok {
		if why := l.Left(service); why != "" {
			cause += ": " + why
		}
	}
	return cause
}

// stamp returns the stamp of what the source says now: none for the first state of a
// catalog, which was so before. What comes to a Leaver was not.
func (p *part) stamp() uint32 {
	if _, ok := p.source.(Leaver); !ok && !p.complete && !p.catalog.begun {
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
// name, whatever the case of its letters. It returns those of all sources, in their order.
//
// Where a source has an index, it is asked for the fqdns and for the name as it is. All
// else is looked through.
func (c *Catalog) Find(fqdns []string, name string) []Held {
	found := c.find(fqdns, name)
	if len(found) == 0 {
		for _, spelled := range c.spelled(name) {
			found = append(found, c.find(nil, spelled)...)
		}
	}
	return found[:min(len(found), MaxFound)]
}

func (c *Catalog) find(fqdns []string, name string) (found []Held) {
	for _, v := range c.versions(fqdns, name) {
		for _, it := range v.items {
			h := Held{Service: it.service, Source: v.source, Hidden: v.hidden, Updated: when(it.stamp)}
			if it.by != "" {
				h.Hidden = it.by + " has its name or its fqdn, and stands first"
			}
			_, h.Kept = v.held[it.name()]
			found = append(found, h)
		}
		for i, s := range v.whole {
			if len(found) < MaxFound && (slices.Contains(fqdns, s.FQDN()) || strings.EqualFold(s.Name(), name)) {
				_, kept := v.held[s.Name()]
				found = append(found, Held{Service: s, Source: v.source, Hidden: v.hidden, Kept: kept, Updated: when(stampAt(v.stamps, i))})
			}
		}
	}
	return found
}

// version is what a source holds at one moment.
type version struct {
	source, hidden string
	held           map[string]time.Time
	items          []item          // some, where the source has an index
	whole          []*wire.Encoded // otherwise all; never changed, as stamps
	stamps         []uint32
}

// versions returns those of all sources, with the items that have one of the fqdns or the name.
func (c *Catalog) versions(fqdns []string, name string) (versions []version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.active {
		v := version{source: p.name}
		if p.lapsed {
			v.hidden = "its source " + p.overdue()
		}
		versions = append(versions, p.fill(v, fqdns, name))
	}
	for _, l := range c.next {
		if l.level == inactive {
			versions = append(versions, l.fill(version{source: l.name, hidden: notYet}, fqdns, name))
		}
	}
	return versions
}

// fill adds what the part holds to a version.
func (p *part) fill(v version, fqdns []string, name string) version {
	v.held = maps.Clone(p.held)
	if p.items == nil {
		v.whole, v.stamps = p.whole, p.stamps
		return v
	}
	if it := p.items[name]; it != nil {
		v.items = append(v.items, *it)
	}
	add := func(it *item) {
		if int(it.level) == p.level && it.name() != name && len(v.items) < MaxFound {
			v.items = append(v.items, *it)
		}
	}
	for _, fqdn := range fqdns {
		for _, it := range p.catalog.claims[fqdn] {
			add(it)
		}
	}
	if p.level == inactive { // and so has no claims yet
		for _, it := range p.items {
			if slices.Contains(fqdns, it.fqdn) {
				add(it)
			}
		}
	}
	return v
}

// spelled returns the names that differ from name in upper and lower case, of sources with
// an index.
func (c *Catalog) spelled(name string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(p *part) {
		for other := range p.items {
			if strings.EqualFold(other, name) && !slices.Contains(names, other) && len(names) < MaxFound {
				names = append(names, other)
			}
		}
	}
	for _, p := range c.active {
		add(p)
	}
	for _, l := range c.next {
		add(l.part)
	}
	return names
}

// All yields the services that are published at that moment, in no order, with the time at
// which each version came, as in Held. Changes go on meanwhile.
func (c *Catalog) All() iter.Seq2[*wire.Encoded, time.Time] {
	return func(yield func(*wire.Encoded, time.Time) bool) {
		c.mu.Lock()
		services, stamps := c.visible()
		c.mu.Unlock()
		for i, s := range services {
			if !yield(s, when(stampAt(stamps, i))) {
				return
			}
		}
	}
}

// Version returns a number that is another one after every change of what All yields.
func (c *Catalog) Version() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// stampAt returns one of the stamps, which are all 0 where there are none.
func stampAt(stamps []uint32, i int) uint32 {
	if stamps == nil {
		return 0
	}
	return stamps[i]
}
