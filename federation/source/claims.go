package source

import (
	"fmt"
	"log/slog"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// shared reports whether several sources may want a name. Where one is alone, there are no
// claims, as nothing of it is hidden.
func (c *Catalog) shared() bool { return len(c.parts) > 1 }

// apply changes the part, and publishes what follows from it: with its first state, for the
// services that have waited for that as well. A name in both counts as changed.
func (p *part) apply(changed []*wire.EncodedService, gone []string, first bool) {
	t := p.catalog.transaction()
	if first {
		t.doubtWaiting(p)
	}
	for _, name := range gone {
		t.remove(p, name)
	}
	for _, s := range changed {
		t.put(p, s)
	}
	t.publish()
}

// lapse withdraws what the part publishes, as its lifetime is over, or publishes it again.
func (c *Catalog) lapse(p *part, lapsed bool) {
	t := c.transaction()
	for name := range p.items {
		t.doubt(name)
	}
	p.lapsed = lapsed
	t.publish()
	if reason, services := p.overdue(), len(p.items)-p.hidden; lapsed {
		p.log(func(logger *slog.Logger) {
			logger.Error("source was away for its lifetime, its services are withdrawn", "reason", reason, "services", services)
		})
	}
}

// transaction is a change of one part, with all that follows from it in the parts after it.
type transaction struct {
	*Catalog

	names map[string]struct{} // of services of which another one may be published, or none
	fqdns map[string]struct{} // those whose claims are to be settled
}

func (c *Catalog) transaction() transaction {
	return transaction{c, make(map[string]struct{}), make(map[string]struct{})}
}

// doubt has all that want the name of a service, or the fqdn of one of these, settled.
func (t transaction) doubt(name string) {
	t.names[name] = struct{}{}
	if !t.shared() {
		return
	}
	for _, p := range t.parts {
		if it := p.items[name]; it != nil {
			t.fqdns[it.service.FQDN()] = struct{}{}
		}
	}
}

// doubtWaiting has all settled that waits for a part.
func (t transaction) doubtWaiting(of *part) {
	for _, p := range t.parts[of.level+1:] {
		for name, it := range p.items {
			if it.awaits == of {
				t.doubt(name)
			}
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
	it.conceal("")
	delete(p.items, name)
	t.claims.Remove(it.service.FQDN(), it)
}

// put adds a service, or replaces the one of its name.
func (t transaction) put(p *part, s *wire.EncodedService) {
	it, name := p.items[s.Name()], s.Name()
	switch {
	case it != nil && it.service.Equal(s):
	case it != nil && it.service.FQDN() == s.FQDN():
		t.names[name] = struct{}{}
		it.service = s
	default:
		t.names[name] = struct{}{}
		t.remove(p, name)
		it = &item{part: p, service: s}
		p.items[name] = it
		if t.shared() {
			t.claims.Add(s.FQDN(), it)
			t.doubt(name)
		}
	}
}

// publish settles all that is in doubt, from the first part to the last, and has the registry
// publish what stands then under each name. The registry finds what is different, and tells what is
// new first, then what changes, and then what is gone: an fqdn that moves has an answer all the time.
func (t transaction) publish() {
	for level := range t.parts {
		for fqdn := range t.fqdns { // settle may add some of parts after the level
			t.settle(level, fqdn)
		}
	}
	var changed []*wire.EncodedService
	var gone []string
	for name := range t.names {
		if it := t.lookup(name); it != nil {
			changed = append(changed, it.service)
		} else {
			gone = append(gone, name)
		}
	}
	t.registry.UpdateEncoded(changed, gone)
}

// settle finds out what hides the items of a level that have the fqdn. The levels before
// are settled.
func (t transaction) settle(level int, fqdn string) {
	var first *item // that stands
	for _, it := range t.claims[fqdn] {
		if it.part.level == level {
			if by, awaits := t.hider(it, first), t.awaited(it); by != it.by || awaits != it.awaits {
				t.doubt(it.name())
				it.conceal(by)
				it.awaits = awaits
			}
		}
		if first == nil && it.stands() {
			first = it
		}
	}
}

// awaited returns the first part that is not complete yet and may come to hide the item, or nil.
func (t transaction) awaited(it *item) *part {
	for _, p := range t.parts[:it.part.level] {
		if !p.complete && p.mayClaim(it.service) {
			return p
		}
	}
	return nil
}

// hider returns what hides an item, or nothing, where the first item stands that has
// its fqdn: the first service of the parts before that has its fqdn or, rather, its name.
func (t transaction) hider(it, first *item) string {
	end := it.part.level
	if first != nil && first.part.level < end {
		end = first.part.level + 1
	} else {
		first = nil
	}
	for _, p := range t.parts[:end] {
		if other := p.items[it.name()]; other.stands() {
			first = other
			break
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("service %s of %s", federation.Quote(first.name()), first.part.Name)
}
