package zone

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
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

// hostFollower collects the addresses behind the hosts of one result. One query uses it and drops
// it. MaxDepth, maxFollowed and maxVisited bound its work, because catalogs may point at each other
// in every way; where a bound is reached, cut is set and the answer has what was found so far. It
// looks no host up elsewhere: these are left to the caller, in Result.Hosts.
type hostFollower struct {
	*Result
	*rankDecisions

	now      time.Time
	alone    bool                // hosts in our other zones count as hosts elsewhere
	owner    uint32              // the owner of the hosts that are followed, which may not publish every address
	seen     map[string]bool     // hosts that were met, and whether every owner on the way is live
	followed int                 // hosts, of all owners
	visited  int                 // endpoints
	refused  map[netip.Addr]bool // addresses that an owner may not publish
	cut      bool                // the bounds ended the search
}

// rankDecisions keeps up to which ranks the shared names are answered that a query meets.
type rankDecisions struct {
	ranks map[saidHost]subtree.Rank // last ranks by host and owner; noRank while the rank is being decided
	tried int                       // hosts that were followed for ranks
	open  bool                      // the decision assumes that hosts elsewhere have addresses
	led   bool                      // ranks of the name in the query have led to addresses, without hosts elsewhere
}

// noRank comes before the rank of every endpoint of a shared name.
const noRank = subtree.AllRanks - 1

// followStep is a match whose endpoints are followed.
type followStep struct {
	nameMatch

	shared *subtree.SharedName // nil: all endpoints of the match are as stale as the match
	stale  *ownerView          // a lost owner on the way to the match; nil: all are live
}

func newFollower(r *Result, now time.Time, alone bool) hostFollower {
	return hostFollower{Result: r, rankDecisions: &rankDecisions{ranks: make(map[saidHost]subtree.Rank)}, now: now, alone: alone}
}

// limitShared decides which addresses of a shared name are answered.
func (r *Result) limitShared(now time.Time, alone bool) {
	one := *r // r stays on the stack of the query
	f := newFollower(&one, now, alone)
	r.last = f.lastRank(&one.match, true)
	r.undecided, r.leads = f.open, f.led
	if !r.match.offer.HasHost {
		r.match.Endpoints = r.match.joinedTree().SharedName().EndpointsUpTo(r.match.Endpoints, r.last)
	}
}

// followHosts collects the addresses of endpoints that are IP addresses, and of hosts that have a
// name in this version, and returns the kind of the result. The other hosts are left to the caller.
// A name with SRV and TXT cannot have a CNAME (RFC 1034 section 3.6.2), so the addresses stand at
// the name itself.
func (r *Result) followHosts(now time.Time, alone bool) ResultKind {
	one := *r // as in limitShared
	f := newFollower(&one, now, alone)
	if s := r.match.joinedTree().SharedName(); s != nil {
		f.runShared(s.EndpointsUpTo(r.match.Endpoints, r.last))
	} else {
		f.followEndpoints(r.match.offer.Owner, r.stale, r.match.Endpoints)
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

// runShared follows endpoints of the match, which is a shared name: each host for each of its
// owners.
func (f *hostFollower) runShared(endpoints subtree.Selection) {
	t := f.match.joinedTree()
	s := t.SharedName()
	for _, i := range endpoints {
		if ip, ok := t.Endpoint(i).Address.IP(); ok {
			f.collectAddresses(true, f.zone.staleSayer(s, i), ip)
		}
	}
	for m := range s.Members {
		hosts := slices.DeleteFunc(slices.Clone(endpoints), func(i uint16) bool { return !t.Endpoint(i).IsHost() || !s.MembersSaying(i).Has(m) })
		if len(hosts) > 0 {
			f.followEndpoints(s.Members[m].Owner, f.zone.staleMember(s, m), hosts)
		}
	}
}

// followEndpoints follows endpoints of the match for their owner. Stale is that owner if it is
// lost, or nil.
func (f *hostFollower) followEndpoints(owner uint32, stale *ownerView, endpoints subtree.Selection) {
	f.owner, f.seen = owner, make(map[string]bool)
	steps := []followStep{{nameMatch: f.match, stale: stale}}
	steps[0].Endpoints = endpoints
	for depth := 0; depth <= maxDepth && len(steps) > 0; depth++ {
		var next []followStep
		for i := range steps {
			if f.visited += len(steps[i].Endpoints); f.visited > maxVisited && depth > 0 {
				f.cut = true
				break
			}
			next = f.visitEndpoints(next, &steps[i])
		}
		steps = next
	}
	f.cut = f.cut || len(steps) > 0
}

// decideTargets decides which hosts are targets of SRV records, and returns the kind of the result.
// A client looks up the addresses of a target by itself, also those that the owner may not publish.
// So a host that leads to such an address in our zones is barred, and so is a host that leads
// further than A and AAAA follow. Hosts that lead elsewhere are left to the caller. For a shared
// name, the decision is made for each owner of a host.
func (r *Result) decideTargets(now time.Time, alone bool) ResultKind {
	m := &r.match
	t, fqdn := r.Subtree()
	f := newFollower(nil, now, alone)
	has, decided, listed := false, make(map[saidHost]bool), make(map[Host]bool) // decided: and whether that is denied
	for k, i := range m.Endpoints {
		host, ok := t.Endpoint(i).Address.Host()
		if !t.HasTarget(i, fqdn) || !ok {
			has = has || t.HasTarget(i, fqdn)
			continue
		}
		denied := false
		for member := range m.membersSaying(i).Each {
			owner := m.memberOwner(member)
			w := saidHost{host.String(), owner}
			if was, known := decided[w]; known { // several ports
				denied = denied || was
				continue
			}
			one := Result{zone: r.zone, origin: r.origin, Type: r.Type, match: *m}
			f.Result, f.refused, f.cut, f.followed = &one, nil, false, 0
			f.followEndpoints(owner, nil, m.Endpoints[k:k+1])
			decided[w] = len(f.refused) > 0
			if denied = denied || decided[w]; decided[w] || f.cut {
				r.barHost(w)
				continue
			}
			for n := range one.hosts {
				h := &one.hosts[n]
				if h.Stale = false; !listed[*h] {
					listed[*h] = true
					r.hosts = append(r.hosts, *h)
				}
			}
			if len(one.hosts) > 0 {
				r.targets = append(r.targets, Target{Name: w.host, Owner: int(owner), Hosts: one.hosts})
			}
		}
		barred := r.IsBarred(i)
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

// visitEndpoints collects the addresses and hosts of one match, and returns next with the services
// and instances among them appended.
func (f *hostFollower) visitEndpoints(next []followStep, from *followStep) []followStep {
	t := from.joinedTree()
	for _, i := range from.Endpoints {
		stale := from.stale
		if stale == nil && from.shared != nil {
			stale = f.zone.staleSayer(from.shared, i)
		}
		address := t.Endpoint(i).Address
		if ip, ok := address.IP(); ok {
			f.collectAddresses(f.isOneOf(&from.nameMatch, from.membersSaying(i)), stale, ip)
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
			f.leaveHost(Host{Name: name, Owner: int(f.owner)}, stale)
			continue
		}
		at := followStep{nameMatch: f.zone.matchName(o, name, f.now), stale: stale}
		switch at.Role {
		case domain.Missing:
			known := f.zone.originExtent(o, f.now)
			f.leaveHost(Host{Name: name, Owner: int(f.owner), InZone: true, Unsynced: known != complete, Unheard: known == unheard}, stale)
		case domain.NameServer:
			f.TTL = min(f.TTL, o.negativeTTL)
			f.collectAddresses(false, stale, o.addresses...)
		case domain.Address:
			stale = f.inheritTTL(&at, subtree.AllRanks)
			f.collectAddresses(f.isOneOf(&at.nameMatch, at.answeringMembers(f.Type, subtree.AllRanks)), stale, at.Address)
		case domain.Empty, domain.Apex, domain.Service, domain.Instance:
			if at.offer != nil {
				next = f.enterMatch(next, name, &at)
			} else if f.zone.originExtent(o, f.now) != complete {
				f.leaveHost(Host{Name: name, Owner: int(f.owner), InZone: true, Unsynced: true}, stale) // a service may still come
			}
		}
	}
	return next
}

// leaveHost leaves a host to the caller, unless the caller has found that it leads nowhere.
func (f *hostFollower) leaveHost(h Host, stale *ownerView) {
	if f.barred[saidHost{h.Name, f.owner}] {
		return
	}
	h.Stale = stale != nil
	f.liveHost = f.liveHost || !h.Stale
	f.noteStale(stale)
	if i := slices.IndexFunc(f.hosts, func(known Host) bool { return known.Name == h.Name && known.Owner == h.Owner }); i >= 0 {
		f.hosts[i].Stale = f.hosts[i].Stale && h.Stale
		return
	}
	f.hosts = append(f.hosts, h)
}

// enterMatch returns next with a match of that name appended, limited to the endpoints that are
// answered there.
func (f *hostFollower) enterMatch(next []followStep, name string, at *followStep) []followStep {
	last := subtree.AllRanks
	if at.joinedTree().SharedName() != nil {
		w := saidHost{name, f.owner}
		switch known, ok := f.ranks[w]; {
		case !ok:
			f.ranks[w] = noRank
			last = f.lastRank(&at.nameMatch, false)
			f.ranks[w] = last
		case known == noRank:
			return next // it leads back to itself
		default:
			last = known
		}
	}
	at.stale = f.inheritTTL(at, last)
	if at.shared = at.joinedTree().SharedName(); at.shared != nil {
		at.Endpoints = at.shared.EndpointsUpTo(at.Endpoints, last)
	}
	return append(next, *at)
}

// lastRank returns the last rank of a shared name whose addresses are answered. It takes whole
// ranks, the best first, until enough endpoints are live. A rank that leads to no address does not
// count. Where the name is asked for, a rank must lead to an address for any of its owners, and
// else for the owner that is followed.
func (f *hostFollower) lastRank(m *nameMatch, asked bool) subtree.Rank {
	t := m.joinedTree()
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
			try := hostFollower{Result: &one, rankDecisions: f.rankDecisions, now: f.now, alone: f.alone}
			if asked {
				try.runShared(endpoints)
			} else {
				try.followEndpoints(f.owner, nil, endpoints)
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

// isOneOf reports whether the owner is one of the members of a match. No owner can publish an
// address by way of a host that it could not publish as an endpoint. Its own addresses were judged
// when they arrived.
func (f *hostFollower) isOneOf(m *nameMatch, members subtree.MemberSet) bool {
	for member := range members.Each {
		if m.memberOwner(member) == f.owner {
			return true
		}
	}
	return false
}

// collectAddresses adds addresses of the right type. Own says that the owner publishes them itself;
// others are added only if the owner may publish them. Stale is a lost owner that the addresses
// depend on, or nil.
func (f *hostFollower) collectAddresses(own bool, stale *ownerView, ips ...netip.Addr) {
	for _, ip := range ips {
		switch {
		case f.Type != dns.TypeSRV && !record.TypeHolds(f.Type, ip):
		case !own && !f.AllowsAddress(int(f.owner), ip):
			if f.refused == nil {
				f.refused = make(map[netip.Addr]bool)
			}
			f.refused[ip] = true
		case len(f.addresses) < record.MaxAddresses:
			f.addresses = append(f.addresses, ip)
			f.live = f.live || stale == nil
			f.noteStale(stale)
		}
	}
}

// inheritTTL lowers the TTL of the result to that of a service that was followed (RFC 2181 section
// 5.2: one TTL for an RRset), of which endpoints up to a rank are answered. It returns a lost owner
// that all of these depend on, or nil.
func (f *hostFollower) inheritTTL(at *followStep, last subtree.Rank) *ownerView {
	ttl, stale := f.zone.matchTTL(&at.nameMatch, at.answeringMembers(f.Type, last), f.now)
	f.TTL = min(f.TTL, ttl)
	if at.stale != nil {
		return at.stale
	}
	return stale
}
