package record

import (
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

const (
	// MaxSet bounds an RRset, in octets, so that a reply over TCP has room for
	// header and question, and 512 more for SOA, OPT and what others add.
	MaxSet = dns.MaxMsgSize - 512 - (12 + 255 + 4)

	// Header is the size of a record without RDATA whose name is the one asked
	// for: a pointer, type, class, TTL and length.
	Header = 2 + 2 + 2 + 4 + 2

	// SRVHeader is the size of an SRV record without the text of its target,
	// which is not compressed (RFC 2782) and one octet longer than its text.
	SRVHeader = Header + 6 + 1

	// MinAddress is the size of the smallest address record, an A record.
	MinAddress = Header + 4

	// MaxAddresses is how many A records fit an RRset.
	MaxAddresses = MaxSet / MinAddress
)

// Timers of the SOA, in seconds. Secondaries are notified; they refresh often
// because a federated zone changes often.
const (
	refresh = 300
	retry   = 60
	expire  = 86400
)

func newHeader(name string, qtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: qtype, Class: dns.ClassINET, Ttl: ttl}
}

// SOA returns a start of authority whose TTL is its MINIMUM (RFC 2308 sections 3
// and 5).
func SOA(name, ns, mailbox string, serial, ttl uint32) *dns.SOA {
	return &dns.SOA{
		Hdr: newHeader(name, dns.TypeSOA, ttl), Ns: ns, Mbox: mailbox,
		Serial: serial, Refresh: refresh, Retry: retry, Expire: expire, Minttl: ttl,
	}
}

// NS returns the record of a name server.
func NS(name, ns string, ttl uint32) *dns.NS {
	return &dns.NS{Hdr: newHeader(name, dns.TypeNS, ttl), Ns: ns}
}

// srvWeight is above 0, because clients do not shuffle records whose weights sum up
// to 0 (Go's net.LookupSRV among them) and would all use the first.
const srvWeight = 100

// SRV returns the record of an endpoint.
func SRV(name, target string, port, priority uint16, ttl uint32) dns.SRV {
	return dns.SRV{Hdr: newHeader(name, dns.TypeSRV, ttl), Priority: priority, Weight: srvWeight, Port: port, Target: target}
}

// AnyAnswer returns the answer to a query for ANY (RFC 8482 section 4.2).
func AnyAnswer(name string, ttl uint32) dns.RR {
	return &dns.HINFO{Hdr: newHeader(name, dns.TypeHINFO, ttl), Cpu: "RFC8482"}
}

// TypeHolds reports whether a record of the type, A or AAAA, can have an address. The address is
// unmapped.
func TypeHolds(qtype uint16, ip netip.Addr) bool { return ip.Is4() == (qtype == dns.TypeA) }

// AppendAddresses returns rrs with the A or AAAA records of addresses appended, as many as fit a
// message. The addresses are of one type.
func AppendAddresses(rrs []dns.RR, name string, ips []netip.Addr, ttl uint32) []dns.RR {
	switch {
	case len(ips) == 0:
		return rrs
	case ips[0].Is4():
		return appendSet[aRecord](rrs, name, ips[:min(len(ips), MaxAddresses)], ttl)
	}
	return appendSet[aaaaRecord](rrs, name, ips[:min(len(ips), MaxSet/(Header+16))], ttl)
}

// NewAddress returns the A or AAAA record of one address.
func NewAddress(name string, ip netip.Addr, ttl uint32) dns.RR {
	if ip.Is4() {
		return new(aRecord).fill(name, ip, ttl)
	}
	return new(aaaaRecord).fill(name, ip, ttl)
}

// AddressBlock makes address records, those of each type in one allocation.
type AddressBlock struct {
	Room int // how many records there may be of a type

	v4 []aRecord
	v6 []aaaaRecord
}

// NewAddress returns what the function NewAddress does.
func (b *AddressBlock) NewAddress(name string, ip netip.Addr, ttl uint32) dns.RR {
	if ip.Is4() {
		return takeRecord(&b.v4, b.Room).fill(name, ip, ttl)
	}
	return takeRecord(&b.v6, b.Room).fill(name, ip, ttl)
}

// takeRecord takes the first of some records, of which it makes so many where there are none.
func takeRecord[R any](records *[]R, room int) *R {
	if len(*records) == 0 {
		*records = make([]R, room)
	}
	first := &(*records)[0]
	*records = (*records)[1:]
	return first
}

// aRecord and aaaaRecord hold a record and its address in one allocation.
type aRecord struct {
	dns.A
	ip [4]byte
}

type aaaaRecord struct {
	dns.AAAA
	ip [16]byte
}

func (r *aRecord) fill(name string, ip netip.Addr, ttl uint32) dns.RR {
	r.ip = ip.As4()
	r.A = dns.A{Hdr: newHeader(name, dns.TypeA, ttl), A: r.ip[:]}
	return &r.A
}

//go:noinline // it would be in the frame of NewAddress, beneath which the other fill is called
func (r *aaaaRecord) fill(name string, ip netip.Addr, ttl uint32) dns.RR {
	r.ip = ip.As16()
	r.AAAA = dns.AAAA{Hdr: newHeader(name, dns.TypeAAAA, ttl), AAAA: r.ip[:]}
	return &r.AAAA
}

// appendSet returns rrs with the records of one RRset appended, which are one allocation.
func appendSet[R any, P interface {
	*R
	fill(name string, ip netip.Addr, ttl uint32) dns.RR
}](rrs []dns.RR, name string, ips []netip.Addr, ttl uint32) []dns.RR {
	all := make([]R, len(ips))
	rrs = slices.Grow(rrs, len(ips))
	for i, ip := range ips {
		rrs = append(rrs, P(&all[i]).fill(name, ip, ttl))
	}
	return rrs
}
