package zone

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxSet bounds an RRset, in octets, so that a reply over TCP has room for
	// header and question, and 512 more for SOA, OPT and what others add.
	maxSet = dns.MaxMsgSize - 512 - (12 + 255 + 4)

	// rrHeader is the size of a record without RDATA whose owner is the name
	// asked for: a pointer, type, class, TTL and length.
	rrHeader = 2 + 2 + 2 + 4 + 2

	// srvHeader is the size of an SRV record but for the text of its target,
	// which is not compressed (RFC 2782) and one octet longer than that.
	srvHeader = rrHeader + 6 + 1

	// A weight above 0, because clients do not shuffle records whose weights
	// sum up to 0 (Go's net.LookupSRV among them) and would all use the first.
	weight = 100
)

// Answer returns the records of a Success, or of an Indirect with the addresses
// that were found here. Every record is made for this call and is the caller's.
// The owner is the name as the client spelled it, on every record (RFC 4343).
func (r *Result) Answer(owner string) []dns.RR {
	m := &r.match
	switch r.qtype {
	case dns.TypeA, dns.TypeAAAA:
		return r.addressAnswer(owner)
	case dns.TypeSRV:
		return m.entry.srv(owner, m.ends, r.ttl, r.room())
	case dns.TypeTXT:
		return m.entry.txt(owner, m.instance, r.ttl, r.room())
	case dns.TypeSOA:
		return []dns.RR{r.origin.soa(owner)}
	case dns.TypeNS:
		return []dns.RR{r.origin.nsRecord(owner)}
	}
	// ANY (RFC 8482 section 4.2)
	return []dns.RR{&dns.HINFO{Hdr: header(owner, dns.TypeHINFO, r.ttl), Cpu: "RFC8482"}}
}

func (r *Result) room() int {
	if r.Room > 0 {
		return min(r.Room, maxSet)
	}
	return maxSet
}

func (r *Result) addressAnswer(owner string) []dns.RR {
	m := &r.match
	most := r.room()/(rrHeader+4) + 1
	switch {
	case m.role == nameServer:
		return addressSet(owner, r.origin.addresses(r.qtype), r.ttl)
	case m.role == ofAddress:
		return []dns.RR{addressRecord(owner, m.address, r.ttl)}
	case m.entry.hosts:
		return addressSet(owner, r.addresses[:min(len(r.addresses), most)], r.ttl)
	}
	return m.entry.addressSet(owner, r.qtype, m.ends, r.ttl, most)
}

// Resolved returns the records of an Indirect result once its hosts are looked
// up: its own addresses and the others, each once, with one TTL, the smallest
// (RFC 2181 section 5.2).
func (r *Result) Resolved(owner string, others []netip.Addr, ttl uint32) []dns.RR {
	all := make([]netip.Addr, 0, len(r.addresses)+len(others))
	all = append(all, r.addresses...)
	for _, ip := range others {
		if isOf(ip, r.qtype) {
			all = append(all, ip)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return addressSet(owner, slices.Compact(all), min(r.ttl, ttl))
}

// addressSet returns the A or AAAA records of an entry, the first ones of them.
// The endpoints are in the order of their SRV targets, so equal addresses are
// neighbours.
func (e *entry) addressSet(owner string, qtype uint16, set ends, ttl uint32, most int) []dns.RR {
	ips := make([]netip.Addr, 0, 8)
	for _, i := range set {
		if len(ips) == most {
			break
		}
		ip, ok := e.endpoints[i].Address.IP()
		if ok && isOf(ip, qtype) && (len(ips) == 0 || ips[len(ips)-1] != ip) {
			ips = append(ips, ip)
		}
	}
	return addressSet(owner, ips, ttl)
}

// addressSet returns the A or AAAA records of addresses that are all of one
// type, as many as fit a message.
func addressSet(owner string, ips []netip.Addr, ttl uint32) []dns.RR {
	switch {
	case len(ips) == 0:
		return nil
	case ips[0].Is4():
		return records[aRecord](owner, ips[:min(len(ips), maxSet/(rrHeader+4))], ttl)
	}
	return records[aaaaRecord](owner, ips[:min(len(ips), maxSet/(rrHeader+16))], ttl)
}

// isOf tells whether an address is what a record of the type holds.
func isOf(ip netip.Addr, qtype uint16) bool { return ip.Is4() == (qtype == dns.TypeA) }

// aRecord and aaaaRecord hold a record and its address in one allocation.
type aRecord struct {
	dns.A
	ip [4]byte
}

type aaaaRecord struct {
	dns.AAAA
	ip [16]byte
}

func (r *aRecord) set(owner string, ip netip.Addr, ttl uint32) dns.RR {
	r.ip = ip.As4()
	r.A = dns.A{Hdr: header(owner, dns.TypeA, ttl), A: r.ip[:]}
	return &r.A
}

func (r *aaaaRecord) set(owner string, ip netip.Addr, ttl uint32) dns.RR {
	r.ip = ip.As16()
	r.AAAA = dns.AAAA{Hdr: header(owner, dns.TypeAAAA, ttl), AAAA: r.ip[:]}
	return &r.AAAA
}

// addressRecord returns the A or AAAA record of one address.
func addressRecord(owner string, ip netip.Addr, ttl uint32) dns.RR {
	if ip.Is4() {
		return new(aRecord).set(owner, ip, ttl)
	}
	return new(aaaaRecord).set(owner, ip, ttl)
}

// records makes the records of one RRset in one allocation.
func records[R any, P interface {
	*R
	set(owner string, ip netip.Addr, ttl uint32) dns.RR
}](owner string, ips []netip.Addr, ttl uint32) []dns.RR {
	all := make([]R, len(ips))
	rrs := make([]dns.RR, len(ips))
	for i, ip := range ips {
		rrs[i] = P(&all[i]).set(owner, ip, ttl)
	}
	return rrs
}

// hasTarget reports whether the SRV target of an endpoint is a name that fits
// DNS.
func (e *entry) hasTarget(i uint16) bool { return e.targetLen(e.endpoints[i].Address) <= maxName }

// srv returns the SRV records of the endpoints that have a target, in their
// order: as many as fit a message, and until there is one more than fits room.
func (e *entry) srv(owner string, set ends, ttl uint32, room int) []dns.RR {
	most := min(len(set), 1+room/srvHeader)
	records := make([]dns.SRV, 0, most)
	rrs := make([]dns.RR, 0, most)
	size := 0
	for _, i := range set {
		ep := &e.endpoints[i]
		n := e.targetLen(ep.Address)
		if n > maxName {
			continue
		}
		if size += srvHeader + n; size > maxSet {
			break
		}
		records = append(records, dns.SRV{
			Hdr: header(owner, dns.TypeSRV, ttl), Weight: weight, Port: ep.Port, Target: e.target(ep.Address),
		})
		rrs = append(rrs, &records[len(records)-1])
		if size > room {
			break
		}
	}
	return rrs
}

// Glue returns the addresses of the targets in an SRV answer of this result, in
// the order of the answer, and of the name server in an NS answer. RRsets are
// whole and stand one behind the other. All records are the caller's.
//
// A target that is a host has glue when it is in the same origin, as resolvers
// drop data of other zones (RFC 2181 section 5.4.1), and its endpoints are no
// hosts in turn.
func (r *Result) Glue(answer []dns.RR, now time.Time) []dns.RR {
	switch r.qtype {
	case dns.TypeNS:
		return r.origin.nsAddresses()
	case dns.TypeSRV:
		return r.targetGlue(answer, now)
	}
	return nil
}

func (r *Result) targetGlue(answer []dns.RR, now time.Time) []dns.RR {
	e := r.match.entry
	glue := make([]dns.RR, 0, len(answer))
	last, n := "", 0
	for _, i := range r.match.ends {
		if n == len(answer) || len(glue) > r.room()/(rrHeader+4) {
			break
		}
		if !e.hasTarget(i) {
			continue
		}
		target := answer[n].(*dns.SRV).Target
		n++
		if target == last { // with several ports it has one set of addresses
			continue
		}
		last = target
		if ip, ok := e.endpoints[i].Address.IP(); ok {
			glue = append(glue, addressRecord(target, ip, r.ttl))
		} else if r.zone.origin(target) == r.origin {
			glue = append(glue, r.hostGlue(target, now)...)
		}
	}
	return glue
}

// hostGlue returns the addresses of a host in the origin of the result: all of
// them or, when there is one that the owner of the answer may not publish, none.
func (r *Result) hostGlue(host string, now time.Time) (glue []dns.RR) {
	m := r.zone.match(r.origin, host, now)
	if m.entry != nil && m.entry.hosts && slices.ContainsFunc(m.ends, func(i uint16) bool { return m.entry.endpoints[i].isHost() }) {
		return nil
	}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		t := Result{zone: r.zone, origin: r.origin, match: m, qtype: qtype, Room: r.Room}
		if t.resolve(now); t.Kind == Success {
			glue = append(glue, t.Answer(host)...)
		}
	}
	if slices.ContainsFunc(glue, func(rr dns.RR) bool { return !r.admits(m.entry, addressOf(rr)) }) {
		return nil
	}
	return glue
}

// addressOf returns the address that an A or AAAA record holds.
func addressOf(rr dns.RR) netip.Addr {
	switch rr := rr.(type) {
	case *dns.A:
		ip, _ := netip.AddrFromSlice(rr.A)
		return ip
	case *dns.AAAA:
		ip, _ := netip.AddrFromSlice(rr.AAAA)
		return ip
	}
	return netip.Addr{}
}

// Authority returns the SOA of a negative answer: exactly one record (RFC 2308
// section 3).
func (r *Result) Authority() []dns.RR { return []dns.RR{r.origin.soa(r.origin.name)} }

// Timers of the SOA, in seconds. Secondaries are notified; they refresh often
// because a federated zone changes often.
const (
	refresh = 300
	retry   = 60
	expire  = 86400
)

// soa has one TTL everywhere, equal to its MINIMUM (RFC 2308 sections 3 and 5).
func (o *origin) soa(owner string) *dns.SOA {
	return &dns.SOA{
		Hdr: header(owner, dns.TypeSOA, o.negativeTTL), Ns: o.ns, Mbox: o.mailbox,
		Serial: o.serial, Refresh: refresh, Retry: retry, Expire: expire, Minttl: o.negativeTTL,
	}
}

func (o *origin) nsRecord(owner string) *dns.NS {
	return &dns.NS{Hdr: header(owner, dns.TypeNS, o.negativeTTL), Ns: o.ns}
}

// nsAddresses returns the addresses of the name server.
func (o *origin) nsAddresses() []dns.RR {
	return append(addressSet(o.ns, o.addresses(dns.TypeA), o.negativeTTL), addressSet(o.ns, o.addresses(dns.TypeAAAA), o.negativeTTL)...)
}

// addresses returns those of the name server that are of the type.
func (o *origin) addresses(qtype uint16) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(o.nameServer), func(ip netip.Addr) bool { return !isOf(ip, qtype) })
}

func header(owner string, rrtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}
