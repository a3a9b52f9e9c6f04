package zone

import (
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// PreparedOffer is what a server block makes of a service: whether the service is admitted, and its
// records.
type PreparedOffer struct {
	owner   int
	service packed.Service
	offer   *precedence.Offer // nil where the service is not published
	shared  bool              // the owner shares the name with others
	refused Fault             // why an imported service is not admitted, or ""
}

// Prepare returns an offer for Put of a service, packed as p and unpacked as s. The offer keeps
// only strings of s, which are in the memory of p. Prepare may be called on any goroutine, even
// while the Builder is used, so that the writer has little left to do.
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
