package zone_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
)

// TestLargestServiceFitsAMessage has row 7.3: as much as the limits of one service allow, and
// every reply fits a message over TCP, with room for what others add.
func TestLargestServiceFitsAMessage(t *testing.T) {
	const most = 1000 // endpoints and instances of a service
	name := longName(200)
	long := &federation.Service{Name: "long", FQDN: origin(name)}
	short := &federation.Service{Name: "short", FQDN: origin("s.fed.example")}
	for i := range most {
		v6 := address(fmt.Sprintf("2001:db8::%x", i))
		v4 := address(fmt.Sprintf("198.18.%d.%d", i/256, i%256))
		long.Endpoints = append(long.Endpoints, federation.Endpoint{Address: v6, Port: uint16(i + 1)})
		short.Endpoints = append(short.Endpoints, federation.Endpoint{Address: v4, Port: uint16(i + 1)})
		short.Instances = append(short.Instances, federation.Instance{ID: fmt.Sprintf("i%d", i), Protocol: federation.HTTP})
		long.Instances = append(long.Instances, federation.Instance{
			ID: fmt.Sprintf("i%d", i), Protocol: federation.HTTP, Description: strings.Repeat(`\`, 1300), Metadata: manyPairs(4, 255),
		})
	}
	b := builder(owner("o", "fed.example"))
	b.Put(0, long, 1)
	b.Put(0, short, 1)
	z := b.Publish(now)
	tests := []struct {
		name     string
		qtype    uint16
		min, max int // records
	}{
		{name + ".", dns.TypeAAAA, most, most},
		{name + ".", dns.TypeSRV, 200, 300},
		{name + ".", dns.TypeTXT, 40, 60},
		{"i7." + name + ".", dns.TypeSRV, 200, 300},
		{"_http._tcp." + name + ".", dns.TypeSRV, 200, 300},
		{"s.fed.example.", dns.TypeA, most, most},
		{"s.fed.example.", dns.TypeSRV, most, most},
		{"s.fed.example.", dns.TypeTXT, most + 1, most + 1},
	}
	for _, tt := range tests {
		t.Run(dns.Type(tt.qtype).String()+" "+tt.name[:3], func(t *testing.T) {
			r := z.Lookup(tt.name, tt.qtype, now)
			answer := reply.AppendAnswer(nil, &r, tt.name, 0)
			if len(answer) < tt.min || len(answer) > tt.max {
				t.Errorf("%d records, want %d to %d", len(answer), tt.min, tt.max)
			}
			checkReply(t, &r, tt.name)
			if glue := reply.AppendGlue(nil, &r, answer, 0, now); tt.qtype == dns.TypeSRV && len(glue) != len(answer) {
				t.Errorf("%d addresses for %d targets", len(glue), len(answer))
			}
		})
	}
	if d := cmp.Diff(faultCount{subtree.FaultSize: 2, subtree.FaultTXT: most}, faults(b.Publish(now), 0)); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

// checkReply makes the reply of a result, without what is optional, and checks
// that it is one that can be sent.
func checkReply(t *testing.T, r *zone.Result, name string) {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeANY)
	m.Response, m.Compress = true, true
	switch r.Kind {
	case zone.NameError, zone.NoData:
		m.Ns = reply.AppendAuthority(nil, r)
		if soa, ok := m.Ns[0].(*dns.SOA); len(m.Ns) != 1 || !ok || !dns.IsSubDomain(soa.Hdr.Name, name) || soa.Hdr.Ttl != soa.Minttl {
			t.Fatalf("authority %v", m.Ns)
		}
	case zone.Success, zone.Indirect:
		m.Answer = reply.AppendAnswer(nil, r, name, 0)
		if len(m.Answer) == 0 && r.Kind == zone.Success {
			t.Fatal("success without records")
		}
	}
	seen := make(map[string]bool)
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Name != name || h.Ttl < 1 || h.Ttl != m.Answer[0].Header().Ttl || h.Rrtype != m.Answer[0].Header().Rrtype || h.Class != dns.ClassINET {
			t.Fatalf("record %s", rr)
		}
		if seen[rr.String()] {
			t.Fatalf("twice: %s", rr)
		}
		seen[rr.String()] = true
	}
	// The server truncates by the former, and sends the latter.
	if n := m.Len(); n > dns.MaxMsgSize-512 {
		t.Fatalf("the server takes the reply for %d octets", n)
	}
	wire, err := m.Pack()
	if err != nil || len(wire) > dns.MaxMsgSize-512 {
		t.Fatalf("reply of %d octets: %v", len(wire), err)
	}
	if err := new(dns.Msg).Unpack(wire); err != nil {
		t.Fatalf("reply does not unpack: %v", err)
	}
}

// TestHostsAreBounded follows a chain of services to its eighth.
func TestHostsAreBounded(t *testing.T) {
	b := builder(owner("o", "fed.example"))
	b.Put(0, service("c13 c13.fed.example 192.0.2.13@80 i/TCP"), 1)
	for i := range 13 {
		b.Put(0, service(fmt.Sprintf("c%d c%d.fed.example c%d.fed.example@80 192.0.2.%d@80 i/TCP", i, i, i+1, i)), 1)
	}
	// A detour must not keep the direct way from being taken.
	b.Put(0, service("detour detour.fed.example a.fed.example@80 c9.fed.example@80 i/TCP"), 1)
	b.Put(0, service("a a.fed.example c2.fed.example@80 i/TCP"), 1)
	z := b.Publish(now)
	for name, want := range map[string]int{"c0.fed.example.": 9, "c3.fed.example.": 9, "detour.fed.example.": 12} {
		r := z.Lookup(name, dns.TypeA, now)
		if ips, _ := r.FollowedAddresses(); len(ips) != want || len(r.Hosts()) > 0 {
			t.Errorf("%s: %d addresses, want %d, and hosts %v", name, len(ips), want, r.Hosts())
		}
	}
}

// TestFollowedEndpointsAreBounded has the exact bounds of what one query follows:
// 256 hosts, services until they have more than 8,094 endpoints in all, and 4,047
// addresses.
func TestFollowedEndpointsAreBounded(t *testing.T) {
	b := builder(owner("o", "fed.example"))
	// put offers a service with one IPv4 address of its own and other endpoints.
	n := 0
	put := func(name string, others ...string) {
		n++
		s := service(fmt.Sprintf("%s %s.fed.example 10.0.%d.%d@80 i/TCP", name, name, n/256, n%256))
		for _, at := range others {
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address(at), Port: 80})
		}
		b.Put(0, s, 1)
	}
	v6 := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("2001:db8::%x", i))
		}
		return all
	}
	for i := range 300 {
		put(fmt.Sprintf("one%03d", i))
	}
	for i := range 8 {
		put(fmt.Sprintf("big%d", i), v6(999)...)
	}
	put("medium", v6(82)...) // 83 endpoints
	put("more", v6(83)...)   // 84
	hosts := func(format string, n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf(format+".fed.example", i))
		}
		return all
	}
	put("hosts", hosts("one%03d", 300)...)
	// Of each of the next two, the endpoints are 1 + 10 and 8,000, and 83 or 84.
	put("within", append(hosts("big%d", 8), "medium.fed.example", "one000.fed.example")...)
	put("beyond", append(hosts("big%d", 8), "more.fed.example", "one000.fed.example")...)
	for i := range 5 {
		s := service(fmt.Sprintf("v4%d v4%d.fed.example i/TCP", i, i))
		for j := range 1000 {
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address(fmt.Sprintf("10.1%d.%d.%d", i, j/250, j%250)), Port: 80})
		}
		b.Put(0, s, 1)
	}
	put("full", hosts("v4%d", 5)...)
	z := b.Publish(now)
	for name, want := range map[string]int{
		"hosts":  1 + 256,
		"within": 1 + 8 + 1, // exactly 8,094 with medium; the next one is too much
		"beyond": 1 + 8,
		"full":   4047,
	} {
		r := z.Lookup(name+".fed.example.", dns.TypeA, now)
		if ips, ok := r.FollowedAddresses(); len(ips) != want || !ok || r.Kind != zone.Success {
			t.Errorf("%s: %d addresses, want %d", name, len(ips), want)
		}
	}
}

// manyPairs returns n pairs of metadata whose strings have a length.
func manyPairs(n, length int) []federation.Pair {
	var pairs []federation.Pair
	for i := range n {
		key := fmt.Sprintf("k%d", i)
		pairs = append(pairs, federation.Pair{Key: key, Value: strings.Repeat("x", length-len("md.=")-len(key))})
	}
	return pairs
}
