package zone

import "github.com/hamlet-federation/coredns-federation/federation"

// Prepared is a service compiled for one owner of one Builder.
type Prepared struct {
	owner   int
	service *federation.Service
	entry   *entry // nil once it is part of a zone
}

// Prepare does most of the work of Put beforehand, for PutPrepared. In contrast to
// all other methods it may be called by any goroutine at any time: a service that
// takes long to compile must not take the time of those who share the Builder. It
// returns nil when Put has nothing to compile: current, a version of the zone if
// there is one, has the service already, or it is not admitted.
func (b *Builder) Prepare(current *Zone, owner int, s *federation.Service) *Prepared {
	fqdn, invalid := b.config.Admit(owner, s.FQDN)
	if invalid != nil {
		return nil
	}
	if current != nil {
		var buf [4]*entry
		for _, e := range current.index.Get(fqdn.String()).offers(buf[:0]) {
			if int(e.owner) == owner && e.service.Equal(s) {
				return nil
			}
		}
	}
	// Of the builder this reads only what never changes.
	return &Prepared{owner, s, compile(s, fqdn.String(), b.origins, owner, 0)}
}

// PutPrepared is Put for a service that was prepared.
func (b *Builder) PutPrepared(p *Prepared, generation uint64) {
	b.put(p.owner, p.service, generation, p)
}

// take returns what was prepared, once: from then on it is part of the zone.
func (p *Prepared) take(generation uint64) *entry {
	if p == nil || p.entry == nil {
		return nil
	}
	e := p.entry
	p.entry, e.generation = nil, generation
	return e
}
