package zone

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// maxRivals bounds the rivals of a NameExplanation: an owner can offer all of its services
// under one name.
const maxRivals = 100

// NameExplanation says why Lookup finds what it finds. Unless Result is Outside, the other fields
// are set.
type NameExplanation struct {
	Result Result // of Lookup
	Role   domain.Role
	Owners []int // owners that may publish in the zone, by index in Config.Owners, in order

	Holder *Holder // nil: no service has the name
	Circle string  // a host that the endpoints lead to and that leads back to itself, so that it has no address; or ""
	Rivals []Rival // the other services that want the name, in order of precedence, 100 at most
	More   int     // how many other rivals there are
}

// Holder is the service that has a name.
type Holder struct {
	Owner    int    // by index in Config.Owners
	Service  string // its name
	FQDN     string // where it is published
	Original string // the fqdn that the owner has sent
	Instance string // the ID of the instance that has the name, if one has
	Updated  time.Time
	Stale    bool
	Expires  time.Time     // when it goes, if it is stale; zero: it stays
	Faults   map[Fault]int // names and records of the service that are not published

	// Of a name that owners share:
	Part   []int            // the owners whose data is in the answer, by index in Config.Owners
	Shared []SharedEndpoint // the endpoints of the name, the best first
}

// SharedEndpoint is an endpoint of a name that owners share.
type SharedEndpoint struct {
	Address  string // or host
	Port     uint16
	Owners   []int // owners that publish the endpoint, by index in Config.Owners
	Tier     int
	Live     bool // one of its owners is not lost
	Answered bool // for the type of the query: as an address of the name, unless that is SRV
}

// Rival is a service that wants a name which another service has.
type Rival struct {
	Owner   int // by index in Config.Owners
	Service string
	FQDN    string // where it would be published
	Rule    string // why it does not have the name, a clause
}

// Explain returns why Lookup finds what it finds for a name, lower case and absolute, and a type.
// It changes nothing. It is not for queries, because it looks at all services that want the name.
func (z *Zone) Explain(name string, qtype uint16, now time.Time) *NameExplanation {
	e := &NameExplanation{Result: z.Lookup(name, qtype, now)}
	if e.Result.Kind == Outside {
		return e
	}
	o, m := e.Result.origin, &e.Result.match
	e.Role, e.Owners = m.Role, slices.Clone(o.owners)
	if e.Holder = z.explainHolder(m); m.offer != nil && m.offer.Subtree.SharedName() != nil {
		addressed := z.Lookup(name, dns.TypeA, now)
		for member := range m.answeringMembers(qtype, e.Result.last).Each {
			e.Holder.Part = append(e.Holder.Part, int(m.memberOwner(member)))
		}
		all := z.matchName(o, name, now)
		e.Holder.explainShared(&all, qtype, addressed.last)
	}
	if qtype == dns.TypeA || qtype == dns.TypeAAAA || qtype == dns.TypeSRV {
		e.Circle = z.findCircle(m, now)
	}
	if domain.IsWithin(name, o.dns) {
		return e // no service can have it
	}
	for of := range z.tree.OffersWanting(o.name, name) {
		switch {
		case of == m.offer:
		case len(e.Rivals) == maxRivals:
			e.More++
		default:
			e.Rivals = append(e.Rivals, Rival{
				Owner: int(of.Owner), Service: serviceName(of), FQDN: of.FQDN(), Rule: z.explainLoss(o, name, of, m, now),
			})
		}
	}
	slices.SortStableFunc(e.Rivals, func(x, y Rival) int { return x.Owner - y.Owner })
	return e
}

// explainHolder returns the service of a match, or nil.
func (z *Zone) explainHolder(m *nameMatch) *Holder {
	if m.offer == nil {
		return nil
	}
	of := m.offer
	owner, p, in := m.findSource()
	s := p.Unpack()
	h := &Holder{
		Owner: int(owner), Service: s.Name, FQDN: of.FQDN(), Original: s.FQDN.String(), Updated: updatedAt(of), Stale: z.tree.IsStale(of), Faults: z.tree.OfferFaults(of),
	}
	if in != nil {
		h.Instance = s.Instances[in.Index].ID
	}
	if h.Stale {
		h.Expires = z.owners[of.Owner].staleEnd()
	}
	return h
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

// explainShared adds the endpoints of a shared name, each with whether it is answered. Last is the
// last rank whose addresses are answered.
func (h *Holder) explainShared(m *nameMatch, qtype uint16, last subtree.Rank) {
	t := m.joinedTree()
	shared := t.SharedName()
	if m.Role == domain.Address {
		return
	}
	for _, i := range t.SortByRank(m.Endpoints) {
		e, rank := t.Endpoint(i), shared.EndpointRank(i)
		one := SharedEndpoint{
			Address: e.Address.String(), Port: e.Port, Tier: rank.Tier(), Live: !rank.IsStale(),
			Answered: qtype == dns.TypeSRV || m.Role != domain.Protocol && rank <= last,
		}
		for member := range shared.MembersSaying(i).Each {
			one.Owners = append(one.Owners, int(m.memberOwner(member)))
		}
		h.Shared = append(h.Shared, one)
	}
	h.Stale = !slices.ContainsFunc(h.Shared, func(e SharedEndpoint) bool { return e.Live })
}

// explainLoss returns why an offer that wants a name does not have it. The name is in the origin,
// and m is what the name stands for.
func (z *Zone) explainLoss(o *zoneOrigin, name string, of *precedence.Offer, m *nameMatch, now time.Time) string {
	switch loss, by := z.tree.ExplainLoss(o.name, of, now); loss {
	case precedence.Expired:
		return "it was stale for the whole retention, so it has expired"
	case precedence.OwnerLater:
		return fmt.Sprintf("owner %s, whose service %s has that name, comes first in the Corefile%s",
			z.owners[by.Owner].id, safetext.Quote(serviceName(by)), z.explainUnshared(of, by))
	case precedence.NameLarger:
		return fmt.Sprintf("service %s of the same owner has that name, because it comes first in the alphabet", safetext.Quote(serviceName(by)))
	case precedence.TakenAbove:
		return fmt.Sprintf("that is a name of service %s at %s, whose owner %s comes first in the Corefile",
			safetext.Quote(serviceName(by)), by.FQDN(), z.owners[by.Owner].id)
	case precedence.NoLoss:
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
			if loss, by := z.tree.ExplainLoss(z.origins.originOf(fqdn).name, of, now); loss == precedence.OwnerLater {
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
func (z *Zone) OfferedServices(owner int) iter.Seq[OfferedService] {
	return func(yield func(OfferedService) bool) {
		var buf [4]*precedence.Offer
		each := func(offers []*precedence.Offer) bool {
			for _, of := range offers {
				if int(of.Owner) == owner && of.Subtree.SharedName() == nil && !yield(OfferedService{of.Service, updatedAt(of), z.tree.IsStale(of)}) {
					return false
				}
			}
			return true
		}
		for at := range z.tree.All() {
			if !each(at.Value.AppendOffers(buf[:0])) {
				return
			}
		}
		for at := range z.shared.All() {
			if !each(at.Value.offers) {
				return
			}
		}
	}
}
