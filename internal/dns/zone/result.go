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
	// Unsynced: the name is not known, and may be once an owner's catalog is.
	Unsynced
	// Unheard: as Unsynced, but no owner ever had a catalog and the grace of all is
	// over, so another plugin may have the name. It is neither an apex nor an empty
	// non-terminal.
	Unheard
	// NameError: the name does not exist, and nothing below it (RFC 8020).
	NameError
	// NoData: the name exists and has no records of the type (RFC 2308
	// section 2.2).
	NoData
	// Success: there is an RRset.
	Success
	// Indirect: addresses of Hosts belong to the RRset, beside those that were
	// found here, or decide on Targets of it.
	Indirect
)

// Result is what one Lookup found, in one version of the zone. Package reply
// makes records of it.
type Result struct {
	Kind   ResultKind
	denied bool   // a host in our zones leads to an address that is not published, as its owner may not
	Type   uint16 // that was asked for
	TTL    uint32 // of the RRset, in seconds

	last      subtree.Rank // of the addresses of a shared name
	undecided bool         // that hangs on hosts elsewhere
	leads     bool         // they are there without them, though maybe of the other type
	live      bool         // an address that was found here hangs on no owner that is lost
	liveHost  bool         // nor does a host, or, once they are looked up, one of its addresses

	zone   *Zone
	origin *zoneOrigin
	match  nameMatch
	stale  *ownerView // of an owner that is lost and has a part in the answer; nil: none is known

	// Of services with endpoints that are hosts.
	addresses []netip.Addr
	hosts     []Host
	targets   []Target
	barred    map[saidHost]bool // that do not make a host a target of SRV records, or do not lead to addresses
}

// saidHost is how a host comes to be an endpoint: an owner says it.
type saidHost struct {
	host  string
	owner uint32
}

// nameMatch is what a name stands for.
type nameMatch struct {
	subtree.Match

	offer *precedence.Offer // that has the name, or nil
}

// joinedTree returns the subtree in which the match was found.
func (m *nameMatch) joinedTree() *subtree.Subtree { return m.offer.Subtree.Joined() }

// answeringMembers returns those of a shared name that have a part in the answer for a type, whose addresses are
// answered up to a rank; the only one of another name. It is a value, as a sequence would have each match allocated.
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

// membersSaying returns the members that say an endpoint; the only one of a name that is not shared.
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

// Host is an endpoint that must be looked up elsewhere, for an owner that says it.
type Host struct {
	Name     string // lower case, absolute
	Owner    int    // by index in Config.Owners
	InZone   bool   // in one of the zones, where it does not exist
	Unsynced bool   // InZone, but the catalog is not known, so it may exist
	Unheard  bool   // Unsynced, and the grace of all owners is over
	Stale    bool   // an owner is lost by which it was found
}

// Target is a host to which SRV records of an Indirect result point, if the addresses that
// it leads to elsewhere may be published by an owner that says it.
type Target struct {
	Name  string
	Owner int    // by index in Config.Owners
	Hosts []Host // where it leads to

	// Addresses are those of the host, with their TTL, where the caller knows them: its glue. Making it
	// sorts them.
	Addresses []netip.Addr
	TTL       uint32
}

// IsHost reports whether the target itself is the host elsewhere.
func (t *Target) IsHost() bool {
	return len(t.Hosts) == 1 && t.Hosts[0].Name == t.Name && !t.Hosts[0].InZone
}

// Targets returns the targets of an Indirect SRV result that are to be decided on, in the
// order of their names; of a shared name, one for each owner that says the host. Their hosts are
// those of Hosts.
func (r *Result) Targets() []Target { return r.targets }

// BarTarget leaves a target out of the SRV records, unless another owner says the host.
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

// ForgetHosts has the hosts lead to no address, and resolves the name anew if that can bring in other endpoints: worse
// ones of a name that owners share. It reports whether it can.
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

// HasFoundAddresses reports whether a name that owners share has addresses without those of hosts elsewhere, of either type.
func (r *Result) HasFoundAddresses() bool { return r.leads }

// Hosts returns the hosts whose addresses belong to an Indirect result, or decide on it: each once for
// each owner that leads to it.
func (r *Result) Hosts() []Host { return r.hosts }

// Match returns what the name stands for.
func (r *Result) Match() *subtree.Match { return &r.match.Match }

// Subtree returns the service that has the name, with the fqdn at which it is
// published. There may be none.
func (r *Result) Subtree() (t *subtree.Subtree, fqdn string) {
	if r.match.offer == nil {
		return nil, ""
	}
	return r.match.joinedTree(), r.match.offer.FQDN()
}

// FollowedAddresses returns the addresses, each once and in order, of a service that has a
// host as an endpoint, and reports whether it has: its own and those behind hosts
// in our zones.
func (r *Result) FollowedAddresses() ([]netip.Addr, bool) {
	return r.addresses, r.match.offer != nil && r.match.offer.HasHost
}

// Texts returns the RDATA of the TXT records of the result, until they are larger than room, in
// octets. The list must not be changed.
func (r *Result) Texts(room int) []string {
	return r.match.offer.Subtree.Texts(r.match.offer.Service, r.match.Instance, room)
}

// OriginName returns the name of the zone.
func (r *Result) OriginName() string { return r.origin.name }

// SOA returns the start of authority of the zone. The record is the caller's.
func (r *Result) SOA(name string) *dns.SOA { return r.origin.newSOA(name) }

// NameServer returns the name of the zone's name server, and the TTL of its
// records.
func (r *Result) NameServer() (name string, ttl uint32) { return r.origin.ns, r.origin.negativeTTL }

// NameServerAddresses returns the addresses of the name server that are of the
// type, A or AAAA.
func (r *Result) NameServerAddresses(qtype uint16) []netip.Addr { return r.origin.addressesOf(qtype) }

// LookupTarget looks up a host that is the target of an SRV record of the result. The
// result has no type yet: see ResolveAs. It reports false when the host is in another
// zone, as resolvers drop data of other zones (RFC 2181 section 5.4.1), or has
// endpoints that are hosts in turn.
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

// IsStale reports whether everything that is answered hangs on owners that are lost.
func (r *Result) IsStale() bool {
	if r.Type != dns.TypeSRV || r.Kind != Success && r.Kind != Indirect || r.match.offer.Subtree.SharedName() == nil {
		return r.stale != nil && !r.live && !r.liveHost
	}
	t, fqdn := r.Subtree()
	return !slices.ContainsFunc(r.match.Endpoints, func(i uint16) bool {
		return !t.SharedName().EndpointRank(i).IsStale() && t.HasTarget(i, fqdn) && !r.IsBarred(i)
	})
}

// LookedUp says whether an address of a host elsewhere is answered that is not stale.
func (r *Result) LookedUp(live bool) { r.liveHost = live }

// IsLive reports whether an answered address is not stale.
func (r *Result) IsLive() bool { return r.live || r.liveHost }

// HasLostOwner reports whether an owner of the zone is lost, so that names which are not
// in the zone may exist nevertheless.
func (r *Result) HasLostOwner() bool {
	return slices.ContainsFunc(r.origin.owners, func(i int) bool { return !r.zone.owners[i].Lost.IsZero() })
}

// IsDenied reports whether the answer lacks an address of a host in our zones that
// the owner may not publish, or a target that leads to one.
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

// noteStale notes a lost owner that a part of the answer hangs on, if there is one.
func (r *Result) noteStale(stale *ownerView) {
	if stale != nil {
		r.stale = stale
	}
}

// OwnerID returns the ID of the owner that has the name, or "". Of several that share it, it is the
// first.
func (r *Result) OwnerID() string {
	if r.match.offer == nil {
		return ""
	}
	return r.zone.owners[r.match.offer.Owner].id
}

// OwnerIDs returns the IDs of the owners that have a part in the answer, sorted: several where they
// share the name.
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

// Source returns where the answer to a name comes from: the owner's ID, the
// service and, for a name of an instance, the instance. The service is nil when
// no owner has the name. Of a name that owners share, they are of the first that has it.
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

// findSource returns the owner, the service and the instance that a match has: of a shared name those of the first
// member that has it.
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

// FQDN returns where the service of Source is published, or "".
func (r *Result) FQDN() string {
	_, fqdn := r.Subtree()
	return fqdn
}

// Protocol returns what the instance of Source speaks, or what the service
// labels of the name say; zero for other names.
func (r *Result) Protocol() federation.Protocol { return r.match.Protocol }
