package source

import (
	"fmt"
	"log/slog"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// hasSeveralParts reports whether several sources may want a name. Where one is alone, there are no
// claims, as nothing of it is hidden.
func (c *Catalog) hasSeveralParts() bool { return len(c.parts) > 1 }

// applyChanges changes the part, and publishes what follows from it: with its first state, for the
// services that have waited for that as well. A name in both counts as changed.
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

// setLapsed withdraws what the part publishes, as its lifetime is over, or publishes it again.
func (c *Catalog) setLapsed(p *catalogPart, lapsed bool) {
	t := c.beginUpdate()
	for name := range p.items {
		t.recheckName(name)
	}
	p.lapsed = lapsed
	t.publishDecided()
	if reason, services := p.overdueReason(), len(p.items)-p.hidden; lapsed {
		p.logLater(func(logger *slog.Logger) {
			logger.Error("source was away for its lifetime, its services are withdrawn", "reason", reason, "services", services)
		})
	}
}

// partUpdate is a change of one part, with all that follows from it in the parts after it.
type partUpdate struct {
	*Catalog

	names map[string]struct{} // of services of which another one may be published, or none
	fqdns map[string]struct{} // those whose claims are to be decided
}

func (c *Catalog) beginUpdate() partUpdate {
	return partUpdate{c, make(map[string]struct{}), make(map[string]struct{})}
}

// recheckName has all that want the name of a service, or the fqdn of one of these, decided again.
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

// recheckWaiting has all decided again that waits for a part.
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

// publishDecided decides all that is in doubt, from the first part to the last, and has the registry
// publish what stands then under each name. The registry finds what is different, and tells what is
// new first, then what changes, and then what is gone: an fqdn that moves has an answer all the time.
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

// decideClaims finds out what hides the items of a level that have the fqdn. The levels before
// are decided.
func (t partUpdate) decideClaims(level int, fqdn string) {
	var first *partItem // that stands
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

// awaitedPart returns the first part that is not complete yet and may come to hide the item, or nil.
func (t partUpdate) awaitedPart(it *partItem) *catalogPart {
	for _, p := range t.parts[:it.part.level] {
		if !p.complete && p.mayClaim(it.service) {
			return p
		}
	}
	return nil
}

// describeHider returns what hides an item, or nothing, where the first item stands that has
// its fqdn: the first service of the parts before that has its fqdn or, rather, its name.
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
