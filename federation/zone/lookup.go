package zone

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Kind is what Lookup found.
type Kind uint8

// The kinds of a Result.
const (
	// Outside: the name is in none of the zones.
	Outside Kind = iota
	// Unsynced: the name is not known, and may be once an owner's catalog is.
	Unsynced
	// Unheard: as Unsynced, but no owner ever had a catalog and none is waited for
	// any longer, so the name may be somebody else's. It is neither an apex nor an
	// empty non-terminal.
	Unheard
	// NameError: the name does not exist, and nothing below it (RFC 8020).
	NameError
	// NoData: the name exists and has no records of the type (RFC 2308
	// section 2.2).
	NoData
	// Success: Answer has the records.
	Success
	// Indirect: addresses of Hosts belong to the answer, beside those that
	// Answer has.
	Indirect
)

// Result is the outcome of one Lookup: a view into one version of the zone.
type Result struct {
	Kind Kind

	// Room is how many octets of a reply can reach the client. Answer and Glue
	// end with what is more than fits: the server must see that it has to
	// truncate, and the rest would be made for nothing. Zero is no limit.
	Room int

	zone   *Zone
	origin *origin
	match  match
	qtype  uint16
	ttl    uint32
	stale  *view // of an owner that is lost and has a part in the answer
	denied bool  // a host in our zones has an address that the owner may not publish

	// For addresses of services with endpoints that are hosts.
	alone     bool // hosts in other zones of ours are elsewhere as well
	addresses []netip.Addr
	hosts     []Host
}

// Host is an endpoint that must be looked up elsewhere.
type Host struct {
	Name     string // lower case, absolute
	InZone   bool   // in one of the zones, where it does not exist
	Unsynced bool   // ... as far as is known: the catalog is not
	Unheard  bool   // ... and is not waited for any longer
}

// match is what a name stands for.
type match struct {
	role     role
	entry    *entry
	instance *instance
	ends     ends                // of a service, an instance or a protocol
	protocol federation.Protocol // of an instance or a protocol
	address  netip.Addr          // of an address name
}

type role uint8

const (
	missing    role = iota // no such name
	empty                  // an empty non-terminal that a service may have the name of
	hollow                 // an empty non-terminal, and nothing else ever: dns.<origin>, _tcp.<fqdn>
	apex                   // with the service at the apex, if there is one
	nameServer             // ns.dns.<origin>
	service                // an fqdn
	ofInstance             // <id>.<fqdn>
	ofProtocol             // _<protocol>._tcp, of the fqdn or an instance
	ofAddress              // <ip>.addr.<fqdn>
)

// Lookup returns what the zone says of a name and a type. The name is lower
// case and absolute. It allocates nothing, but for the addresses of hosts and
// the names of addresses.
func (z *Zone) Lookup(name string, qtype uint16, now time.Time) Result {
	o := z.origin(name)
	if o == nil {
		return Result{Kind: Outside}
	}
	r := Result{zone: z, origin: o, qtype: qtype, match: z.match(o, name, now)}
	r.resolve(now)
	return r
}

// resolve decides what the match means for the type.
func (r *Result) resolve(now time.Time) {
	m := &r.match
	// One test of existence for all types, before any look at the type.
	switch m.role {
	case missing:
		r.Kind = [...]Kind{complete: NameError, awaited: Unsynced, unheard: Unheard}[r.zone.extent(r.origin, now)]
	case empty:
		if r.Kind = NoData; r.zone.extent(r.origin, now) != complete {
			r.Kind = Unsynced
		}
	case hollow:
		r.Kind = NoData
	default:
		if m.role == apex && (r.qtype == dns.TypeSOA || m.entry == nil) && r.zone.extent(r.origin, now) != complete {
			r.Kind = Unsynced // a secondary must not see an empty zone with a new serial
			return
		}
		r.ttl = r.origin.negativeTTL
		if m.entry != nil {
			r.ttl = r.zone.entryTTL(m.entry, now)
			r.age(m.entry)
		}
		r.Kind = r.kind(now)
	}
}

// kind tells whether the name, which exists, has records of the type.
func (r *Result) kind(now time.Time) Kind {
	m := &r.match
	has := false
	switch r.qtype {
	case dns.TypeANY:
		has = m.role != nameServer || len(r.origin.nameServer) > 0
	case dns.TypeSOA, dns.TypeNS:
		if has = m.role == apex; has {
			r.stale = nil // they are the zone's own
		}
	case dns.TypeA, dns.TypeAAAA:
		if m.entry != nil && m.entry.hosts && m.role != ofProtocol && m.role != ofAddress {
			return r.flatten(now)
		}
		has = r.hasAddress()
	case dns.TypeSRV:
		has = m.role != ofAddress && m.entry != nil && slices.ContainsFunc(m.ends, m.entry.hasTarget)
	case dns.TypeTXT:
		has = m.entry != nil && (m.role == apex || m.role == service || m.role == ofInstance)
	}
	if has {
		return Success
	}
	return NoData
}

// match finds what the name, which is in the origin, stands for.
func (z *Zone) match(o *origin, name string, now time.Time) match {
	switch {
	case name == o.name:
		m := match{role: apex, entry: z.winner(z.index.Get(name), now)} // nothing is above
		if m.entry != nil {
			m.ends = m.entry.all()
		}
		return m
	case name == o.dns:
		return match{role: hollow}
	case name == o.ns:
		return match{role: nameServer}
	case within(name, o.dns):
		return match{}
	}
	// Of the services above the name, the lowest that derives records from it has
	// it, and else it is an empty non-terminal if it is one of any of them. A
	// service further up whose owner comes first would have kept the lower one from
	// being published (holders), so only its empty non-terminals must be kept here.
	result, first := match{}, ^uint32(0)
	deeper := false
	for at := name; ; at = parent(at) {
		if n := z.index.Get(at); n != nil {
			e := z.holder(o, at, n, now)
			switch {
			case at == name && e != nil:
				return match{role: service, entry: e, ends: e.all()}
			case at == name && n.children > 0:
				result.role = empty
			case at != name && e != nil:
				m := e.match(relative(name, at))
				switch {
				case m.role == missing || deeper && z.shadowed(o, &m, now):
				case m.role == empty || m.role == hollow:
					result.role, first = m.role, min(first, e.owner)
				case e.owner <= first:
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
	return m.instance != nil && (m.role == ofProtocol || m.role == hollow) &&
		z.match(o, below(m.instance.label, m.entry.fqdn()), now).entry != m.entry
}

// claims reports whether the labels in front of the fqdn stand for something:
// records, or an empty non-terminal.
func (e *entry) claims(labels string) bool { return e.match(labels).role != missing }

// match finds what the labels in front of the fqdn stand for.
func (e *entry) match(labels string) match {
	if strings.HasPrefix(labels, "_") {
		return e.matchService(labels)
	}
	if first, ok := strings.CutSuffix(labels, "."+addrLabel); ok {
		if ip, ok := parseAddress(first); ok && e.has(ip) {
			return match{role: ofAddress, entry: e, address: ip}
		}
	}
	if in, ok := e.instance(labels); ok {
		return match{role: ofInstance, entry: e, instance: in, ends: in.ends, protocol: in.protocol}
	}
	if labels == addrLabel && e.hasIP() || e.above(labels) {
		return match{role: empty}
	}
	return match{}
}

// matchService finds _<protocol>._tcp[.<instance>] and the empty non-terminal
// _tcp[.<instance>].
func (e *entry) matchService(labels string) match {
	for i := range e.protocols {
		p := &e.protocols[i]
		for _, s := range serviceLabels[p.protocol] {
			label, ok := cutLabels(labels, s)
			if !ok {
				continue
			}
			if label == "" {
				return match{role: ofProtocol, entry: e, ends: p.ends, protocol: p.protocol}
			}
			if in, ok := e.instance(label); ok && in.protocol == p.protocol {
				return match{role: ofProtocol, entry: e, instance: in, ends: in.ends, protocol: p.protocol}
			}
			return match{}
		}
	}
	if label, ok := cutLabels(labels, tcpLabel); ok {
		if in, ok := e.instance(label); ok || label == "" {
			return match{role: hollow, entry: e, instance: in}
		}
	}
	return match{}
}

// cutLabels returns what follows the first labels of a relative name, if these
// are they.
func cutLabels(name, first string) (string, bool) {
	rest, ok := strings.CutPrefix(name, first)
	if rest == "" {
		return "", ok
	}
	return strings.CutPrefix(rest, ".")
}

func (e *entry) hasIP() bool {
	return slices.ContainsFunc(e.endpoints, func(ep endpoint) bool { return !ep.isHost() })
}

// hasAddress tells whether the match itself has an address of the type.
func (r *Result) hasAddress() bool {
	m := &r.match
	switch m.role {
	case nameServer:
		return len(r.origin.addresses(r.qtype)) > 0
	case ofAddress:
		return isOf(m.address, r.qtype)
	case ofProtocol:
		return false
	}
	return slices.ContainsFunc(m.ends, func(i uint16) bool {
		ip, ok := m.entry.endpoints[i].Address.IP()
		return ok && isOf(ip, r.qtype)
	})
}

const (
	// maxDepth is how many hosts in our own zones are followed one behind the
	// other, and maxFollowed how many in all for one query: catalogs may point
	// at each other in every way.
	maxDepth    = 8
	maxFollowed = 256

	// maxAddresses is how many A records fit a message.
	maxAddresses = maxSet / (rrHeader + 4)

	// maxVisited is how many endpoints are looked at for one query, from which on
	// no other service is followed.
	maxVisited = 2 * maxAddresses
)

// flatten collects the addresses of endpoints that are IP addresses, and of
// those that are names of this version. What remains is for the caller. A name
// has no CNAME beside its SRV and TXT (RFC 1034 section 3.6.2), so addresses
// stand at the name itself.
func (r *Result) flatten(now time.Time) Kind {
	seen := make(map[string]bool)
	step := []match{r.match}
	visited := 0
	for depth := 0; depth <= maxDepth && len(step) > 0; depth++ {
		var next []match
		for i := range step {
			if visited += len(step[i].ends); visited > maxVisited && depth > 0 {
				break
			}
			next = append(next, r.follow(&step[i], seen, now)...)
		}
		step = next
	}
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

// follow collects what the endpoints of one match are, and returns the services
// and instances among them.
func (r *Result) follow(m *match, seen map[string]bool, now time.Time) (next []match) {
	r.inherit(m.entry, now)
	for _, i := range m.ends {
		address := m.entry.endpoints[i].Address
		if ip, ok := address.IP(); ok {
			r.collect(m.entry, ip)
			continue
		}
		host, _ := address.Host()
		name := host.String()
		if seen[name] || len(seen) >= maxFollowed {
			continue
		}
		seen[name] = true
		o := r.zone.origin(name)
		if o == nil || r.alone && o != r.origin {
			r.hosts = append(r.hosts, Host{Name: name})
			continue
		}
		at := r.zone.match(o, name, now)
		switch at.role {
		case missing:
			known := r.zone.extent(o, now)
			r.hosts = append(r.hosts, Host{Name: name, InZone: true, Unsynced: known != complete, Unheard: known == unheard})
		case nameServer:
			r.ttl = min(r.ttl, o.negativeTTL)
			r.collect(nil, o.nameServer...)
		case ofAddress:
			r.inherit(at.entry, now)
			r.collect(at.entry, at.address)
		case empty, apex, service, ofInstance:
			if at.entry != nil {
				next = append(next, at)
			} else if r.zone.extent(o, now) != complete {
				r.hosts = append(r.hosts, Host{Name: name, InZone: true, Unsynced: true}) // a service may still come
			}
		}
	}
	return next
}

// collect takes the addresses of an entry, or of a name server, that are of the
// type and that the owner of the answer may publish.
func (r *Result) collect(from *entry, ips ...netip.Addr) {
	for _, ip := range ips {
		switch {
		case !isOf(ip, r.qtype):
		case !r.admits(from, ip):
			r.denied = true
		case len(r.addresses) < maxAddresses:
			r.addresses = append(r.addresses, ip)
		}
	}
}

// admits reports whether the owner of the answer may publish an address that it
// has from an entry. Nobody gets one in behind a host that he could not publish
// as an endpoint; his own were judged as such.
func (r *Result) admits(from *entry, ip netip.Addr) bool {
	owner := r.match.entry.owner
	admits := r.zone.owners[owner].admits
	return admits == nil || from != nil && from.owner == owner || admits(ip)
}

// inherit takes over the TTL and the staleness of a service on the way
// (RFC 2181 section 5.2: one TTL for an RRset).
func (r *Result) inherit(e *entry, now time.Time) {
	r.ttl = min(r.ttl, r.zone.entryTTL(e, now))
	r.age(e)
}

// Stale reports whether the answer comes from an owner that is lost.
func (r *Result) Stale() bool { return r.stale != nil }

// Lost reports whether an owner of the zone is lost, so that what the zone has
// not got may exist nevertheless.
func (r *Result) Lost() bool {
	return slices.ContainsFunc(r.origin.owners, func(i int) bool { return r.zone.owners[i].Lost })
}

// Denied reports whether the answer lacks an address of a host in our zones that
// the owner may not publish.
func (r *Result) Denied() bool { return r.denied }

// StaleOwner returns the ID of the lost owner of a stale answer. An answer that
// others have a part in need not be its of whom Source tells.
func (r *Result) StaleOwner() string {
	if r.stale == nil {
		return ""
	}
	return r.stale.id
}

func (r *Result) age(e *entry) {
	if r.stale == nil && r.zone.stale(e) {
		r.stale = &r.zone.owners[e.owner]
	}
}

// Hosts returns the hosts whose addresses belong to an Indirect result.
func (r *Result) Hosts() []Host { return r.hosts }

// Source tells where the answer to a name comes from: the owner's ID, the
// service and, for a name of an instance, the instance. The service is nil when
// no owner has the name.
func (r *Result) Source() (owner string, s *federation.Service, in *federation.Instance) {
	m := &r.match
	if m.entry == nil {
		return "", nil, nil
	}
	if m.instance != nil {
		in = &m.entry.service.Instances[m.instance.index]
	}
	return r.zone.owners[m.entry.owner].id, m.entry.service, in
}

// FQDN returns where the service of Source is published, or "".
func (r *Result) FQDN() string {
	if r.match.entry == nil {
		return ""
	}
	return r.match.entry.fqdn()
}

// Protocol returns what the instance of Source speaks, or what the service
// labels of the name say; zero for other names.
func (r *Result) Protocol() federation.Protocol { return r.match.protocol }

// parent returns the name without its first label, and "." for one label.
func parent(name string) string {
	rest := name[strings.IndexByte(name, '.')+1:]
	if rest == "" {
		return "."
	}
	return rest
}

// relative returns the labels of name in front of the name at, which it is
// below.
func relative(name, at string) string {
	if at == "." {
		return name[:len(name)-1]
	}
	return name[:len(name)-len(at)-1]
}
