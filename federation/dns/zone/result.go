package zone

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
)

// Kind is what Lookup found.
type Kind uint8

// The kinds of a Result.
const (
	// Outside: the name is in none of the zones.
	Outside Kind = iota
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
	Kind   Kind
	denied bool   // a host in our zones leads to an address that is not published, as its owner may not
	Type   uint16 // that was asked for
	TTL    uint32 // of the RRset, in seconds

	zone   *Zone
	origin *origin
	match  match
	stale  *view // of an owner that is lost and has a part in the answer

	// Of services with endpoints that are hosts.
	addresses []netip.Addr
	hosts     []Host
	targets   []Target
	barred    map[way]bool // that do not make a host a target of SRV records
}

// way is how a host comes to be an endpoint: an owner says it.
type way struct {
	host  string
	owner uint32
}

// match is what a name stands for.
type match struct {
	subtree.Match

	offer *precedence.Offer // that has the name, or nil
}

// answer keeps those endpoints of a shared name that are answered for the type, and returns the
// owners that say one of them. For other names it does nothing.
func (m *match) answer(qtype uint16) subtree.Members {
	t := &m.offer.Subtree
	switch {
	case t.Shared() == nil:
		return 0
	case m.Role == domain.Address:
		return t.SayingAddress(m.Address)
	case m.Role != domain.Protocol && (qtype == dns.TypeA || qtype == dns.TypeAAAA):
		endpoints, members := t.Answered(m.Instance)
		m.Endpoints = endpoints
		return members
	}
	return t.Saying(m.Instance)
}

// Host is an endpoint that must be looked up elsewhere, for an owner that says it.
type Host struct {
	Name     string // lower case, absolute
	Owner    int    // by index in Config.Owners
	InZone   bool   // in one of the zones, where it does not exist
	Unsynced bool   // InZone, but the catalog is not known, so it may exist
	Unheard  bool   // Unsynced, and the grace of all owners is over
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

// Bar leaves a target out of the SRV records, unless another owner says the host.
func (r *Result) Bar(t *Target) {
	r.bar(way{t.Name, uint32(t.Owner)}) //nolint:gosec // a small index
}

func (r *Result) bar(w way) {
	if r.barred == nil {
		r.barred = make(map[way]bool)
	}
	r.barred[w] = true
}

// Barred reports whether the endpoint at an index is a host that was left out.
func (r *Result) Barred(i uint16) bool {
	if r.barred == nil {
		return false
	}
	t, host := &r.match.offer.Subtree, r.match.offer.Subtree.Endpoint(i).Address.String()
	for m, owner := range r.match.offer.Owners {
		if t.Sayers(i).Has(m) && !r.barred[way{host, owner}] {
			return false
		}
	}
	return true
}

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
	return &r.match.offer.Subtree, r.match.offer.FQDN()
}

// Followed returns the addresses, each once and in order, of a service that has a
// host as an endpoint, and reports whether it has: its own and those behind hosts
// in our zones.
func (r *Result) Followed() ([]netip.Addr, bool) {
	return r.addresses, r.match.offer != nil && r.match.offer.HasHost
}

// Texts returns the RDATA of the TXT records of the result, until they are larger than room, in
// octets. The list must not be changed.
func (r *Result) Texts(room int) []string {
	m := &r.match
	return m.offer.Subtree.Texts(m.offer.Service, m.Instance, room)
}

// Origin returns the name of the zone.
func (r *Result) Origin() string { return r.origin.name }

// SOA returns the start of authority of the zone. The record is the caller's.
func (r *Result) SOA(name string) *dns.SOA { return r.origin.soa(name) }

// NameServer returns the name of the zone's name server, and the TTL of its
// records.
func (r *Result) NameServer() (name string, ttl uint32) { return r.origin.ns, r.origin.negativeTTL }

// NameServerAddresses returns the addresses of the name server that are of the
// type, A or AAAA.
func (r *Result) NameServerAddresses(qtype uint16) []netip.Addr { return r.origin.addressesOf(qtype) }

// Target looks up a host that is the target of an SRV record of the result. The
// result has no type yet: see As. It reports false when the host is in another
// zone, as resolvers drop data of other zones (RFC 2181 section 5.4.1), or has
// endpoints that are hosts in turn.
func (r *Result) Target(host string, now time.Time) (target Result, ok bool) {
	if r.zone.origins.ofQuery(host) != r.origin {
		return Result{}, false
	}
	target.zone, target.origin = r.zone, r.origin
	target.match.find(r.zone, r.origin, host, now)
	offer := target.match.offer
	return target, offer == nil || !offer.HasHost || !slices.ContainsFunc(target.match.Endpoints, func(i uint16) bool { return offer.Subtree.Endpoint(i).IsHost() })
}

// As makes the result that of a query for another type of the same name.
func (r *Result) As(qtype uint16, now time.Time) {
	*r = Result{zone: r.zone, origin: r.origin, match: r.match, Type: qtype}
	r.resolve(now, false)
}

// Allows reports whether an owner, by index in Config.Owners, may publish an address that a host has.
func (r *Result) Allows(owner int, ip netip.Addr) bool {
	admits := r.zone.owners[owner].admits
	return admits == nil || admits(ip)
}

// Stale reports whether the answer comes from an owner that is lost.
func (r *Result) Stale() bool { return r.stale != nil }

// Lost reports whether an owner of the zone is lost, so that names which are not
// in the zone may exist nevertheless.
func (r *Result) Lost() bool {
	return slices.ContainsFunc(r.origin.owners, func(i int) bool { return !r.zone.owners[i].Lost.IsZero() })
}

// Denied reports whether the answer lacks an address of a host in our zones that
// the owner may not publish, or a target that leads to one.
func (r *Result) Denied() bool { return r.denied }

// StaleOwner returns the ID of the lost owner of a stale answer, or "". When the
// answer has addresses of several owners, it need not be the owner that Source
// returns.
func (r *Result) StaleOwner() string {
	if r.stale == nil {
		return ""
	}
	return r.stale.id
}

// age notes that an offer has a part in the answer, which is stale if the offer is. One that
// owners share is stale if all of those are that have a part in the answer.
func (r *Result) age(p *precedence.Offer, members subtree.Members) {
	if r.stale != nil {
		return
	}
	shared := p.Subtree.Shared()
	if shared == nil {
		if r.zone.tree.Stale(p) {
			r.stale = &r.zone.owners[p.Owner]
		}
		return
	}
	for i := range members.Each {
		if !shared.Members[i].Stale {
			r.stale = nil
			return
		}
		r.stale = &r.zone.owners[shared.Members[i].Owner]
	}
}

// Owner returns the ID of the owner that has the name, or "". Of several that share it, it is the
// first.
func (r *Result) Owner() string {
	if r.match.offer == nil {
		return ""
	}
	return r.zone.owners[r.match.offer.Owner].id
}

// Owners returns the IDs of the owners that have a part in the answer, sorted: several where they
// share the name.
func (r *Result) Owners() (ids []string) {
	if r.match.offer == nil {
		return nil
	}
	shared := r.match.offer.Subtree.Shared()
	if shared == nil {
		return []string{r.Owner()}
	}
	m := r.match
	for i := range m.answer(r.Type).Each {
		ids = append(ids, r.zone.owners[shared.Members[i].Owner].id)
	}
	slices.Sort(ids)
	return ids
}

// Service returns the name of the service that has the name, or "".
func (r *Result) Service() string {
	if r.match.offer == nil {
		return ""
	}
	return r.match.offer.Service.Name()
}

// Source returns where the answer to a name comes from: the owner's ID, the
// service and, for a name of an instance, the instance. The service is nil when
// no owner has the name.
func (r *Result) Source() (owner string, s *federation.Service, in *federation.Instance) {
	m := &r.match
	if m.offer == nil {
		return "", nil, nil
	}
	s = m.offer.Service.Unpack()
	if m.Instance != nil {
		in = &s.Instances[m.Instance.Index]
	}
	return r.Owner(), s, in
}

// FQDN returns where the service of Source is published, or "".
func (r *Result) FQDN() string {
	_, fqdn := r.Subtree()
	return fqdn
}

// Protocol returns what the instance of Source speaks, or what the service
// labels of the name say; zero for other names.
func (r *Result) Protocol() federation.Protocol { return r.match.Protocol }
