package source

import (
	"iter"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/owner"
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
	Refused(r owner.Refusal, fqdn string)
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
// else is looked through, with the lock that changes wait for held for moments only.
func (c *Catalog) Find(fqdns []string, name string) []Held {
	found := c.find(fqdns, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range found {
		for _, p := range c.active {
			if p.name == found[i].Source {
				_, found[i].Kept = p.held[found[i].Service.Name()]
			}
		}
	}
	return found
}

func (c *Catalog) find(fqdns []string, name string) []Held {
	var found []Held
	asked := make(map[string]bool, len(fqdns))
	for _, fqdn := range fqdns {
		asked[fqdn] = true
	}
	for _, l := range c.views() {
		if l.content == nil {
			for i, s := range l.whole {
				if asked[s.FQDN()] || strings.EqualFold(s.Name(), name) {
					found = append(found, Held{Service: s, Source: l.source, Hidden: l.hidden, Updated: when(stampAt(l.stamps, i))})
				}
				if len(found) >= MaxFound {
					return found
				}
			}
			continue
		}
		found = append(found, c.indexed(l, asked, name)...)
	}
	if len(found) == 0 {
		found = c.spelled(name)
	}
	return found[:min(len(found), MaxFound)]
}

// spelled is Find for a name with other upper and lower case in sources with an index.
func (c *Catalog) spelled(name string) (found []Held) {
	for _, l := range c.views() {
		for _, other := range c.names(l) {
			if len(found) < MaxFound && strings.EqualFold(other, name) {
				found = append(found, c.indexed(l, nil, other)...)
			}
		}
	}
	return found
}

// names returns the names of the services of a source with an index.
func (c *Catalog) names(l partView) []string {
	if l.content == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, 0, len(l.content.items))
	c.walk(l.content, func(it *item) { names = append(names, it.name()) }, func() bool { return true })
	return names
}

// breath is how many services are looked at before changes may go on: as many as take some
// ten microseconds.
const breath = 256

// walk calls f for every item of an index, and others without the lock, which the caller
// holds: after every few items, and at the end, until it returns false. Items that come or
// go meanwhile may be missing.
func (c *Catalog) walk(of *content, f func(*item), others func() bool) bool {
	n := 0
	for _, it := range of.items { // which may change between two of them
		f(it)
		if n++; n%breath == 0 && !c.unlocked(others) {
			return false
		}
	}
	return c.unlocked(others)
}

// unlocked calls f without the lock, which the caller holds.
func (c *Catalog) unlocked(f func() bool) bool {
	c.mu.Unlock()
	defer c.mu.Lock()
	runtime.Gosched() // those who wait for the lock come first
	return f()
}

// partView is a source as it is looked at.
type partView struct {
	source, hidden string
	whole          []*wire.Encoded // never changed, as stamps
	stamps         []uint32
	content        *content // that has an index; nil where whole and stamps are all
}

// views returns all sources.
func (c *Catalog) views() []partView {
	c.mu.Lock()
	defer c.mu.Unlock()
	var views []partView
	add := func(p *part, name, hidden string) {
		l := partView{source: name, hidden: hidden, whole: p.whole, stamps: p.stamps}
		if p.items != nil {
			l.content = &p.content
		}
		views = append(views, l)
	}
	for _, p := range c.active {
		hidden := ""
		if p.lapsed {
			hidden = "its source " + p.overdue()
		}
		add(p, p.name, hidden)
	}
	for _, l := range c.next {
		if l.level == inactive {
			add(l.part, l.name, notYet)
		}
	}
	return views
}

// indexed is Find for a source with an index.
func (c *Catalog) indexed(l partView, asked map[string]bool, name string) (found []Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(it *item) {
		h := Held{Service: it.service, Source: l.source, Hidden: l.hidden, Updated: when(it.stamp)}
		if it.by != "" {
			h.Hidden = it.by + " has its name or its fqdn, and stands first"
		}
		found = append(found, h)
	}
	named := l.content.items[name]
	if named != nil {
		add(named)
	}
	for fqdn := range asked {
		for _, it := range l.content.fqdns[fqdn] {
			if it != named && len(found) < MaxFound {
				add(it)
			}
		}
	}
	return found
}

// All yields the services that are published, in no order, with the time at which each
// version came, as in Held. The lock that changes wait for is held for moments only: where
// a source has an index, one that changes meanwhile is yielded as it was or as it is, and
// may come twice when another source takes it over.
func (c *Catalog) All() iter.Seq2[*wire.Encoded, time.Time] {
	return func(yield func(*wire.Encoded, time.Time) bool) {
		seen := make(map[*part]bool)
		hidden := make(map[string]bool) // names of services that no source before has yet
		for p := c.unseen(seen); p != nil; p = c.unseen(seen) {
			if !c.yieldPart(p, hidden, yield) {
				return
			}
		}
		// What was hidden is mostly what another source has, or whose fqdn is taken. But
		// what hid it may have gone meanwhile.
		for name := range hidden {
			if s, stamp := c.standing(name); s != nil && !yield(s, when(stamp)) {
				return
			}
		}
	}
}

// unseen returns the last source that is published and was not seen, and notes that it is,
// or nil. Each hides what those after it have.
func (c *Catalog) unseen(seen map[*part]bool) *part {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Backward(c.active) {
		if !seen[p] {
			seen[p] = true
			return p
		}
	}
	return nil
}

// yieldPart yields what the part publishes, takes its names from those that are hidden, and
// adds those that it hides itself. It reports whether there may be more.
func (c *Catalog) yieldPart(p *part, hidden map[string]bool, yield func(*wire.Encoded, time.Time) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.items == nil {
		services, stamps := p.whole, p.stamps
		return c.unlocked(func() bool {
			for i, s := range services {
				if !yield(s, when(stampAt(stamps, i))) {
					return false
				}
			}
			return true
		})
	}
	var few []Held
	return c.walk(&p.content, func(it *item) {
		switch {
		case p.level == inactive || p.lapsed: // by now
		case it.by != "":
			hidden[it.name()] = true
		default:
			delete(hidden, it.name())
			few = append(few, Held{Service: it.service, Updated: when(it.stamp)})
		}
	}, func() bool {
		for _, h := range few {
			if !yield(h.Service, h.Updated) {
				return false
			}
		}
		few = few[:0]
		return true
	})
}

// standing returns the service of that name that is published, or nil, and its stamp.
func (c *Catalog) standing(name string) (*wire.Encoded, uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.active {
		if it := p.items[name]; p.shows(it) {
			return it.service, it.stamp
		}
	}
	return nil, 0
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
