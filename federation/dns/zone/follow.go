package zone

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
)

const (
	// maxDepth is the longest chain of hosts in our own zones that is followed, and
	// maxFollowed the most hosts of one query: catalogs may point at each other in
	// every way.
	maxDepth    = 8
	maxFollowed = 256

	// maxVisited is the number of endpoints, over all services, after which a query
	// follows no other service.
	maxVisited = 2 * record.MaxAddresses
)

// follower collects the addresses behind the hosts of one result.
type follower struct {
	*Result

	now      time.Time
	alone    bool                // hosts in our other zones count as hosts elsewhere
	owner    uint32              // that says the hosts which are followed, and may publish or not what they lead to
	seen     map[string]bool     // hosts that it has led to
	followed int                 // hosts, of all owners
	visited  int                 // endpoints
	refused  map[netip.Addr]bool // that an owner may not publish
	cut      bool                // there is more than the bounds allow to follow
}

// follow collects the addresses of endpoints that are IP addresses, and of hosts
// that have a name in this version. The other hosts are left to the caller. A name
// with SRV and TXT cannot have a CNAME (RFC 1034 section 3.6.2), so the addresses
// stand at the name itself.
func (r *Result) follow(now time.Time, alone bool) Kind {
	f := follower{Result: r, now: now, alone: alone}
	for m, owner := range r.match.offer.Owners {
		f.run(owner, r.match.saidBy(m))
	}
	slices.SortFunc(r.addresses, netip.Addr.Compare)
	r.addresses = slices.Compact(r.addresses)
	for ip := range f.refused {
		_, found := slices.BinarySearchFunc(r.addresses, ip, netip.Addr.Compare)
		r.denied = r.denied || !found
	}
	switch {
	case len(r.hosts) > 0:
		return Indirect
	case len(r.addresses) > 0:
		return Success
	}
	return NoData
}

// saidBy returns the endpoints that one of the owners of the match says, without addresses that one
// before it says.
func (m *match) saidBy(member int) subtree.Selection {
	t := &m.offer.Subtree
	if t.Shared() == nil {
		return m.Endpoints
	}
	return slices.DeleteFunc(slices.Clone(m.Endpoints), func(i uint16) bool {
		said := t.Sayers(i)
		return !said.Has(member) || !t.Endpoint(i).IsHost() && said.First() < member
	})
}

// run follows endpoints of the match that an owner says.
func (f *follower) run(owner uint32, endpoints subtree.Selection) {
	f.owner, f.seen = owner, make(map[string]bool)
	step := []match{f.match}
	step[0].Endpoints = endpoints
	for depth := 0; depth <= maxDepth && len(step) > 0; depth++ {
		var next []match
		for i := range step {
			if f.visited += len(step[i].Endpoints); f.visited > maxVisited && depth > 0 {
				f.cut = true
				break
			}
			next = f.visit(next, &step[i])
		}
		step = next
	}
	f.cut = f.cut || len(step) > 0
}

// aim decides which hosts are targets of SRV records: a client that is given one looks up
// by itself what the owner may not publish. A host that leads to such an address in our
// zones is barred, as is one that leads further than A and AAAA follow. Those that lead
// elsewhere are left to the caller. Of a shared name, each owner that says a host is decided on.
func (r *Result) aim(now time.Time, alone bool) Kind {
	m := &r.match
	t, fqdn := r.Subtree()
	f := follower{now: now, alone: alone}
	has, decided, listed := false, make(map[way]bool), make(map[Host]bool)
	for k, i := range m.Endpoints {
		host, ok := t.Endpoint(i).Address.Host()
		if !t.HasTarget(i, fqdn) || !ok {
			has = has || t.HasTarget(i, fqdn)
			continue
		}
		denied := false
		for n, owner := range m.offer.Owners {
			w := way{host.String(), owner}
			if !t.Sayers(i).Has(n) || decided[w] { // several ports
				continue
			}
			decided[w] = true
			one := Result{zone: r.zone, origin: r.origin, Type: r.Type, match: *m}
			f.Result, f.refused, f.cut, f.followed = &one, nil, false, 0
			if f.run(owner, m.Endpoints[k:k+1]); len(f.refused) > 0 || f.cut {
				denied = denied || len(f.refused) > 0
				r.bar(w)
				continue
			}
			if len(one.hosts) > 0 {
				r.targets = append(r.targets, Target{Name: w.host, Owner: int(owner), Hosts: one.hosts})
			}
			for _, h := range one.hosts {
				if !listed[h] {
					listed[h] = true
					r.hosts = append(r.hosts, h)
				}
			}
		}
		barred := r.Barred(i)
		r.denied = r.denied || denied && barred
		has = has || !barred
	}
	switch {
	case len(r.hosts) > 0:
		return Indirect
	case has:
		return Success
	}
	return NoData
}

// visit collects what the endpoints of one match are, and appends the services
// and instances among them to next.
func (f *follower) visit(next []match, m *match) []match {
	for _, i := range m.Endpoints {
		address := m.offer.Subtree.Endpoint(i).Address
		if ip, ok := address.IP(); ok {
			f.collect(f.says(m.offer, m.offer.Subtree.Sayers(i)), ip)
			continue
		}
		host, _ := address.Host()
		name := host.String()
		switch {
		case f.seen[name]:
			continue
		case f.followed >= maxFollowed:
			f.cut = true
			continue
		}
		f.followed++
		f.seen[name] = true
		o := f.zone.origins.ofQuery(name)
		if o == nil || f.alone && o != f.origin {
			f.hosts = append(f.hosts, Host{Name: name, Owner: int(f.owner)})
			continue
		}
		at := f.zone.match(o, name, f.now)
		switch at.Role {
		case domain.Missing:
			known := f.zone.extent(o, f.now)
			f.hosts = append(f.hosts, Host{Name: name, Owner: int(f.owner), InZone: true, Unsynced: known != complete, Unheard: known == unheard})
		case domain.NameServer:
			f.TTL = min(f.TTL, o.negativeTTL)
			f.collect(false, o.addresses...)
		case domain.Address:
			f.inherit(at.offer, at.answer(dns.TypeA))
			f.collect(f.says(at.offer, at.answer(dns.TypeA)), at.Address)
		case domain.Empty, domain.Apex, domain.Service, domain.Instance:
			if at.offer != nil {
				f.inherit(at.offer, at.answer(dns.TypeA))
				next = append(next, at)
			} else if f.zone.extent(o, f.now) != complete {
				f.hosts = append(f.hosts, Host{Name: name, Owner: int(f.owner), InZone: true, Unsynced: true}) // a service may still come
			}
		}
	}
	return next
}

// says reports whether the owner is one of those that say something of an offer. No owner gets an
// address in behind a host that it could not publish as an endpoint; its own addresses were
// judged when they arrived.
func (f *follower) says(of *precedence.Offer, members subtree.Members) bool {
	for m, owner := range of.Owners {
		if owner == f.owner && members.Has(m) {
			return true
		}
	}
	return false
}

// collect takes addresses that are of the type and that the owner says itself, or may publish.
func (f *follower) collect(own bool, ips ...netip.Addr) {
	for _, ip := range ips {
		switch {
		case f.Type != dns.TypeSRV && !record.Holds(f.Type, ip):
		case !own && !f.Allows(int(f.owner), ip):
			if f.refused == nil {
				f.refused = make(map[netip.Addr]bool)
			}
			f.refused[ip] = true
		case len(f.addresses) < record.MaxAddresses:
			f.addresses = append(f.addresses, ip)
		}
	}
}

// inherit takes over the TTL and the staleness of a service that was followed
// (RFC 2181 section 5.2: one TTL for an RRset).
func (f *follower) inherit(p *precedence.Offer, members subtree.Members) {
	f.TTL = min(f.TTL, f.zone.ttl(p, members, f.now))
	f.age(p, members)
}
