package source

import (
	"fmt"
	"log/slog"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// hasSeveralParts reports whether several sources may want a name. A single source has no claims,
// because nothing hides its services.
func (c *Catalog) hasSeveralParts() bool { return len(c.parts) > 1 }

// applyChanges changes the services of the part, and publishes the consequences. With first, this
// is the first state of the part, so that services of other parts that have waited for it are
// decided as well. A name in both lists counts as changed.
func (p *catalogPart) applyChanges(changed []*wire.EncodedService, gone []string, first bool) {
	t := p.catalog.beginUpdate()
	if first {
		t.recheckWaiting(p)
	}
	for _, name := range gone {
		t.removeService(p, name)
	}
	for _, s := range changed {
		t.putService(p, s)
	}
	t.publishDecided()
}

// setLapsed withdraws the services of the part because its lifetime is over, or publishes them
// again.
func (c *Catalog) setLapsed(p *catalogPart, lapsed bool) {
	t := c.beginUpdate()
	for name := range p.items {
		t.recheckName(name)
	}
	p.lapsed = lapsed
	t.publishDecided()
	if reason, services := p.overdueReason(), len(p.items)-p.hidden; lapsed {
		p.logLater(func(logger *slog.Logger) {
			logger.Error("source was away for longer than its lifetime, so its services are withdrawn", "reason", reason, "services", services)
		})
	}
}

// partUpdate is one change of a part, with its consequences for the parts after it. It is made and
// used under the mutex of the catalog, and holds the names and fqdns that are in doubt until
// publishDecided decides them.
type partUpdate struct {
	*Catalog

	names map[string]struct{} // names under which another service may be published now, or none
	fqdns map[string]struct{} // fqdns whose claims are to be decided
}

func (c *Catalog) beginUpdate() partUpdate {
	return partUpdate{c, make(map[string]struct{}), make(map[string]struct{})}
}

// recheckName puts the name of a service in doubt, and the fqdns of all services of that name.
func (t partUpdate) recheckName(name string) {
	t.names[name] = struct{}{}
	if !t.hasSeveralParts() {
		return
	}
	for _, p := range t.parts {
		if it := p.items[name]; it != nil {
			t.fqdns[it.service.FQDN()] = struct{}{}
		}
	}
}

// recheckWaiting puts all services in doubt that wait for a part.
func (t partUpdate) recheckWaiting(of *catalogPart) {
	for _, p := range t.parts[of.level+1:] {
		for name, it := range p.items {
			if it.awaits == of {
				t.recheckName(name)
			}
		}
	}
}

// removeService removes the service of that name, if there is one.
func (t partUpdate) removeService(p *catalogPart, name string) {
	it := p.items[name]
	if it == nil {
		return
	}
	t.recheckName(name)
	it.setHiddenBy("")
	delete(p.items, name)
	t.claims.Remove(it.service.FQDN(), it)
}

// putService adds a service, or replaces the one of its name.
func (t partUpdate) putService(p *catalogPart, s *wire.EncodedService) {
	it, name := p.items[s.Name()], s.Name()
	switch {
	case it != nil && it.service.Equal(s):
	case it != nil && it.service.FQDN() == s.FQDN():
		t.names[name] = struct{}{}
		it.service = s
	default:
		t.names[name] = struct{}{}
		t.removeService(p, name)
		it = &partItem{part: p, service: s}
		p.items[name] = it
		if t.hasSeveralParts() {
			t.claims.Add(s.FQDN(), it)
			t.recheckName(name)
		}
	}
}

// publishDecided decides everything that is in doubt, from the first part to the last, and makes
// the registry publish the result for each name. The registry compares, and tells consumers first
// what is new, then what changes, and then what is gone, so that an fqdn that moves has an answer
// all the time.
func (t partUpdate) publishDecided() {
	for level := range t.parts {
		for fqdn := range t.fqdns { // decideClaims may add some of parts after the level
			t.decideClaims(level, fqdn)
		}
	}
	var changed []*wire.EncodedService
	var gone []string
	for name := range t.names {
		if it := t.publishedService(name); it != nil {
			changed = append(changed, it.service)
		} else {
			gone = append(gone, name)
		}
	}
	t.registry.UpdateEncoded(changed, gone)
}

// decideClaims decides what hides the items of a level that have the fqdn. The levels before are
// decided.
func (t partUpdate) decideClaims(level int, fqdn string) {
	var first *partItem // that is not hidden
	for _, it := range t.claims[fqdn] {
		if it.part.level == level {
			if by, awaits := t.describeHider(it, first), t.awaitedPart(it); by != it.hiddenBy || awaits != it.awaits {
				t.recheckName(it.serviceName())
				it.setHiddenBy(by)
				it.awaits = awaits
			}
		}
		if first == nil && it.hidesOthers() {
			first = it
		}
	}
}

// awaitedPart returns the first incomplete part whose source may come to hide the item, or nil.
func (t partUpdate) awaitedPart(it *partItem) *catalogPart {
	for _, p := range t.parts[:it.part.level] {
		if !p.complete && p.mayClaim(it.service) {
			return p
		}
	}
	return nil
}

// describeHider returns what hides an item, or "". First is the first item with its fqdn that is
// not hidden. The item is hidden by the first service of an earlier part that has its name or,
// without such a service, by first.
func (t partUpdate) describeHider(it, first *partItem) string {
	end := it.part.level
	if first != nil && first.part.level < end {
		end = first.part.level + 1
	} else {
		first = nil
	}
	for _, p := range t.parts[:end] {
		if other := p.items[it.serviceName()]; other.hidesOthers() {
			first = other
			break
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("service %s of %s", safetext.Quote(first.serviceName()), first.part.Name)
}
