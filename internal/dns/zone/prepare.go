package zone

import (
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// PreparedOffer is what a server block makes of a service: the verdict, and the service compiled.
type PreparedOffer struct {
	owner   int
	service packed.Service
	offer   *precedence.Offer // nil where it is not published
	shared  bool              // with other owners that offer a service of that name
	refused Fault             // why it is not admitted, though it is imported; "" otherwise
}

// Prepare judges a service, packed as p and unpacked as s, and compiles it for Put.
// Of s it keeps nothing but strings, which are in the memory of p. It may be called on any
// goroutine, also while the Builder is used: the writer has little left to do then.
func (b *Builder) Prepare(owner int, p packed.Service, s *federation.Service) PreparedOffer {
	made := PreparedOffer{owner: owner, service: p}
	fqdn, imported, invalid := b.config.JudgeFQDN(owner, s.FQDN)
	switch {
	case !imported:
	case invalid != nil:
		made.refused = Fault(invalid.Reason)
	default:
		made.offer = precedence.NewOffer(p, s, fqdn.String(), owner, b.refuseName)
		made.shared = b.config.Owners[owner].Sharing.matchesName(fqdn)
	}
	return made
}
