package zone

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// maxRivals bounds the rivals of an explanation: an owner can offer all of its services
// under one name.
const maxRivals = 100

// Explain returns why Lookup finds what it finds for a name, lower case and absolute, and a type:
// what the zone knows of the answer. It also returns the owners that may publish in the zone, by
// index in Config.Owners, in order. For a name outside of the zones it returns nothing. It changes
// nothing, and is not for queries, because it looks at all services that want the name.
func (z *Zone) Explain(name string, qtype uint16, now time.Time) (a status.BlockAnswer, owners []int) {
	r := z.Lookup(name, qtype, now)
	if r.Kind == Outside {
		return a, nil
	}
	o, m := r.origin, &r.match
	a = status.BlockAnswer{Zone: o.name, Serial: o.serial, Is: m.Role.String(), Verdict: r.verdict()}
	if m.offer != nil {
		a.Holder = z.explainHolder(m)
		if m.offer.Subtree.SharedName() != nil {
			a.Holder.Owners = r.OwnerIDs()
			all, addressed := z.matchName(o, name, now), z.Lookup(name, dns.TypeA, now)
			z.explainShared(a.Holder, &all, qtype, addressed.last)
		}
	}
	if r.Kind == NameError {
		a.Nearest = z.NearestNames(name, now)
	}
	if qtype == dns.TypeA || qtype == dns.TypeAAAA || qtype == dns.TypeSRV {
		a.Circle = z.findCircle(m, now)
	}
	if !domain.IsWithin(name, o.dns) { // where no service can be
		a.Rivals, a.MoreRivals = z.explainRivals(o, name, m, now)
	}
	return a, slices.Clone(o.owners)
}

// verdict returns why the look-up has that result. Addresses of hosts may still change the verdict.
func (r *Result) verdict() status.AnswerVerdict {
	switch r.Kind {
	case Success, Indirect:
		switch {
		case r.IsStale():
			return status.Stale
		case r.match.offer == nil || r.Type == dns.TypeSOA || r.Type == dns.TypeNS:
			return status.OwnData
		}
		return status.Live
	case NoData:
		if r.IsDenied() {
			return status.Denied
		}
		return status.NoData
	case NameError:
		if r.HasLostOwner() {
			return status.NoNameLost
		}
		return status.NoName
	case Unsynced, Unheard, Outside:
	}
	return status.NotKnownYet
}

// explainHolder returns the service of a match.
func (z *Zone) explainHolder(m *nameMatch) *status.NameHolder {
	of := m.offer
	owner, p, in := m.findSource()
	s := p.Unpack()
	h := &status.NameHolder{
		Owner: z.owners[owner].id, Service: s.Name, FQDN: of.FQDN(), Updated: updatedAt(of), Stale: z.tree.IsStale(of), Faults: z.tree.OfferFaults(of),
	}
	if original := s.FQDN.String(); original != h.FQDN {
		h.Original = original
	}
	if in != nil {
		h.Instance = s.Instances[in.Index].ID
	}
	if h.Stale {
		h.Expires = z.owners[of.Owner].staleEnd().UTC()
	}
	return h
}

// explainRivals returns the other services that want the name which a match stands for, in order of
// precedence, and how many there are beside.
func (z *Zone) explainRivals(o *zoneOrigin, name string, m *nameMatch, now time.Time) (rivals []status.RivalService, more int) {
	var wanting []*precedence.Offer
	for of := range z.tree.OffersWanting(o.name, name) {
		switch {
		case of == m.offer:
		case len(wanting) == maxRivals:
			more++
		default:
			wanting = append(wanting, of)
		}
	}
	slices.SortStableFunc(wanting, func(x, y *precedence.Offer) int { return cmp.Compare(x.Owner, y.Owner) })
	for _, of := range wanting {
		rivals = append(rivals, status.RivalService{
			Owner: z.owners[of.Owner].id, Service: serviceName(of), FQDN: of.FQDN(), Rule: z.explainLoss(o, name, of, m, now),
		})
	}
	return rivals, more
}

// findCircle returns a host that the endpoints of a match lead to and that leads back to itself, or
// "".
func (z *Zone) findCircle(m *nameMatch, now time.Time) string {
	on, seen := make(map[string]bool), make(map[string]bool) // hosts between the match and here; all that were met
	var lead func(m *nameMatch) string
	lead = func(m *nameMatch) string {
		if m.offer == nil {
			return ""
		}
		for _, i := range m.Endpoints {
			address, ok := m.joinedTree().Endpoint(i).Address.Host()
			host := address.String()
			o := z.origins.ofQuery(host)
			switch {
			case on[host]:
				return host
			case !ok || o == nil || seen[host] || len(seen) == maxFollowed:
				continue
			}
			on[host], seen[host] = true, true
			at := z.matchName(o, host, now)
			if found := lead(&at); found != "" {
				return found
			}
			delete(on, host)
		}
		return ""
	}
	return lead(m)
}

// updatedAt returns when the version of an offer came, or zero where that is not known.
func updatedAt(of *precedence.Offer) time.Time {
	if of.Updated == 0 {
		return time.Time{}
	}
	return time.Unix(int64(of.Updated), 0).UTC()
}

// explainShared adds the endpoints of a shared name, each with whether it is answered and why. Last
// is the last rank whose addresses are answered.
func (z *Zone) explainShared(h *status.NameHolder, m *nameMatch, qtype uint16, last subtree.Rank) {
	t := m.joinedTree()
	shared := t.SharedName()
	if m.Role == domain.Address {
		return
	}
	h.Stale = true
	for _, i := range t.SortByRank(m.Endpoints) {
		e, rank := t.Endpoint(i), shared.EndpointRank(i)
		one := status.SharedEndpoint{
			Endpoint: federation.Endpoint{Address: e.Address, Port: e.Port}.String(), Tier: rank.Tier(),
			Answered: qtype == dns.TypeSRV || m.Role != domain.Protocol && rank <= last,
		}
		switch {
		case rank.IsStale():
			one.Rule, one.Expires = "its owner is lost, so live endpoints go first", z.lastExpiry(shared, i)
		case one.Answered:
			one.Rule = "it is live"
		default:
			one.Rule = "it is live, but better tiers have enough live endpoints (min)"
		}
		for member := range shared.MembersSaying(i).Each {
			one.Owners = append(one.Owners, z.owners[m.memberOwner(member)].id)
		}
		h.Shared, h.Stale = append(h.Shared, one), h.Stale && rank.IsStale()
	}
}

// lastExpiry returns when the last of the owners that say an endpoint expires; zero is never.
func (z *Zone) lastExpiry(s *subtree.SharedName, i uint16) (last time.Time) {
	for member := range s.MembersSaying(i).Each {
		end := z.owners[s.Members[member].Owner].Expires.UTC()
		if end.IsZero() {
			return end
		}
		if last.Before(end) {
			last = end
		}
	}
	return last
}

// explainLoss returns why an offer that wants a name does not have it. The name is in the origin,
// and m is what the name stands for.
func (z *Zone) explainLoss(o *zoneOrigin, name string, of *precedence.Offer, m *nameMatch, now time.Time) string {
	switch by, alive := z.tree.TakenBy(o.name, of, now); {
	case !alive:
		return "it was stale for the whole retention, so it has expired"
	case by == nil:
	case by.FQDN() != of.FQDN():
		return fmt.Sprintf("that is a name of service %s at %s, whose owner %s comes first in the Corefile",
			safetext.Quote(serviceName(by)), by.FQDN(), z.owners[by.Owner].id)
	case by.Owner == of.Owner:
		return fmt.Sprintf("service %s of the same owner has that name, because it comes first in the alphabet", safetext.Quote(serviceName(by)))
	default:
		return fmt.Sprintf("owner %s, whose service %s has that name, comes first in the Corefile%s",
			z.owners[by.Owner].id, safetext.Quote(serviceName(by)), z.explainUnshared(of, by))
	}
	// The service is published, further up.
	if m.offer == nil {
		return "a service closer to the name, whose owner comes first in the Corefile, has it as a name without records"
	}
	by, at := safetext.Quote(serviceName(m.offer)), m.offer.FQDN()
	switch {
	case at == name:
		return fmt.Sprintf("the name is the fqdn of service %s of owner %s, which goes before the name of an instance", by, z.owners[m.offer.Owner].id)
	case len(at) > len(of.FQDN()):
		return fmt.Sprintf("service %s of owner %s is closer to the name, at %s", by, z.owners[m.offer.Owner].id, at)
	}
	return fmt.Sprintf("service %s of owner %s has the name of its instance, or a name above it, at %s", by, z.owners[m.offer.Owner].id, at)
}

// serviceName returns the name of the service of an offer. For a shared name it is that of the
// first owner.
func serviceName(of *precedence.Offer) string {
	if s := of.Subtree.SharedName(); s != nil {
		return s.Members[0].Service.Name()
	}
	return of.Service.Name()
}

// explainUnshared returns a clause about which of two owners does not share a name that the other
// shares, or "".
func (z *Zone) explainUnshared(of, by *precedence.Offer) string {
	if (of.Subtree.SharedName() != nil) == (by.Subtree.SharedName() != nil) {
		return ""
	}
	if of.Subtree.SharedName() != nil {
		of = by
	}
	return fmt.Sprintf("; the block of %s does not share the name", z.owners[of.Owner].id)
}

// NameConflict is a service whose name a service of an earlier owner has.
type NameConflict struct {
	FQDN, Service string
	By            int // the owner of the other service, by index in Config.Owners
}

// FirstConflict returns the first service of an owner, by fqdn, whose name a service of another
// owner has, and whether there is one. It looks at all services, and is not for queries.
func (z *Zone) FirstConflict(owner int, now time.Time) (first NameConflict, found bool) {
	var buf [4]*precedence.Offer
	for at := range z.tree.All() {
		fqdn := at.Name
		for _, of := range at.Value.AppendOffers(buf[:0]) {
			if int(of.Owner) != owner || found && fqdn >= first.FQDN {
				continue
			}
			if by, _ := z.tree.TakenBy(z.origins.originOf(fqdn).name, of, now); by != nil && by.FQDN() == fqdn && by.Owner != of.Owner {
				first, found = NameConflict{fqdn, serviceName(of), int(by.Owner)}, true
			}
		}
	}
	return first, found
}

// OfferedService is a service that an owner publishes, or would publish if no earlier owner had its
// name.
type OfferedService struct {
	Service packed.Service
	Updated time.Time // when this version came; zero: it is not known
	Stale   bool
}

// OfferedServices returns the admitted and imported services of the owner at an index, in no order.
func (z *Zone) OfferedServices(owner int) (all []OfferedService) {
	add := func(offers []*precedence.Offer) {
		for _, of := range offers {
			if int(of.Owner) == owner && of.Subtree.SharedName() == nil {
				all = append(all, OfferedService{of.Service, updatedAt(of), z.tree.IsStale(of)})
			}
		}
	}
	var buf [4]*precedence.Offer
	for at := range z.tree.All() {
		add(at.Value.AppendOffers(buf[:0]))
	}
	for at := range z.shared.All() {
		add(at.Value.offers)
	}
	return all
}
