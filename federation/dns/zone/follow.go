package zone

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
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
	*decisions

	now      time.Time
	alone    bool                // hosts in our other zones count as hosts elsewhere
	owner    uint32              // that says the hosts which are followed, and may publish or not what they lead to
	seen     map[string]bool     // hosts that it has led to, and whether all on the way is live
	followed int                 // hosts, of all owners
	visited  int                 // endpoints
	refused  map[netip.Addr]bool // that an owner may not publish
	cut      bool                // there is more than the bounds allow to follow
}

// decisions are up to which ranks the shared names are answered that a query meets.
type decisions struct {
	ranks map[way]subtree.Rank // of hosts, for the owner that they are followed for; noRank: that is being decided
	tried int                  // hosts, of all ranks
	open  bool                 // better ranks were enough, if hosts elsewhere have addresses
	led   bool                 // ranks of the name that is asked for have led to addresses, without hosts elsewhere
}

// noRank is in front of every endpoint of a shared name.
const noRank = subtree.AllRanks - 1

// step is a match whose endpoints are followed.
type step struct {
	match

	shared *subtree.SharedName // nil: all of its endpoints are as stale as the match
	stale  *view               // of a lost owner on the way to it; nil: all are live
}

func newFollower(r *Result, now time.Time, alone bool) follower {
	return follower{Result: r, decisions: &decisions{ranks: make(map[way]subtree.Rank)}, now: now, alone: alone}
}

// share finds which of the addresses of a shared name are answered.
func (r *Result) share(now time.Time, alone bool) {
	one := *r // r stays on the stack of the query
	f := newFollower(&one, now, alone)
	r.last = f.lastRank(&one.match, true)
	r.undecided, r.leads = f.open, f.led
	if !r.match.offer.HasHost {
		r.match.Endpoints = r.match.tree().SharedName().EndpointsUpTo(r.match.Endpoints, r.last)
	}
}

// follow collects the addresses of endpoints that are IP addresses, and of hosts
// that have a name in this version. The other hosts are left to the caller. A name
// with SRV and TXT cannot have a CNAME (RFC 1034 section 3.6.2), so the addresses
// stand at the name itself.
func (r *Result) follow(now time.Time, alone bool) Kind {
	one := *r // as in share
	f := newFollower(&one, now, alone)
	if s := r.match.tree().SharedName(); s != nil {
		f.runShared(s.EndpointsUpTo(r.match.Endpoints, r.last))
	} else {
		f.run(r.match.offer.Owner, r.stale, r.match.Endpoints)
	}
	*r = one
	r.undecided = r.undecided || f.open
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

// runShared follows endpoints of the match, a shared name: each host for each owner that says it.
func (f *follower) runShared(endpoints subtree.Selection) {
	t := f.match.tree()
	s := t.SharedName()
	for _, i := range endpoints {
		if ip, ok := t.Endpoint(i).Address.IP(); ok {
			f.collect(true, f.zone.staleSayer(s, i), ip)
		}
	}
	for m := range s.Members {
		hosts := slices.DeleteFunc(slices.Clone(endpoints), func(i uint16) bool { return !t.Endpoint(i).IsHost() || !s.MembersSaying(i).Has(m) })
		if len(hosts) > 0 {
			f.run(s.Members[m].Owner, f.zone.staleMember(s, m), hosts)
		}
	}
}

// run follows endpoints of the match that an owner says, which is stale or nil.
func (f *follower) run(owner uint32, stale *view, endpoints subtree.Selection) {
	f.owner, f.seen = owner, make(map[string]bool)
	steps := []step{{match: f.match, stale: stale}}
	steps[0].Endpoints = endpoints
	for depth := 0; depth <= maxDepth && len(steps) > 0; depth++ {
		var next []step
		for i := range steps {
			if f.visited += len(steps[i].Endpoints); f.visited > maxVisited && depth > 0 {
				f.cut = true
				break
			}
			next = f.visit(next, &steps[i])
		}
		steps = next
	}
	f.cut = f.cut || len(steps) > 0
}

// aim decides which hosts are targets of SRV records: a client that is given one looks up
// by itself what the owner may not publish. A host that leads to such an address in our
// zones is barred, as is one that leads further than A and AAAA follow. Those that lead
// elsewhere are left to the caller. Of a shared name, each owner that says a host is decided on.
func (r *Result) aim(now time.Time, alone bool) Kind {
	m := &r.match
	t, fqdn := r.Subtree()
	f := newFollower(nil, now, alone)
	has, decided, listed := false, make(map[way]bool), make(map[Host]bool) // decided: and whether that is denied
	for k, i := range m.Endpoints {
		host, ok := t.Endpoint(i).Address.Host()
		if !t.HasTarget(i, fqdn) || !ok {
			has = has || t.HasTarget(i, fqdn)
			continue
		}
		denied := false
		for member := range m.sayers(i).Each {
			owner := m.owner(member)
			w := way{host.String(), owner}
			if was, known := decided[w]; known { // several ports
				denied = denied || was
				continue
			}
			one := Result{zone: r.zone, origin: r.origin, Type: r.Type, match: *m}
			f.Result, f.refused, f.cut, f.followed = &one, nil, false, 0
			f.run(owner, nil, m.Endpoints[k:k+1])
			decided[w] = len(f.refused) > 0
			if denied = denied || decided[w]; decided[w] || f.cut {
				r.bar(w)
				continue
			}
			if len(one.hosts) > 0 {
				r.targets = append(r.targets, Target{Name: w.host, Owner: int(owner), Hosts: one.hosts})
			}
			for _, h := range one.hosts {
				if h.Stale = false; !listed[h] {
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
func (f *follower) visit(next []step, from *step) []step {
	t := from.tree()
	for _, i := range from.Endpoints {
		stale := from.stale
		if stale == nil && from.shared != nil {
			stale = f.zone.staleSayer(from.shared, i)
		}
		address := t.Endpoint(i).Address
		if ip, ok := address.IP(); ok {
			f.collect(f.isOneOf(&from.match, from.sayers(i)), stale, ip)
			continue
		}
		host, _ := address.Host()
		name := host.String()
		switch live, seen := f.seen[name]; {
		case seen && (live || stale != nil):
			continue
		case f.followed >= maxFollowed:
			f.cut = true
			continue
		}
		f.followed++
		f.seen[name] = stale == nil
		o := f.zone.origins.ofQuery(name)
		if o == nil || f.alone && o != f.origin {
			f.leave(Host{Name: name, Owner: int(f.owner)}, stale)
			continue
		}
		at := step{match: f.zone.match(o, name, f.now), stale: stale}
		switch at.Role {
		case domain.Missing:
			known := f.zone.extent(o, f.now)
			f.leave(Host{Name: name, Owner: int(f.owner), InZone: true, Unsynced: known != complete, Unheard: known == unheard}, stale)
		case domain.NameServer:
			f.TTL = min(f.TTL, o.negativeTTL)
			f.collect(false, stale, o.addresses...)
		case domain.Address:
			stale = f.inherit(&at, subtree.AllRanks)
			f.collect(f.isOneOf(&at.match, at.members(f.Type, subtree.AllRanks)), stale, at.Address)
		case domain.Empty, domain.Apex, domain.Service, domain.Instance:
			if at.offer != nil {
				next = f.enter(next, name, &at)
			} else if f.zone.extent(o, f.now) != complete {
				f.leave(Host{Name: name, Owner: int(f.owner), InZone: true, Unsynced: true}, stale) // a service may still come
			}
		}
	}
	return next
}

// leave leaves a host to the caller, unless that has found that it leads nowhere.
func (f *follower) leave(h Host, stale *view) {
	if f.barred[way{h.Name, f.owner}] {
		return
	}
	h.Stale = stale != nil
	f.liveHost = f.liveHost || !h.Stale
	f.age(stale)
	if i := slices.IndexFunc(f.hosts, func(known Host) bool { return known.Name == h.Name && known.Owner == h.Owner }); i >= 0 {
		f.hosts[i].Stale = f.hosts[i].Stale && h.Stale
		return
	}
	f.hosts = append(f.hosts, h)
}

// enter appends a match of that name to next, with the endpoints that are answered there.
func (f *follower) enter(next []step, name string, at *step) []step {
	last := subtree.AllRanks
	if at.tree().SharedName() != nil {
		w := way{name, f.owner}
		switch known, ok := f.ranks[w]; {
		case !ok:
			f.ranks[w] = noRank
			last = f.lastRank(&at.match, false)
			f.ranks[w] = last
		case known == noRank:
			return next // it leads back to itself
		default:
			last = known
		}
	}
	at.stale = f.inherit(at, last)
	if at.shared = at.tree().SharedName(); at.shared != nil {
		at.Endpoints = at.shared.EndpointsUpTo(at.Endpoints, last)
	}
	return append(next, *at)
}

// lastRank returns up to which rank a shared name is answered with addresses: whole ranks, the best first,
// until enough endpoints are live. A rank that leads to no address counts for nothing: none of those that say it,
// where the name is asked for, or of the owner that is followed.
func (f *follower) lastRank(m *match, asked bool) subtree.Rank {
	t := m.tree()
	s, live, unsure := t.SharedName(), 0, false
	for rest := t.SortByRank(m.Endpoints); len(rest) > 0; {
		rank, n := s.EndpointRank(rest[0]), len(rest)
		if i := slices.IndexFunc(rest, func(i uint16) bool { return s.EndpointRank(i) != rank }); i >= 0 {
			n = i
		}
		if rank.IsStale() {
			f.led = f.led || asked && slices.ContainsFunc(rest, func(i uint16) bool { return !t.Endpoint(i).IsHost() })
			return subtree.AllRanks
		}
		endpoints, sure := rest[:n], true
		rest = rest[n:]
		if (m.offer.HasHost || !asked) && f.tried < maxFollowed { // whoever is led here may not publish each address
			one := Result{zone: f.zone, origin: f.origin, Type: dns.TypeSRV, match: *m, barred: f.barred}
			try := follower{Result: &one, decisions: f.decisions, now: f.now, alone: f.alone}
			if asked {
				try.runShared(endpoints)
			} else {
				try.run(f.owner, nil, endpoints)
			}
			f.tried += try.followed
			if len(one.addresses) == 0 && (f.alone || len(one.hosts) == 0) {
				continue
			}
			sure = len(one.addresses) > 0
		}
		unsure, f.led = unsure || !sure, f.led || asked && sure
		if live += n; live >= s.Enough {
			f.open = f.open || unsure && len(rest) > 0
			return rank
		}
	}
	return subtree.AllRanks
}

// isOneOf reports whether the owner is one of the members of a match. No owner gets an
// address in behind a host that it could not publish as an endpoint; its own addresses were
// judged when they arrived.
func (f *follower) isOneOf(m *match, members subtree.MemberSet) bool {
	for member := range members.Each {
		if m.owner(member) == f.owner {
			return true
		}
	}
	return false
}

// collect takes addresses that are of the type and that the owner says itself, or may publish. Stale is of
// a lost owner that they hang on, or nil.
func (f *follower) collect(own bool, stale *view, ips ...netip.Addr) {
	for _, ip := range ips {
		switch {
		case f.Type != dns.TypeSRV && !record.TypeHolds(f.Type, ip):
		case !own && !f.Allows(int(f.owner), ip):
			if f.refused == nil {
				f.refused = make(map[netip.Addr]bool)
			}
			f.refused[ip] = true
		case len(f.addresses) < record.MaxAddresses:
			f.addresses = append(f.addresses, ip)
			f.live = f.live || stale == nil
			f.age(stale)
		}
	}
}

// inherit takes over the TTL of a service that was followed (RFC 2181 section 5.2: one TTL for an
// RRset), as far as endpoints up to a rank are answered. It returns a lost owner that all of it
// hangs on, or nil.
func (f *follower) inherit(at *step, last subtree.Rank) *view {
	ttl, stale := f.zone.part(&at.match, at.members(f.Type, last), f.now)
	f.TTL = min(f.TTL, ttl)
	if at.stale != nil {
		return at.stale
	}
	return stale
}
