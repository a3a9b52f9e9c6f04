package zone

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// ResultKind is what Lookup found.
type ResultKind uint8

// The kinds of a Result.
const (
	// Outside: the name is in none of the zones.
	Outside ResultKind = iota
	// Unsynced: the name is not known, and may exist once an owner's catalog is known.
	Unsynced
	// Unheard: the name is Unsynced, but no owner ever had a catalog and the grace of all is
	// over, so another plugin may have the name. The name is neither an apex nor an empty
	// non-terminal.
	Unheard
	// NameError: the name does not exist, and nothing below it (RFC 8020).
	NameError
	// NoData: the name exists and has no records of the type (RFC 2308
	// section 2.2).
	NoData
	// Success: there is an RRset.
	Success
	// Indirect: addresses of Hosts belong to the RRset beside those that were
	// found here, or decide on Targets of it.
	Indirect
)

// Result is what one Lookup found in one version of the zone. One query uses it: ForgetHosts,
// BarTarget and LookedUp complete it with what the caller learns of hosts elsewhere. Package reply
// makes records of it.
type Result struct {
	Kind   ResultKind
	denied bool   // a host in our zones leads to an address that its owner may not publish
	Type   uint16 // that was asked for
	TTL    uint32 // of the RRset, in seconds

	last      subtree.Rank // up to which the addresses of a shared name are answered
	undecided bool         // last depends on hosts elsewhere
	leads     bool         // a shared name has addresses without hosts elsewhere, maybe of the other type
	live      bool         // an address that was found here depends on no lost owner
	liveHost  bool         // the same for a host or, once hosts are looked up, for one of their addresses

	zone   *Zone
	origin *zoneOrigin
	match  nameMatch
	stale  *ownerView // a lost owner whose data is in the answer; nil: none is known

	// Of services with endpoints that are hosts.
	addresses []netip.Addr
	hosts     []Host
	targets   []Target
	barred    map[saidHost]bool // hosts that are no targets of SRV records, or do not lead to addresses
}

// saidHost is a host that an owner has as an endpoint.
type saidHost struct {
	host  string
	owner uint32
}

// nameMatch is what a name stands for.
type nameMatch struct {
	subtree.Match

	offer *precedence.Offer // the offer that has the name, or nil
}

// joinedTree returns the subtree in which the match was found.
func (m *nameMatch) joinedTree() *subtree.Subtree { return m.offer.Subtree.Joined() }

// answeringMembers returns those members of a shared name whose data is in the answer for a type,
// where last is the last rank whose addresses are answered. For another name it returns the only
// member. The result is a value, because a sequence would be allocated for each match.
func (m *nameMatch) answeringMembers(qtype uint16, last subtree.Rank) subtree.MemberSet {
	s := m.offer.Subtree.SharedName()
	switch {
	case s == nil:
		return 1
	case m.Role == domain.Address:
		return s.MembersSayingAddress(m.Address)
	case qtype == dns.TypeTXT && m.Role != domain.Protocol:
		return s.MembersDescribing(m.Instance)
	case m.isAddressed(qtype):
		if some := s.MembersAnswering(m.Endpoints, qtype, last); some != 0 {
			return some
		}
		return s.MembersSayingAny(s.EndpointsUpTo(m.Endpoints, last))
	}
	return s.MembersSayingAny(m.Endpoints)
}

// membersSaying returns the members that have an endpoint. For a name that is not shared it returns
// the only member.
func (m *nameMatch) membersSaying(i uint16) subtree.MemberSet {
	if s := m.offer.Subtree.SharedName(); s != nil {
		return s.MembersSaying(i)
	}
	return 1
}

// memberOwner returns the owner of a member, by index in Config.Owners.
func (m *nameMatch) memberOwner(member int) uint32 {
	if s := m.offer.Subtree.SharedName(); s != nil {
		return s.Members[member].Owner
	}
	return m.offer.Owner
}

// Host is an endpoint that must be looked up elsewhere, for the owner that has it as an endpoint.
type Host struct {
	Name     string // lower case, absolute
	Owner    int    // by index in Config.Owners
	InZone   bool   // in one of the zones, where it does not exist
	Unsynced bool   // InZone, but the catalog is not known, so it may exist
	Unheard  bool   // Unsynced, and the grace of all owners is over
	Stale    bool   // an owner on the way to the host is lost
}

// Target is a host to which SRV records of an Indirect result point, if its owner may publish the
// addresses that the host leads to elsewhere.
type Target struct {
	Name  string
	Owner int    // by index in Config.Owners
	Hosts []Host // where the target leads to

	// Addresses are those of the host, with their TTL, where the caller knows them: its glue. Making it
	// sorts them.
	Addresses []netip.Addr
	TTL       uint32
}

// IsHost reports whether the target itself is the host elsewhere.
func (t *Target) IsHost() bool {
	return len(t.Hosts) == 1 && t.Hosts[0].Name == t.Name && !t.Hosts[0].InZone
}

// Targets returns the targets of an Indirect SRV result on which the caller decides, in the order
// of their names. For a shared name there is one for each owner of a host. Their hosts are among
// those of Hosts.
func (r *Result) Targets() []Target { return r.targets }

// BarTarget leaves a target out of the SRV records, unless another owner has the host as well.
func (r *Result) BarTarget(t *Target) {
	r.barHost(saidHost{t.Name, uint32(t.Owner)}) //nolint:gosec // a small index
}

func (r *Result) barHost(w saidHost) {
	if r.barred == nil {
		r.barred = make(map[saidHost]bool)
	}
	r.barred[w] = true
}

// IsBarred reports whether the endpoint at an index is a host that was left out.
func (r *Result) IsBarred(i uint16) bool {
	if r.barred == nil {
		return false
	}
	host := r.match.joinedTree().Endpoint(i).Address.String()
	for member := range r.match.membersSaying(i).Each {
		if !r.barred[saidHost{host, r.match.memberOwner(member)}] {
			return false
		}
	}
	return true
}

// ForgetHosts records that hosts lead to no address, and resolves the name anew if that can bring
// in worse endpoints of a shared name. It reports whether it did.
func (r *Result) ForgetHosts(hosts []Host, now time.Time) bool {
	if !r.undecided || len(hosts) == 0 {
		return false
	}
	*r = Result{zone: r.zone, origin: r.origin, match: r.match, Type: r.Type, barred: r.barred}
	for _, h := range hosts {
		r.barHost(saidHost{h.Name, uint32(h.Owner)}) //nolint:gosec // a small index
	}
	r.resolveType(now, false)
	return true
}

// IsUndecided reports whether ForgetHosts may bring in other endpoints.
func (r *Result) IsUndecided() bool { return r.undecided }

// HasFoundAddresses reports whether a shared name has addresses of either type without those of
// hosts elsewhere.
func (r *Result) HasFoundAddresses() bool { return r.leads }

// Hosts returns the hosts whose addresses belong to an Indirect result or decide on it, each once
// for each owner that leads to it.
func (r *Result) Hosts() []Host { return r.hosts }

// Match returns what the name stands for.
func (r *Result) Match() *subtree.Match { return &r.match.Match }

// Subtree returns the service that has the name, and the fqdn at which it is published, or nil.
func (r *Result) Subtree() (t *subtree.Subtree, fqdn string) {
	if r.match.offer == nil {
		return nil, ""
	}
	return r.match.joinedTree(), r.match.offer.FQDN()
}

// FollowedAddresses returns the addresses of a service that has a host as an endpoint, and reports
// whether it has one. The addresses are its own and those behind hosts in our zones, each once and
// in order.
func (r *Result) FollowedAddresses() ([]netip.Addr, bool) {
	return r.addresses, r.match.offer != nil && r.match.offer.HasHost
}

// Texts returns the RDATA of the TXT records of the result, until they are larger than room, in
// octets. The caller must not change the list.
func (r *Result) Texts(room int) []string {
	return r.match.offer.Subtree.Texts(r.match.offer.Service, r.match.Instance, room)
}

// OriginName returns the name of the zone.
func (r *Result) OriginName() string { return r.origin.name }

// SOA returns the start of authority of the zone. The record is the caller's.
func (r *Result) SOA(name string) *dns.SOA { return r.origin.newSOA(name) }

// NameServer returns the name of the zone's name server, and the TTL of its records.
func (r *Result) NameServer() (name string, ttl uint32) { return r.origin.ns, r.origin.negativeTTL }

// NameServerAddresses returns the addresses of the name server that are of the
// type, A or AAAA.
func (r *Result) NameServerAddresses(qtype uint16) []netip.Addr { return r.origin.addressesOf(qtype) }

// LookupTarget returns the result for a host that is the target of an SRV record, without a type:
// see ResolveAs. It reports false when the host is in another zone, because resolvers drop data of
// other zones (RFC 2181 section 5.4.1), and when endpoints of the host are hosts in turn.
func (r *Result) LookupTarget(host string, now time.Time) (target Result, ok bool) {
	if r.zone.origins.ofQuery(host) != r.origin {
		return Result{}, false
	}
	target.zone, target.origin = r.zone, r.origin
	target.match.findName(r.zone, r.origin, host, now)
	offer := target.match.offer
	return target, offer == nil || !offer.HasHost || !slices.ContainsFunc(target.match.Endpoints, func(i uint16) bool { return offer.Subtree.Joined().Endpoint(i).IsHost() })
}

// ResolveAs makes the result that of a query for another type of the same name.
func (r *Result) ResolveAs(qtype uint16, now time.Time) {
	*r = Result{zone: r.zone, origin: r.origin, match: r.match, Type: qtype}
	r.resolveType(now, false)
}

// AllowsAddress reports whether an owner, by index in Config.Owners, may publish an address that a host has.
func (r *Result) AllowsAddress(owner int, ip netip.Addr) bool {
	admits := r.zone.owners[owner].admits
	return admits == nil || admits(ip)
}

// IsStale reports whether everything in the answer depends on lost owners.
func (r *Result) IsStale() bool {
	if r.Type != dns.TypeSRV || r.Kind != Success && r.Kind != Indirect || r.match.offer.Subtree.SharedName() == nil {
		return r.stale != nil && !r.live && !r.liveHost
	}
	t, fqdn := r.Subtree()
	return !slices.ContainsFunc(r.match.Endpoints, func(i uint16) bool {
		return !t.SharedName().EndpointRank(i).IsStale() && t.HasTarget(i, fqdn) && !r.IsBarred(i)
	})
}

// LookedUp records whether the answer has a live address of a host elsewhere.
func (r *Result) LookedUp(live bool) { r.liveHost = live }

// IsLive reports whether an answered address is not stale.
func (r *Result) IsLive() bool { return r.live || r.liveHost }

// HasLostOwner reports whether an owner of the zone is lost, so that names may exist which the zone
// does not have.
func (r *Result) HasLostOwner() bool {
	return slices.ContainsFunc(r.origin.owners, func(i int) bool { return !r.zone.owners[i].Lost.IsZero() })
}

// IsDenied reports whether the answer lacks an address of a host in our zones that the owner may
// not publish, or a target that leads to such an address.
func (r *Result) IsDenied() bool { return r.denied }

// StaleOwner returns the ID of the lost owner of a stale answer, or "". When the
// answer has addresses of several owners, it need not be the owner that Source
// returns.
func (r *Result) StaleOwner() string {
	if r.stale == nil {
		return ""
	}
	return r.stale.id
}

// noteStale records a lost owner that a part of the answer depends on, unless it is nil.
func (r *Result) noteStale(stale *ownerView) {
	if stale != nil {
		r.stale = stale
	}
}

// OwnerID returns the ID of the owner that has the name, or "". For a shared name it is the first
// owner.
func (r *Result) OwnerID() string {
	if r.match.offer == nil {
		return ""
	}
	return r.zone.owners[r.match.offer.Owner].id
}

// OwnerIDs returns the sorted IDs of the owners whose data is in the answer: several for a shared
// name.
func (r *Result) OwnerIDs() (ids []string) {
	if r.match.offer == nil {
		return nil
	}
	for member := range r.match.answeringMembers(r.Type, r.last).Each {
		ids = append(ids, r.zone.owners[r.match.memberOwner(member)].id)
	}
	slices.Sort(ids)
	return ids
}

// Source returns where the answer comes from: the owner's ID, the service and, for a name of an
// instance, the instance. The service is nil when no owner has the name. For a shared name, all are
// of the first owner that has it.
func (r *Result) Source() (owner string, s *federation.Service, in *federation.Instance) {
	if r.match.offer == nil {
		return "", nil, nil
	}
	of, p, named := r.match.findSource()
	s = p.Unpack()
	if named != nil {
		in = &s.Instances[named.Index]
	}
	return r.zone.owners[of].id, s, in
}

// findSource returns the owner, the service and the instance of a match. For a shared name they are
// those of the first member that has it.
func (m *nameMatch) findSource() (owner uint32, p packed.Service, in *subtree.Instance) {
	if s := m.joinedTree().SharedName(); s != nil {
		member, in := s.FirstMember(m.Instance)
		return member.Owner, member.Service, in
	}
	return m.offer.Owner, m.offer.Service, m.Instance
}

// ServiceName returns the name of the service of Source, or "".
func (r *Result) ServiceName() string {
	if r.match.offer == nil {
		return ""
	}
	_, p, _ := r.match.findSource()
	return p.Name()
}

// FQDN returns the name at which the service of Source is published, or "".
func (r *Result) FQDN() string {
	_, fqdn := r.Subtree()
	return fqdn
}

// Protocol returns the protocol of the instance of Source, or that of the service labels of the
// name, or zero.
func (r *Result) Protocol() federation.Protocol { return r.match.Protocol }
