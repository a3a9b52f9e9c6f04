package zone

import (
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/zone/record"
	"github.com/hamlet-federation/coredns-federation/federation/zone/subtree"
)

// Lookup returns what the zone has for a name, lower case and absolute, and a
// type. It allocates only for names of addresses, and for services whose endpoints
// are hosts.
func (z *Zone) Lookup(name string, qtype uint16, now time.Time) Result {
	o := z.origins.ofQuery(name)
	if o == nil {
		return Result{Kind: Outside}
	}
	r := Result{zone: z, origin: o, Type: qtype, match: z.match(o, name, now)}
	r.resolve(now, false)
	return r
}

// resolve decides what the match means for the type. With alone, hosts in our
// other zones count as hosts elsewhere.
func (r *Result) resolve(now time.Time, alone bool) {
	m := &r.match
	// One test of existence for all types, before any look at the type.
	switch m.Role {
	case domain.Missing:
		r.Kind = [...]Kind{complete: NameError, awaited: Unsynced, unheard: Unheard}[r.zone.extent(r.origin, now)]
	case domain.Empty:
		if r.Kind = NoData; r.zone.extent(r.origin, now) != complete {
			r.Kind = Unsynced
		}
	case domain.EmptyAlways:
		r.Kind = NoData
	default:
		if m.Role == domain.Apex && (r.Type == dns.TypeSOA || m.offer == nil) && r.zone.extent(r.origin, now) != complete {
			r.Kind = Unsynced // a secondary must not see an empty zone with a new serial
			return
		}
		r.TTL = r.origin.negativeTTL
		if m.offer != nil {
			r.TTL = r.zone.ttl(m.offer, now)
			r.age(m.offer)
		}
		r.Kind = r.kind(now, alone)
	}
}

// kind returns whether the name, which exists, has records of the type.
func (r *Result) kind(now time.Time, alone bool) Kind {
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
		if m.offer != nil && m.offer.HasHost && m.Role != domain.Protocol && m.Role != domain.Address {
			return r.follow(now, alone)
		}
		has = r.hasAddress()
	case dns.TypeSRV:
		has = m.Role != domain.Address && m.offer != nil && m.hasTarget()
	case dns.TypeTXT:
		has = m.offer != nil && (m.Role == domain.Apex || m.Role == domain.Service || m.Role == domain.Instance)
	}
	if has {
		return Success
	}
	return NoData
}

// hasTarget reports whether an endpoint of the match has an SRV record.
func (m *match) hasTarget() bool {
	t, fqdn := &m.offer.Subtree, m.offer.FQDN()
	return slices.ContainsFunc(m.Endpoints, func(i uint16) bool { return t.HasTarget(i, fqdn) })
}

// hasAddress reports whether the match itself has an address of the type.
func (r *Result) hasAddress() bool {
	m := &r.match
	switch m.Role {
	case domain.NameServer:
		return len(r.origin.addressesOf(r.Type)) > 0
	case domain.Address:
		return record.Holds(r.Type, m.Address)
	case domain.Protocol:
		return false
	}
	return slices.ContainsFunc(m.Endpoints, func(i uint16) bool {
		ip, ok := m.offer.Subtree.Endpoint(i).Address.IP()
		return ok && record.Holds(r.Type, ip)
	})
}

// match finds what the name, which is in the origin, stands for.
func (z *Zone) match(o *origin, name string, now time.Time) match {
	switch {
	case name == o.name:
		m := match{offer: z.tree.First(z.tree.Node(name), now)} // nothing is above
		if m.Role = domain.Apex; m.offer != nil {
			m.Endpoints = m.offer.Subtree.All()
		}
		return m
	case name == o.dns:
		return match{Match: subtree.Match{Role: domain.EmptyAlways}}
	case name == o.ns:
		return match{Match: subtree.Match{Role: domain.NameServer}}
	case domain.Within(name, o.dns):
		return match{}
	}
	// Of the services above the name, the lowest that derives records from it has
	// it, and else it is an empty non-terminal if it is one of any of them. A
	// service further up whose owner comes first would have kept the lower one from
	// being published (package precedence), so only its empty non-terminals must be
	// kept here.
	var result match
	first := ^uint32(0) // the owner of the empty non-terminal
	deeper := false
	for at := name; ; at = domain.Parent(at) {
		if n := z.tree.Node(at); n != nil {
			p := z.tree.Holder(o.name, at, n, now)
			switch {
			case at == name && p != nil:
				return match{Match: subtree.Match{Role: domain.Service, Endpoints: p.Subtree.All()}, offer: p}
			case at == name && n.Above():
				result.Role = domain.Empty
			case at != name && p != nil:
				m := match{Match: p.Subtree.Match(domain.Relative(name, at)), offer: p}
				switch {
				case m.Role == domain.Missing || deeper && z.shadowed(o, &m, now):
				case m.Role == domain.Empty || m.Role == domain.EmptyAlways:
					result.Role, first = m.Role, min(first, p.Owner)
				case p.Owner <= first:
					return m
				}
				deeper = true
			}
		}
		if at == o.name {
			return result
		}
	}
}

// shadowed reports whether another service has the name of the instance that
// service labels stand before: it has everything below that name as well.
func (z *Zone) shadowed(o *origin, m *match, now time.Time) bool {
	return m.Instance != nil && (m.Role == domain.Protocol || m.Role == domain.EmptyAlways) &&
		z.match(o, domain.Below(m.Instance.Label, m.offer.FQDN()), now).offer != m.offer
}
