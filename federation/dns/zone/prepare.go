package zone

import (
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// Prepared is a service compiled for one owner of one Builder.
type Prepared struct {
	owner   int
	service packed.Service
	offer   *precedence.Offer // nil once it is part of a zone
}

// Prepare compiles a service, packed as p and unpacked as s, for PutPrepared. Of s it
// keeps only strings. In contrast to all other methods, any
// goroutine may call it at any time: a large service takes up to 40 ms to compile,
// and the other owners of the Builder must not wait for that.
//
// It returns nil when Put would compile nothing, because the service is not
// imported or admitted, or the current version, if there is one, has it already.
func (b *Builder) Prepare(current *Zone, owner int, p packed.Service, s *federation.Service) *Prepared {
	fqdn, invalid := b.config.Admit(owner, s.FQDN)
	if invalid != nil || !b.config.imports(owner, s) {
		return nil
	}
	if current != nil {
		if o := current.tree.Node(fqdn.String()).Offer(owner, s.Name); o != nil && o.Service == p {
			return nil
		}
	}
	return &Prepared{owner, p, b.compile(owner, p, s, fqdn.String())}
}

// PutPrepared is PutPacked for a service that was prepared.
func (b *Builder) PutPrepared(p *Prepared, generation uint64, updated uint32) {
	b.put(p.owner, p.service, generation, updated, p)
}

// take returns the prepared offer, once. From then on the offer is part of the
// zone.
func (p *Prepared) take() *precedence.Offer {
	if p == nil || p.offer == nil {
		return nil
	}
	offer := p.offer
	p.offer = nil
	return offer
}
