package zone_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
)

// TestEachRecordOnce has rows 1.2, 2.8 and 7.1: each record once, in an order that does
// not depend on that of the endpoints.
func TestEachRecordOnce(t *testing.T) {
	endpoints := []string{"192.0.2.10@80", "192.0.2.1@443", "192.0.2.1@80", "192.0.2.1@80", "2001:db8::1@80", "::ffff:192.0.2.1@80"}
	for _, order := range permutations(len(endpoints)) {
		text := "s s.fed.example i/TCP"
		for _, i := range order {
			text += " " + endpoints[i]
		}
		b := builder(owner("o", "fed.example"))
		b.Put(0, service(text), 1)
		expect(t, b.Publish(now), now,
			"s A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.10",
			"s AAAA | NOERROR | 30 AAAA 2001:db8::1",
			"s SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.s.fed.example. | 30 SRV 0 100 443 192-0-2-1.addr.s.fed.example."+
				" | 30 SRV 0 100 80 192-0-2-10.addr.s.fed.example. | 30 SRV 0 100 80 2001-0db8-0000-0000-0000-0000-0000-0001.addr.s.fed.example.",
		)
		if t.Failed() {
			t.Fatalf("endpoints in order %v", order)
		}
	}
}

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
			answer := reply.Answer(nil, &r, tt.name, 0)
			if len(answer) < tt.min || len(answer) > tt.max {
				t.Errorf("%d records, want %d to %d", len(answer), tt.min, tt.max)
			}
			checkReply(t, &r, tt.name)
			if glue := reply.Glue(nil, &r, answer, 0, now); tt.qtype == dns.TypeSRV && len(glue) != len(answer) {
				t.Errorf("%d addresses for %d targets", len(glue), len(answer))
			}
		})
	}
	if d := cmp.Diff(faultCount{subtree.FaultSize: 2, subtree.FaultTXT: most}, faults(b, 0)); d != "" {
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
		m.Ns = reply.Authority(nil, r)
		if soa, ok := m.Ns[0].(*dns.SOA); len(m.Ns) != 1 || !ok || !dns.IsSubDomain(soa.Hdr.Name, name) || soa.Hdr.Ttl != soa.Minttl {
			t.Fatalf("authority %v", m.Ns)
		}
	case zone.Success, zone.Indirect:
		m.Answer = reply.Answer(nil, r, name, 0)
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

// TestHostsInOurZonesAreFollowed has rows 1.2 to 1.5: hosts in our zones are followed to their
// addresses, and those elsewhere are left to look up.
func TestHostsInOurZonesAreFollowed(t *testing.T) {
	b := builder(owner("o1", "fed.example"), owner("o2", "other.example"))
	for _, text := range []string{
		"plain plain.fed.example 192.0.2.1@80 2001:db8::1@80 i/TCP",
		"mix mix.fed.example 192.0.2.2@80 plain.fed.example@80 gw.example.net@80 gw.example.net@81 i/TCP",
		"same same.fed.example 192.0.2.1@80 plain.fed.example@80 i/TCP",
		"self self.fed.example self.fed.example@80 i/TCP",
		"me me.fed.example me.fed.example@80 192.0.2.3@80 i/TCP",
		"ping ping.fed.example pong.fed.example@80 i/TCP",
		"pong pong.fed.example ping.fed.example@80 i/TCP",
		"one one.fed.example i.two.fed.example@80 i/TCP",
		"two two.fed.example 192.0.2.4@80[a] 192.0.2.5@80 i/TCP[a]",
		"addr addr.fed.example 192-0-2-4.addr.two.fed.example@80 192-0-2-9.addr.two.fed.example@80 i/TCP",
		"missing missing.fed.example nope.fed.example@80 i/TCP",
		"above above.fed.example under.fed.example@80 fed.example@80 i/TCP",
		"deep deep.under.fed.example 192.0.2.6@80 i/TCP",
		"ns ns.fed.example ns.dns.fed.example@80 i/TCP",
		"far far.fed.example far.other.example@80 i/TCP",
		"old old.fed.example old.other.example@80 i/TCP",
	} {
		b.Put(0, service(text), 1)
	}
	b.Put(1, service("far far.other.example 192.0.2.7@80 i/TCP"), 2)
	b.Put(1, service("old old.other.example 192.0.2.8@80 i/TCP"), 1)
	b.SetStatus(1, zone.Status{Live: 2, Known: true, Expires: now.Add(9500 * time.Millisecond)})
	z := b.Publish(now)
	expect(t, z, now,
		"mix A | INDIRECT | 30 A 192.0.2.1 | 30 A 192.0.2.2 | host gw.example.net.",
		"mix AAAA | INDIRECT | 30 AAAA 2001:db8::1 | host gw.example.net.",
		"mix SRV | INDIRECT | 30 SRV 0 100 80 192-0-2-2.addr.mix.fed.example. | 30 SRV 0 100 80 gw.example.net."+
			" | 30 SRV 0 100 81 gw.example.net. | 30 SRV 0 100 80 plain.fed.example. | host gw.example.net.",
		"same A | NOERROR | 30 A 192.0.2.1",
		"self ping pong A AAAA | NODATA",
		"me A | NOERROR | 30 A 192.0.2.3",
		"one A | NOERROR | 30 A 192.0.2.4",
		"addr A | INDIRECT | 30 A 192.0.2.4 | host 192-0-2-9.addr.two.fed.example.",
		"missing A | INDIRECT | host nope.fed.example.",
		"above A | NODATA",
		"ns A | NOERROR | 5 A 192.0.2.53",
		"far A | NOERROR | 30 A 192.0.2.7",
		"old A | NOERROR | 9 A 192.0.2.8",
	)
}

// TestHostsAreBounded follows a chain of services to its eighth, and a service
// that points at more hosts than are followed.
func TestHostsAreBounded(t *testing.T) {
	b := builder(owner("o", "fed.example"))
	b.Put(0, service("c13 c13.fed.example 192.0.2.13@80 i/TCP"), 1)
	for i := range 13 {
		b.Put(0, service(fmt.Sprintf("c%d c%d.fed.example c%d.fed.example@80 192.0.2.%d@80 i/TCP", i, i, i+1, i)), 1)
	}
	// A detour must not keep the direct way from being taken.
	b.Put(0, service("detour detour.fed.example a.fed.example@80 c9.fed.example@80 i/TCP"), 1)
	b.Put(0, service("a a.fed.example c2.fed.example@80 i/TCP"), 1)

	many := &federation.Service{Name: "many", FQDN: origin("many.fed.example"), Instances: []federation.Instance{{ID: "i", Protocol: federation.TCP}}}
	for i := range 1000 {
		host := fmt.Sprintf("m%d.fed.example", i)
		many.Endpoints = append(many.Endpoints, federation.Endpoint{Address: address(host), Port: 80})
		s := &federation.Service{Name: host, FQDN: origin(host), Instances: many.Instances}
		for j := range 100 {
			ip := fmt.Sprintf("10.%d.%d.%d", i/256, i%256, j)
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address(ip), Port: 80})
		}
		b.Put(0, s, 1)
	}
	b.Put(0, many, 1)
	z := b.Publish(now)

	addresses := func(name string) int {
		r := z.Lookup(name, dns.TypeA, now)
		if len(r.Hosts()) > 0 {
			t.Errorf("%s: hosts %v", name, r.Hosts())
		}
		checkReply(t, &r, name)
		return len(reply.Answer(nil, &r, name, 0))
	}
	for name, want := range map[string]int{"c0.fed.example.": 9, "c3.fed.example.": 9, "detour.fed.example.": 12} {
		if got := addresses(name); got != want {
			t.Errorf("%s: %d addresses, want %d", name, got, want)
		}
	}
	if got := addresses("many.fed.example."); got < 4000 {
		t.Errorf("%d addresses, want as many as fit a message", got)
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
		if ips, ok := r.Followed(); len(ips) != want || !ok || r.Kind != zone.Success {
			t.Errorf("%s: %d addresses, want %d", name, len(ips), want)
		}
	}
}

// TestAnswerEndsWhereTruncationShows shows that an answer for a client with a small buffer is made as far
// as the server can see that it must be truncated, and no further, and that one
// that fits is whole.
func TestAnswerEndsWhereTruncationShows(t *testing.T) {
	b := builder(owner("o", "fed.example"))
	b.Put(0, largest(), 1)
	b.Put(0, service("hosts hosts.fed.example largest.fed.example@80 i/TCP"), 1)
	b.Put(0, service("small small.fed.example 192.0.2.1@80 192.0.2.2@80 i/TCP"), 1)
	z := b.Publish(now)
	for _, name := range []string{"largest", "i7.largest", "hosts", "_http._tcp.largest", "small"} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeTXT} {
			name := name + ".fed.example."
			r := z.Lookup(name, qtype, now)
			if r.Kind != zone.Success {
				continue
			}
			whole := reply.Answer(nil, &r, name, 0)
			for _, room := range []int{dns.MinMsgSize, 1232, 4096} {
				m := new(dns.Msg)
				m.SetQuestion(name, qtype)
				m.Compress = true
				m.Answer = whole
				fits := m.Len() <= room
				m.Answer = reply.Answer(nil, &r, name, room)
				switch cut := m.Len() > room; {
				case fits && len(m.Answer) != len(whole):
					t.Errorf("%s %s: %d records of %d, which fit %d octets", name, dns.Type(qtype), len(m.Answer), len(whole), room)
				case !fits && !cut:
					t.Errorf("%s %s: %d records of %d fit %d octets: the server does not see that there are more", name, dns.Type(qtype), len(m.Answer), len(whole), room)
				case !fits && m.Len() > 2*room+1300:
					t.Errorf("%s %s: %d octets for %d", name, dns.Type(qtype), m.Len(), room)
				}
				for i, rr := range m.Answer {
					if rr.String() != whole[i].String() {
						t.Fatalf("record %d is %s, want %s", i, rr, whole[i])
					}
				}
			}
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
