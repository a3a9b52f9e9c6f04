package hostname

import (
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

const (
	maxCNAMEs = 8    // between a host and its addresses
	maxTTL    = 3600 // seconds
)

// readReply returns the addresses at the end of the chain of CNAMEs from the host, as found at a
// time. The result is a failure without a reply, with an rcode other than NOERROR and NXDOMAIN,
// where a chain has no end within maxCNAMEs, and where the reply is truncated, although that may
// have addresses.
func readReply(reply *dns.Msg, q hostQuestion, at time.Time) lookupResult {
	r := lookupResult{at: at, failed: true}
	if reply == nil || reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return r
	}
	r.ttl, r.life = maxTTL, negativeLife
	name := q.host
	for range maxCNAMEs + 1 {
		target := ""
		for _, rr := range reply.Answer {
			if !sameName(rr.Header().Name, name) {
				continue
			}
			switch rr := rr.(type) {
			case *dns.CNAME:
				target, r.ttl, r.alias = rr.Target, min(r.ttl, rr.Hdr.Ttl), true
			case *dns.A:
				r.addAddress(rr.A, &rr.Hdr, q.qtype)
			case *dns.AAAA:
				r.addAddress(rr.AAAA, &rr.Hdr, q.qtype)
			}
		}
		if target == "" || len(r.addresses) > 0 {
			r.failed = reply.Truncated
			break
		}
		name = target
	}
	if len(r.addresses) > 0 {
		r.life = time.Duration(r.ttl) * time.Second
	}
	return r
}

// addAddress adds the address of a record, if the record is of the type.
func (r *lookupResult) addAddress(ip net.IP, h *dns.RR_Header, qtype uint16) {
	if a, ok := netip.AddrFromSlice(ip); ok && h.Rrtype == qtype {
		r.addresses = append(r.addresses, a.Unmap())
		r.ttl = min(r.ttl, h.Ttl)
	}
}

func sameName(a, b string) bool { return dns.CanonicalName(a) == dns.CanonicalName(b) }
