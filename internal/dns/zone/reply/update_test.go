package reply_test

import (
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// huge makes the i-th of services with as many endpoints as there may be, and names
// that make their records long.
func huge(i int, network byte) *federation.Service {
	s := service(fmt.Sprintf("%03d-%s.%s.%s", i, strings.Repeat("a", 59), strings.Repeat("b", 63), strings.Repeat("c", 63)))
	s.Name = fmt.Sprint(i)
	for n := range limits.Endpoints {
		ip := netip.AddrFrom4([4]byte{network, byte(i), byte(100 + n/100), byte(100 + n%100)})
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Value(federation.ParseAddress(ip.String())), Port: 80})
	}
	return s
}

// TestUpdateTooLarge has a difference that is sent, as it has less than 16 MiB, and a
// larger one, instead of which the whole zone is, although that is larger still.
func TestUpdateTooLarge(t *testing.T) {
	const (
		services = 20
		limit    = 16 << 20
		origin   = "fed.example."
	)
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{
		{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseOrigin("fed.example"))}, TTL: 30, NegativeTTL: 5},
	}}, nil)
	b.SetStatus(0, zone.Status{Live: 1, Known: true})
	b.Publish(now)
	for i := range services {
		b.Put(0, huge(i, 10), 1)
	}
	first := now.Add(time.Second)
	z := b.Publish(first)
	serial, whole := z.SOA(origin).Serial, octets(reply.FullTransfer(z, origin, first))

	moved := 0
	update := func(n int) iter.Seq[[]dns.RR] {
		for ; moved < n; moved++ {
			b.Put(0, huge(moved, 11), 1)
		}
		at := first.Add(time.Duration(n) * time.Second)
		return reply.IncrementalTransfer(b.Publish(at), origin, serial, at)
	}
	difference := octets(update(6))
	if difference < whole/2 || difference > limit {
		t.Errorf("%d octets are sent instead of a difference", difference)
	}
	if needed := difference / 6 * 8; needed < limit*11/10 || needed > whole*9/10 {
		t.Fatalf("this test needs a difference of more than %d octets in a zone of more, not one of %d in %d", limit, needed, whole)
	}
	if got := octets(update(8)); got != whole {
		t.Errorf("%d octets are sent instead of the whole zone of %d", got, whole)
	}
}

// octets returns the size of records without compression.
func octets(groups iter.Seq[[]dns.RR]) (n int) {
	for rrs := range groups {
		for _, rr := range rrs {
			n += dns.Len(rr)
		}
	}
	return n
}
