package zone

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// Lookup returns the result for a name, lower case and absolute, and a type. It allocates only for
// names of addresses, and for services whose endpoints are hosts.
func (z *Zone) Lookup(name string, qtype uint16, now time.Time) (r Result) {
	r.Fill(z, name, qtype, now)
	return r
}

// Fill fills the zero Result as Lookup would return it. A caller whose stack is short saves a copy.
func (r *Result) Fill(z *Zone, name string, qtype uint16, now time.Time) {
	o := z.origins.ofQuery(name)
	if o == nil {
		return
	}
	r.zone, r.origin, r.Type = z, o, qtype
	r.match.findName(z, o, name, now)
	r.resolveType(now, false)
}

// resolveType sets the kind of the result, by what the match means for the type. With alone, hosts
// in our other zones count as hosts elsewhere.
func (r *Result) resolveType(now time.Time, alone bool) {
	m := &r.match
	// One test of existence for all types, before any look at the type.
	switch m.Role {
	case domain.Missing:
		r.Kind = [...]ResultKind{complete: NameError, awaited: Unsynced, unheard: Unheard}[r.zone.originExtent(r.origin, now)]
	case domain.Empty:
		if r.Kind = NoData; r.zone.originExtent(r.origin, now) != complete {
			r.Kind = Unsynced
		}
	case domain.EmptyAlways:
		r.Kind = NoData
	default:
		if m.Role == domain.Apex && (r.Type == dns.TypeSOA || m.offer == nil) && r.zone.originExtent(r.origin, now) != complete {
			r.Kind = Unsynced // a secondary must not see an empty zone with a new serial
			return
		}
		r.TTL, r.last = r.origin.negativeTTL, subtree.AllRanks
		if m.offer != nil {
			if m.offer.Subtree.SharedName() != nil && m.isAddressed(r.Type) {
				r.limitShared(now, alone)
			}
			r.TTL, r.stale = r.zone.matchTTL(m, m.answeringMembers(r.Type, r.last), now)
		}
		r.Kind = r.findKind(now, alone)
	}
}

// isAddressed reports whether the query asks for addresses, and the match is a name that has those
// of its endpoints.
func (m *nameMatch) isAddressed(qtype uint16) bool {
	return (qtype == dns.TypeA || qtype == dns.TypeAAAA) && m.Role != domain.Protocol && m.Role != domain.Address
}

// findKind returns whether the name, which exists, has records of the type, as a kind.
func (r *Result) findKind(now time.Time, alone bool) ResultKind {
	m := &r.match
	has := false
	switch r.Type {
	case dns.TypeANY:
		has = m.Role != domain.NameServer || len(r.origin.addresses) > 0
	case dns.TypeSOA, dns.TypeNS:
		if has = m.Role == domain.Apex; has {
			r.stale = nil // they are the zone's own
		}
	case dns.TypeA, dns.TypeAAAA:
		if m.offer != nil && m.offer.HasHost && m.isAddressed(r.Type) {
			return r.followHosts(now, alone)
		}
		has = r.hasAddress()
	case dns.TypeSRV:
		if m.Role == domain.Address || m.offer == nil || !m.hasTarget() {
			return NoData
		}
		kind := Success
		if m.offer.HasHost {
			kind = r.decideTargets(now, alone)
		}
		m.Endpoints = m.joinedTree().SortByRank(m.Endpoints) // so that the worst do not fit a message
		return kind
	case dns.TypeTXT:
		has = m.offer != nil && (m.Role == domain.Apex || m.Role == domain.Service || m.Role == domain.Instance)
	}
	if has {
		return Success
	}
	return NoData
}

// hasTarget reports whether an endpoint of the match has an SRV record.
func (m *nameMatch) hasTarget() bool {
	t, fqdn := m.joinedTree(), m.offer.FQDN()
	return slices.ContainsFunc(m.Endpoints, func(i uint16) bool { return t.HasTarget(i, fqdn) })
}

// hasAddress reports whether the match itself has an address of the type.
func (r *Result) hasAddress() bool {
	m := &r.match
	switch m.Role {
	case domain.NameServer:
		return len(r.origin.addressesOf(r.Type)) > 0
	case domain.Address:
		return record.TypeHolds(r.Type, m.Address)
	case domain.Protocol:
		return false
	}
	if m.offer == nil {
		return false
	}
	t := m.joinedTree()
	return slices.ContainsFunc(m.Endpoints, func(i uint16) bool {
		ip, ok := t.Endpoint(i).Address.IP()
		return ok && record.TypeHolds(r.Type, ip)
	})
}

// matchName returns what a name of the origin stands for.
func (z *Zone) matchName(o *zoneOrigin, name string, now time.Time) (m nameMatch) {
	m.findName(z, o, name, now)
	return m
}

// findName fills the zero match with what a name of the origin stands for. It looks for a service
// first, because most queries ask for one.
func (m *nameMatch) findName(z *Zone, o *zoneOrigin, name string, now time.Time) {
	n := z.tree.Node(name)
	if n != nil && name != o.name {
		if p := z.tree.Holder(o.name, name, n, now); p != nil {
			m.Role, m.offer, m.Endpoints = domain.Service, p, p.Subtree.Joined().SelectAll()
			return
		}
	}
	switch {
	case name == o.name:
		m.Role = domain.Apex
		if m.offer = z.tree.FirstOffer(n, now); m.offer != nil { // nothing is above
			m.Endpoints = m.joinedTree().SelectAll()
		}
	case name == o.dns:
		m.Role = domain.EmptyAlways
	case name == o.ns:
		m.Role = domain.NameServer
	case !domain.IsWithin(name, o.dns):
		m.deriveName(z, o, name, n, now)
	}
}

// deriveName fills the match for a name that is no service's fqdn, from the names that the services
// above derive. N is the node of the name, or nil.
//
// The lowest of these services that derives records from the name has it. Otherwise the name is an
// empty non-terminal if it is one for any of them. A service further up whose owner comes first
// would have kept the lower one from being published (package precedence), so only the empty
// non-terminals of such a service must be kept here.
func (m *nameMatch) deriveName(z *Zone, o *zoneOrigin, name string, n *precedence.Node, now time.Time) {
	empty := domain.Missing
	if n.HasNodesBelow() {
		empty = domain.Empty
	}
	first := ^uint32(0) // the owner of the empty non-terminal
	deeper := false
	for at := name; at != o.name; {
		at = domain.Parent(at)
		p := z.holderAt(o, at, now)
		if p == nil {
			continue
		}
		m.Match, m.offer = p.Subtree.Joined().MatchLabels(domain.RelativeLabels(name, at)), p
		switch {
		case m.Role == domain.Missing || deeper && z.isShadowed(o, m, now):
		case m.Role == domain.Empty || m.Role == domain.EmptyAlways:
			empty, first = m.Role, min(first, p.Owner)
		case p.Owner <= first:
			return
		}
		deeper = true
	}
	*m = nameMatch{}
	m.Role = empty
}

// holderAt returns the offer that is published at a name of the origin, or nil.
func (z *Zone) holderAt(o *zoneOrigin, name string, now time.Time) *precedence.Offer {
	n := z.tree.Node(name)
	if n == nil {
		return nil
	}
	return z.tree.Holder(o.name, name, n, now)
}

// isShadowed reports whether another service has the name of the instance, with service labels
// before which the match was found: that service has everything below the name as well.
func (z *Zone) isShadowed(o *zoneOrigin, m *nameMatch, now time.Time) bool {
	return m.Instance != nil && (m.Role == domain.Protocol || m.Role == domain.EmptyAlways) &&
		z.matchName(o, domain.JoinLabels(m.Instance.Label, m.offer.FQDN()), now).offer != m.offer
}
