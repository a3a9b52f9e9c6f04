package source

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// hider returns what hides an item of the part at that level, or nothing. It looks at
// the parts before it, which must be settled.
//
// A service that is hidden hides nothing. So the services that are published are found
// from the first part to the last: those whose name and fqdn no part before publishes.
func (c *Catalog) hider(level int, it *item) string {
	for _, p := range c.active[:level] {
		if other := p.items[it.name()]; p.shows(other) {
			return describe(p, other)
		}
		for _, other := range p.fqdns[it.fqdn] {
			if p.shows(other) {
				return describe(p, other)
			}
		}
	}
	return ""
}

func describe(p *part, it *item) string {
	return fmt.Sprintf("service %s of %s", federation.Quote(it.name()), p.name)
}

// conceal notes what hides an item, or with an empty by that it is published.
func (p *part) conceal(it *item, by string) {
	if it.by == by {
		return
	}
	if it.by != "" {
		p.hidden--
	}
	if by != "" {
		p.hidden++
	}
	it.by = by
	p.news[it.name()] = struct{}{}
	p.catalog.rouse()
}

// visible returns the services that are published.
func (c *Catalog) visible() []*wire.Encoded {
	if len(c.active) == 1 {
		return c.active[0].services() // which never lapses alone
	}
	var services []*wire.Encoded
	for _, p := range c.active {
		for _, it := range p.items {
			if p.shows(it) {
				services = append(services, it.service)
			}
		}
	}
	return services
}

// evaluate settles all parts anew.
func (c *Catalog) evaluate() {
	for level, p := range c.active {
		if len(c.active) > 1 {
			p.index()
		}
		for _, it := range p.items {
			p.conceal(it, c.hider(level, it))
		}
	}
}

// apply changes the part as the difference says, with the stamp, and publishes what follows
// from it.
func (c *Catalog) apply(p *part, d Difference, stamp uint32) {
	if p.items == nil { // and so it is the only one, if it is published
		if p.level != inactive {
			c.publish(d, p.left)
		}
		return
	}
	t := transaction{c, stamp, make(map[string]*wire.Encoded), make([]map[*item]bool, len(c.active))}
	for _, name := range d.Gone {
		t.remove(p, name)
	}
	for _, s := range d.Added {
		t.put(p, s)
	}
	for _, s := range d.Changed {
		t.put(p, s)
	}
	c.publish(t.settleAll(), p.left)
}

// lapse withdraws what the part publishes, as its lifetime is over, or publishes it again.
func (c *Catalog) lapse(p *part, lapsed bool) {
	t := transaction{c, 0, make(map[string]*wire.Encoded), make([]map[*item]bool, len(c.active))}
	for name := range p.items {
		t.touch(name)
	}
	p.lapsed = lapsed
	for _, it := range p.items {
		if it.by == "" {
			t.spread(p.level, it)
		}
	}
	c.publish(t.settleAll(), func(string) string { return "source " + p.name + " " + p.overdue() })
	logger, reason, services := p.logger(), p.overdue(), len(p.items)-p.hidden
	if lapsed {
		c.lines = append(c.lines, func() {
			logger.Error("source was away for its lifetime, its services are withdrawn", "reason", reason, "services", services)
		})
	}
}

// transaction is a change of one part with all that follows from it in the parts after
// it.
type transaction struct {
	catalog *Catalog
	stamp   uint32

	// before has what was published, nil for nothing, of each name that the
	// transaction has touched.
	before map[string]*wire.Encoded

	// unsettled has the items of each level that hider is to look at, and whether they
	// were published with the fqdn that they have.
	unsettled []map[*item]bool
}

// remove removes the service of that name, if there is one.
func (t *transaction) remove(p *part, name string) {
	it := p.items[name]
	if it == nil {
		return
	}
	t.touch(name)
	t.withdraw(p, it)
	p.conceal(it, "")
	p.remove(it)
}

// put adds a service, or replaces the one of its name.
func (t *transaction) put(p *part, s *wire.Encoded) {
	it := p.items[s.Name()]
	if it != nil && it.service.Equal(s) {
		return
	}
	t.touch(s.Name())
	switch fqdn := s.FQDN(); {
	case it == nil:
		it = p.insert(s, t.stamp)
	case it.fqdn == fqdn:
		it.service, it.stamp = s, t.stamp
		return
	default:
		t.withdraw(p, it)
		p.leave(it)
		it.service, it.fqdn, it.stamp = s, fqdn, t.stamp
		p.enter(it)
	}
	if p.level != inactive {
		t.doubt(p.level, it, false)
	}
}

// withdraw lets those after the part look for what they get when the item is gone.
func (t *transaction) withdraw(p *part, it *item) {
	if p.level != inactive && p.shows(it) {
		t.spread(p.level, it)
	}
}

// touch notes what is published under the name before that changes.
func (t *transaction) touch(name string) {
	if _, touched := t.before[name]; !touched {
		t.before[name] = t.catalog.lookup(name)
	}
}

// lookup returns the service of that name that is published, or nil.
func (c *Catalog) lookup(name string) *wire.Encoded {
	for _, p := range c.active {
		if it := p.items[name]; p.shows(it) {
			return it.service
		}
	}
	return nil
}

// settleAll settles all items that are doubted, and returns the difference.
func (t *transaction) settleAll() Difference {
	for level := range t.unsettled {
		for it, was := range t.unsettled[level] {
			t.settle(level, it, was)
		}
	}
	return t.difference()
}

// settle finds out what hides the item now.
func (t *transaction) settle(level int, it *item, was bool) {
	if by := t.catalog.hider(level, it); by != it.by {
		t.touch(it.name())
		t.catalog.active[level].conceal(it, by)
	}
	if is := t.catalog.active[level].shows(it); is != was {
		t.spread(level, it)
	}
}

// spread doubts the items after that level that have the name or the fqdn of it.
func (t *transaction) spread(level int, it *item) {
	for above, p := range t.catalog.active[level+1:] {
		above += level + 1
		if other := p.items[it.name()]; other != nil {
			t.doubt(above, other, p.shows(other))
		}
		for _, other := range p.fqdns[it.fqdn] {
			t.doubt(above, other, p.shows(other))
		}
	}
}

func (t *transaction) doubt(level int, it *item, was bool) {
	if t.unsettled[level] == nil {
		t.unsettled[level] = make(map[*item]bool)
	}
	if _, doubted := t.unsettled[level][it]; !doubted {
		t.unsettled[level][it] = was
	}
}

// difference returns what the transaction changes of what is published.
func (t *transaction) difference() Difference {
	var d Difference
	for name, before := range t.before {
		switch after := t.catalog.lookup(name); {
		case after == nil && before != nil:
			d.Gone = append(d.Gone, name)
		case after == nil:
		case before == nil:
			d.Added = append(d.Added, after)
		case before != after && !before.Equal(after):
			d.Changed = append(d.Changed, after)
		}
	}
	return d
}
