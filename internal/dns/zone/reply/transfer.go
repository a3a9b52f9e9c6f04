package reply

import (
	"iter"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
)

// FullTransfer returns the records of an origin for AXFR (RFC 5936), a name or less at a time: SOA,
// NS, all names of zone.Zone.Names, and the SOA again. It returns none for a name that is not an
// origin.
func FullTransfer(z *zone.Zone, origin string, now time.Time) iter.Seq[[]dns.RR] {
	return func(yield func([]dns.RR) bool) {
		soa, ns := z.SOA(origin), z.NS(origin)
		if soa == nil || !yield([]dns.RR{soa}) || !yield([]dns.RR{ns}) {
			return
		}
		for name := range z.Names(origin, now) {
			if rrs := appendRecords(nil, z, origin, name, now); len(rrs) > 0 && !yield(rrs) {
				return
			}
		}
		yield([]dns.RR{z.SOA(origin)})
	}
}
