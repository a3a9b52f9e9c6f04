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

	now     time.Time
	alone   bool            // hosts in our other zones count as hosts elsewhere
	seen    map[string]bool // hosts
	visited int             // endpoints
	cut     bool            // there is more than the bounds allow to follow
}

// follow collects the addresses of endpoints that are IP addresses, and of hosts
// that have a name in this version. The other hosts are left to the caller. A name
// with SRV and TXT cannot have a CNAME (RFC 1034 section 3.6.2), so the addresses
// stand at the name itself.
func (r *Result) follow(now time.Time, alone bool) Kind {
	f := follower{Result: r, now: now, alone: alone, seen: make(map[string]bool)}
	f.run()
	slices.SortFunc(r.addresses, netip.Addr.Compare)
	r.addresses = slices.Compact(r.addresses)
	switch {
	case len(r.hosts) > 0:
		return Indirect
	case len(r.addresses) > 0:
		return Success
	}
	return NoData
}

// run follows the result from its match.
func (f *follower) run() {
	step := []match{f.match}
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
// elsewhere are left to the caller.
func (r *Result) aim(now time.Time, alone bool) Kind {
	m := &r.match
	t, fqdn := r.Subtree()
	visited, last, has := 0, "", false
	listed := make(map[string]bool)
	for k, i := range m.Endpoints {
		host, ok := t.Endpoint(i).Address.Host()
		switch {
		case !t.HasTarget(i, fqdn):
			continue
		case !ok:
			has = true
			continue
		case host.String() == last: // several ports
			continue
		}
		last = host.String()
		one := Result{zone: r.zone, origin: r.origin, Type: r.Type, match: *m}
		one.match.Endpoints = m.Endpoints[k : k+1]
		f := follower{Result: &one, now: now, alone: alone, seen: make(map[string]bool), visited: visited}
		f.run()
		visited = f.visited
		switch {
		case one.denied || f.cut:
			r.denied = r.denied || one.denied
			r.Bar(last)
			continue
		case len(one.hosts) > 0:
			r.targets = append(r.targets, Target{Name: last, Hosts: one.hosts})
			for _, h := range one.hosts {
				if !listed[h.Name] {
					listed[h.Name] = true
					r.hosts = append(r.hosts, h)
				}
			}
		}
		has = true
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
			f.collect(m.offer, ip)
			continue
		}
		host, _ := address.Host()
		name := host.String()
		switch {
		case f.seen[name]:
			continue
		case len(f.seen) >= maxFollowed:
			f.cut = true
			continue
		}
		f.seen[name] = true
		o := f.zone.origins.ofQuery(name)
		if o == nil || f.alone && o != f.origin {
			f.hosts = append(f.hosts, Host{Name: name})
			continue
		}
		at := f.zone.match(o, name, f.now)
		switch at.Role {
		case domain.Missing:
			known := f.zone.extent(o, f.now)
			f.hosts = append(f.hosts, Host{Name: name, InZone: true, Unsynced: known != complete, Unheard: known == unheard})
		case domain.NameServer:
			f.TTL = min(f.TTL, o.negativeTTL)
			f.collect(nil, o.addresses...)
		case domain.Address:
			f.inherit(at.offer, at.answer(dns.TypeA))
			f.collect(at.offer, at.Address)
		case domain.Empty, domain.Apex, domain.Service, domain.Instance:
			if at.offer != nil {
				f.inherit(at.offer, at.answer(dns.TypeA))
				next = append(next, at)
			} else if f.zone.extent(o, f.now) != complete {
				f.hosts = append(f.hosts, Host{Name: name, InZone: true, Unsynced: true}) // a service may still come
			}
		}
	}
	return next
}

// collect takes the addresses of an offer, or of a name server, that are of the
// type and that the owner of the answer may publish.
func (f *follower) collect(from *precedence.Offer, ips ...netip.Addr) {
	for _, ip := range ips {
		switch {
		case f.Type != dns.TypeSRV && !record.Holds(f.Type, ip):
		case !f.admits(from, ip):
			f.denied = true
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
