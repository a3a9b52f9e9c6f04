package source

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/internal/claim"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Rank is the place of the item among those with its fqdn.
func (i *item) Rank() claim.Rank { return claim.Rank{Source: int(i.level), Service: i.name()} }

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

// visible returns the services that are published, with their stamps.
func (c *Catalog) visible() (services []*wire.Encoded, stamps []uint32) {
	alone := len(c.active) == 1 // a source that is alone does not lapse
	if alone && c.active[0].items == nil {
		return c.active[0].whole, c.active[0].stamps
	}
	for _, p := range c.active {
		for _, it := range p.items {
			if alone || p.shows(it) {
				services, stamps = append(services, it.service), append(stamps, it.stamp)
			}
		}
	}
	return services, stamps
}

// lookup returns the item of that name that is published, or nil.
func (c *Catalog) lookup(name string) *item {
	for _, p := range c.active {
		if it := p.items[name]; p.shows(it) {
			return it
		}
	}
	return nil
}

// evaluate settles all parts anew, after their list has changed.
func (c *Catalog) evaluate() {
	for _, p := range c.active {
		if len(c.active) > 1 {
			p.index()
		}
	}
	c.claims = make(claim.Names[string, *item])
	for level, p := range c.active {
		for _, it := range p.items {
			it.level = int32(level)
			c.claims.Add(it.fqdn, it)
		}
	}
	t := c.transaction()
	for level := range c.active {
		for fqdn := range c.claims {
			t.settle(level, fqdn)
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
	t := c.transaction()
	for _, name := range d.Gone {
		t.remove(p, name)
	}
	for _, s := range d.Added {
		t.put(p, s, stamp)
	}
	for _, s := range d.Changed {
		t.put(p, s, stamp)
	}
	c.publish(t.settleAll(), p.left)
}

// lapse withdraws what the part publishes, as its lifetime is over, or publishes it again.
func (c *Catalog) lapse(p *part, lapsed bool) {
	t := c.transaction()
	for name := range p.items {
		t.doubt(name)
	}
	p.lapsed = lapsed
	c.publish(t.settleAll(), func(string) string { return "source " + p.name + " " + p.overdue() })
	logger, reason, services := p.logger(), p.overdue(), len(p.items)-p.hidden
	if lapsed {
		c.lines = append(c.lines, func() {
			logger.Error("source was away for its lifetime, its services are withdrawn", "reason", reason, "services", services)
		})
	}
}

// transaction is a change of one part, with all that follows from it in the parts after it.
type transaction struct {
	*Catalog

	before map[string]*wire.Encoded // what was published, nil for nothing, of each name that may change
	fqdns  map[string]struct{}      // those whose claims are to be settled
}

func (c *Catalog) transaction() transaction {
	return transaction{c, make(map[string]*wire.Encoded), make(map[string]struct{})}
}

// note notes what is published under the name before that changes.
func (t transaction) note(name string) {
	if _, noted := t.before[name]; noted {
		return
	}
	t.before[name] = nil
	if it := t.lookup(name); it != nil {
		t.before[name] = it.service
	}
}

// doubt has all that want the name of a service, or the fqdn of one of these, settled.
func (t transaction) doubt(name string) {
	t.note(name)
	for _, p := range t.active {
		if it := p.items[name]; it != nil {
			t.fqdns[it.fqdn] = struct{}{}
		}
	}
}

// remove removes the service of that name, if there is one.
func (t transaction) remove(p *part, name string) {
	it := p.items[name]
	if it == nil {
		return
	}
	t.doubt(name)
	p.conceal(it, "")
	delete(p.items, name)
	if p.level != inactive {
		t.claims.Remove(it.fqdn, it)
	}
}

// put adds a service, or replaces the one of its name.
func (t transaction) put(p *part, s *wire.Encoded, stamp uint32) {
	it, fqdn := p.items[s.Name()], s.FQDN()
	switch {
	case it != nil && it.service.Equal(s):
	case it != nil && it.fqdn == fqdn:
		t.note(s.Name())
		it.service, it.stamp = s, stamp
	default:
		t.note(s.Name())
		t.remove(p, s.Name())
		p.insert(s, stamp)
		t.doubt(s.Name())
	}
}

// settleAll settles all that is in doubt, from the first part to the last, and returns the
// difference.
func (t transaction) settleAll() Difference {
	if len(t.active) > 1 {
		for level := range t.active {
			for fqdn := range t.fqdns { // settle may add some of parts after the level
				t.settle(level, fqdn)
			}
		}
	}
	var d Difference
	for name, before := range t.before {
		switch after := t.lookup(name); {
		case after == nil && before != nil:
			d.Gone = append(d.Gone, name)
		case after == nil:
		case before == nil:
			d.Added = append(d.Added, after.service)
		case before != after.service && !before.Equal(after.service):
			d.Changed = append(d.Changed, after.service)
		}
	}
	return d
}

// settle finds out what hides the items of a level that have the fqdn. The levels before
// are settled.
func (t transaction) settle(level int, fqdn string) {
	var first *item // that is published
	for _, it := range t.claims[fqdn] {
		p := t.active[it.level]
		if int(it.level) == level {
			if by := t.hider(it, first); by != it.by {
				t.doubt(it.name())
				p.conceal(it, by)
			}
		}
		if first == nil && p.shows(it) {
			first = it
		}
	}
}

// hider returns what hides an item, or nothing, where the first item is published that has
// its fqdn: the first service of the parts before that has its fqdn or, rather, its name.
func (t transaction) hider(it, first *item) string {
	end := it.level
	if first != nil && first.level < end {
		end = first.level + 1
	} else {
		first = nil
	}
	for _, p := range t.active[:end] {
		if other := p.items[it.name()]; p.shows(other) {
			first = other
			break
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("service %s of %s", federation.Quote(first.name()), t.active[first.level].name)
}
