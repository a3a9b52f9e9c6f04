package reply_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// The tests of package zone ask through this package, about every name of random
// catalogs. Those here show what only this package decides.

var now = time.Unix(1_800_000_000, 0)

// service makes a service at <name>.fed.example with an instance i.
func service(name string, endpoints ...string) *federation.Service {
	s := &federation.Service{
		Name: name, FQDN: must.Value(federation.ParseFQDN(name + ".fed.example")),
		Instances: []federation.Instance{{ID: "i", Protocol: federation.HTTP}},
	}
	for i, at := range endpoints {
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Value(federation.ParseAddress(at)), Port: uint16(80 + i)})
	}
	return s
}

// fixture is a zone of one owner that may not publish 192.0.2.66.
func fixture() *zone.Zone {
	b := zonetest.NewBuilder(zone.Config{
		Owners: []zone.Owner{
			{
				ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseOrigin("fed.example"))}, TTL: 30, NegativeTTL: 5,
				Admits: func(ip netip.Addr) bool { return ip != netip.MustParseAddr("192.0.2.66") },
			},
			{ID: "other", Origins: []federation.FQDN{must.Value(federation.ParseOrigin("fed.example"))}, TTL: 20, NegativeTTL: 5},
		},
		NameServer: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")},
	}, nil)
	b.SetStatus(0, zone.Status{Live: 1, Known: true})
	b.SetStatus(1, zone.Status{Live: 1, Known: true})
	for _, s := range []*federation.Service{
		service("web", "192.0.2.1", "2001:db8::1", "gw.example.net"),
		service("front", "web.fed.example", "plain.fed.example", "bad.fed.example"),
		service("chain", "via.fed.example"),
		service("via", "plain.fed.example"),
		service("plain", "192.0.2.2", "192.0.2.3", "2001:db8::2"),
	} {
		b.Put(0, s, 1)
	}
	b.Put(1, service("bad", "192.0.2.66", "192.0.2.67"), 1)
	return b.Publish(now)
}

// text shows records as in a zone file, without their class.
func text(rrs []dns.RR) (lines []string) {
	for _, rr := range rrs {
		lines = append(lines, strings.ReplaceAll(strings.ReplaceAll(rr.String(), "\t", " "), " IN ", " "))
	}
	return lines
}

func ask(name string, qtype uint16) *zone.Result {
	r := fixture().Lookup(name, qtype, now)
	return &r
}

func TestAuthority(t *testing.T) {
	want := []string{"fed.example. 5 SOA ns.dns.fed.example. hostmaster.fed.example. 1800000000 300 60 86400 5"}
	for _, name := range []string{"nope.fed.example.", "_tcp.web.fed.example.", "web.fed.example."} {
		if d := cmp.Diff(want, text(reply.AppendAuthority(nil, ask(name, dns.TypeMX)))); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestAnswerTypes has an answer of every type, with the name as it was asked for.
func TestAnswerTypes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  []string
	}{
		{"Plain.fed.example.", dns.TypeA, []string{"Plain.fed.example. 30 A 192.0.2.2", "Plain.fed.example. 30 A 192.0.2.3"}},
		{"Plain.fed.example.", dns.TypeAAAA, []string{"Plain.fed.example. 30 AAAA 2001:db8::2"}},
		{"192-0-2-2.Addr.plain.fed.example.", dns.TypeA, []string{"192-0-2-2.Addr.plain.fed.example. 30 A 192.0.2.2"}},
		{"_http._tcp.web.fed.example.", dns.TypeSRV, []string{
			"_http._tcp.web.fed.example. 30 SRV 0 100 80 192-0-2-1.addr.web.fed.example.",
			"_http._tcp.web.fed.example. 30 SRV 0 100 81 2001-0db8-0000-0000-0000-0000-0000-0001.addr.web.fed.example.",
			"_http._tcp.web.fed.example. 30 SRV 0 100 82 gw.example.net.",
		}},
		{"i.web.fed.example.", dns.TypeTXT, []string{`i.web.fed.example. 30 TXT "txtvers=1" "id=i" "protocol=HTTP"`}},
		{"web.fed.example.", dns.TypeTXT, []string{
			`web.fed.example. 30 TXT "txtvers=1" "name=web"`, `web.fed.example. 30 TXT "txtvers=1" "id=i" "protocol=HTTP"`,
		}},
		{"web.fed.example.", dns.TypeANY, []string{`web.fed.example. 30 HINFO "RFC8482" ""`}},
		{"ns.dns.fed.example.", dns.TypeA, []string{"ns.dns.fed.example. 5 A 192.0.2.53"}},
		{"fed.example.", dns.TypeNS, []string{"fed.example. 5 NS ns.dns.fed.example."}},
		{"FED.example.", dns.TypeSOA, []string{"FED.example. 5 SOA ns.dns.fed.example. hostmaster.fed.example. 1800000000 300 60 86400 5"}},
	} {
		r := ask(strings.ToLower(tt.name), tt.qtype)
		if d := cmp.Diff(tt.want, text(reply.AppendAnswer(nil, r, tt.name, 0))); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.name, dns.Type(tt.qtype), d)
		}
	}
}

// TestAnswerEndsBeyondRoom checks that there is one record more than fits, and no
// more than that.
func TestAnswerEndsBeyondRoom(t *testing.T) {
	for _, tt := range []struct {
		name  string
		qtype uint16
		whole int
	}{
		{"plain.fed.example.", dns.TypeA, 2},
		{"plain.fed.example.", dns.TypeSRV, 3},
		{"plain.fed.example.", dns.TypeTXT, 2},
	} {
		r := ask(tt.name, tt.qtype)
		for room, want := range map[int]int{0: tt.whole, 1: 1, 16: min(tt.whole, 2), 1232: tt.whole} {
			if tt.qtype != dns.TypeA && room == 16 {
				want = 1 // these records are larger
			}
			if got := len(reply.AppendAnswer(nil, r, tt.name, room)); got != want {
				t.Errorf("%s %s: %d records for %d octets, want %d", tt.name, dns.Type(tt.qtype), got, room, want)
			}
		}
	}
}

// large makes a zone with a service of n endpoints, each with an IPv4 address of
// its own, and a service that points to it.
func large(n int) *zone.Zone {
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{
		{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseOrigin("fed.example"))}, TTL: 30, NegativeTTL: 5},
	}}, nil)
	b.SetStatus(0, zone.Status{Live: 1, Known: true})
	s := service("large")
	for i := range n {
		ip := netip.AddrFrom4([4]byte{198, 18, byte(100 + i/100), byte(100 + i%100)})
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Value(federation.ParseAddress(ip.String())), Port: 80})
	}
	b.Put(0, s, 1)
	b.Put(0, service("hosts", "large.fed.example"), 1)
	return b.Publish(now)
}

// TestRoomInRecords checks how many records there are for a room: as many as fit
// and one more.
func TestRoomInRecords(t *testing.T) {
	z := large(500)
	srv := 12 + 6 + len("198-18-100-100.addr.large.fed.example.") + 1
	for _, tt := range []struct {
		name  string
		qtype uint16
		size  int
	}{
		{"large.fed.example.", dns.TypeA, 12 + 4},
		{"hosts.fed.example.", dns.TypeA, 12 + 4},
		{"large.fed.example.", dns.TypeSRV, srv},
		{"i.large.fed.example.", dns.TypeSRV, srv},
	} {
		r := z.Lookup(tt.name, tt.qtype, now)
		for _, n := range []int{1, 2, 100, 499} {
			for room, want := range map[int]int{n*tt.size - 1: n, n * tt.size: n + 1, n*tt.size + 1: n + 1} {
				if got := len(reply.AppendAnswer(nil, &r, tt.name, room)); got != want {
					t.Errorf("%s %s: %d records for %d octets, want %d", tt.name, dns.Type(tt.qtype), got, room, want)
				}
			}
		}
		for _, room := range []int{0, 1 << 20} {
			if got := len(reply.AppendAnswer(nil, &r, tt.name, room)); got != 500 {
				t.Errorf("%s %s: %d records for %d octets, want all", tt.name, dns.Type(tt.qtype), got, room)
			}
		}
	}
}

// TestSRVSetsAreWholeMessages has a set that is larger than a message: it ends
// before the first record that is too much.
func TestSRVSetsAreWholeMessages(t *testing.T) {
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{
		{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseOrigin("fed.example"))}, TTL: 30, NegativeTTL: 5},
	}}, nil)
	b.SetStatus(0, zone.Status{Live: 1, Known: true})
	s := service("s")
	label := strings.Repeat("l", 60)
	host := "." + label + "." + label + "." + label + ".example." // of 201 characters with its first label of 9
	for i := range 1000 {
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: must.Value(federation.ParseAddress(fmt.Sprintf("h%08d%s", i, host))), Port: 80})
	}
	b.Put(0, s, 1)
	r := b.Publish(now).Lookup("s.fed.example.", dns.TypeSRV, now)
	n := 12 + 6 + 1 + len("h00000000"+host)
	if got, want := len(reply.AppendAnswer(nil, &r, "s.fed.example.", 0)), (65535-512-12-(255+4))/n; got != want {
		t.Errorf("%d records of %d octets, want %d", got, n, want)
	}
}

// TestSRVEndsWithTheWorstRank has endpoints of two tiers that do not fit a message, those of the worse tier
// with the smaller names: all of the better one are in every answer, with their addresses, each once.
func TestSRVEndsWithTheWorstRank(t *testing.T) {
	owner := func(id string, tier int) zone.Owner {
		return zone.Owner{
			ID: id, Origins: []federation.FQDN{must.Value(federation.ParseOrigin("fed.example"))}, TTL: 30, NegativeTTL: 5,
			Sharing: zone.Sharing{
				Names: []pattern.Name{must.Value(pattern.ParseName("*.fed.example"))}, Tiers: []zone.TierRule{{N: tier}}, Min: 1,
			},
		}
	}
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{owner("far", 1), owner("near", 0)}}, nil)
	long := strings.Repeat("l", 60)
	name := strings.Join([]string{"web", long, long, long}, ".")
	var endpoints []string
	for i := range 1000 {
		endpoints = append(endpoints, fmt.Sprintf("100.0.%d.%d", i/250, 1+i%250))
	}
	b.Put(0, service(name, endpoints...), 1)
	b.Put(1, service(name, append(slices.Repeat([]string{"200.0.0.1"}, 20), slices.Repeat([]string{"200.0.0.2", "100.0.0.1"}, 10)...)...), 1)
	for i := range 2 {
		b.SetStatus(i, zone.Status{Live: 1, Known: true})
	}
	z := b.Publish(now)
	name += ".fed.example."
	for _, at := range []string{name, "i." + name, "_http._tcp." + name} {
		for room, want := range map[int]int{0: 40, 1232: 6} {
			r := z.Lookup(at, dns.TypeSRV, now)
			answer := reply.AppendAnswer(nil, &r, at, room)
			if len(answer) < want {
				t.Fatalf("%s: %d records for %d octets", at, len(answer), room)
			}
			targets := make(map[string]bool)
			for i, rr := range answer {
				srv := rr.(*dns.SRV)
				if best := i < 40; best != (srv.Priority == 0) {
					t.Fatalf("%s: record %d of %d is %s", at, i, len(answer), srv)
				}
				targets[srv.Target] = true
			}
			for _, rr := range reply.AppendGlue(nil, &r, answer, 0, now) {
				if at := rr.Header().Name; !targets[at] {
					t.Fatalf("an address of %s, which is no target, or not once", at)
				}
				delete(targets, rr.Header().Name)
			}
			if len(targets) > 0 {
				t.Errorf("%s: no address of %v", at, targets)
			}
		}
	}
}

// TestGlueEndsBeyondRoom checks that glue ends soon after the room is full: it is
// added last, and what does not fit is left out.
func TestGlueEndsBeyondRoom(t *testing.T) {
	z := large(500)
	r := z.Lookup("large.fed.example.", dns.TypeSRV, now)
	whole := reply.AppendAnswer(nil, &r, "large.fed.example.", 0)
	for room, want := range map[int]int{0: 500, 16: 2, 31: 2, 32: 3, 1600: 101, 1 << 20: 500} {
		if got := len(reply.AppendGlue(nil, &r, whole, room, now)); got != want {
			t.Errorf("%d addresses for %d octets, want %d", got, room, want)
		}
	}
	for _, n := range []int{0, 1, 17} { // of an answer that has been truncated
		if got := len(reply.AppendGlue(nil, &r, whole[:n], 0, now)); got != n {
			t.Errorf("%d addresses for an answer of %d records", got, n)
		}
	}
}

// TestGlueOncePerTarget has several ports of one address: its addresses come once.
func TestGlueOncePerTarget(t *testing.T) {
	b := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{
		{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseOrigin("fed.example"))}, TTL: 30, NegativeTTL: 5},
	}}, nil)
	b.SetStatus(0, zone.Status{Live: 1, Known: true})
	b.Put(0, service("s", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2"), 1)
	r := b.Publish(now).Lookup("s.fed.example.", dns.TypeSRV, now)
	want := []string{"192-0-2-1.addr.s.fed.example. 30 A 192.0.2.1", "192-0-2-2.addr.s.fed.example. 30 A 192.0.2.2"}
	answer := reply.AppendAnswer(nil, &r, "s.fed.example.", 0)
	if d := cmp.Diff(want, text(reply.AppendGlue(nil, &r, answer, 0, now))); len(answer) != 5 || d != "" {
		t.Errorf("%d records with glue (-want +got):\n%s", len(answer), d)
	}
}

// TestGlue checks which targets have addresses: those of the service itself, and
// hosts of the zone that are no hosts in turn and have no address that the owner
// may not publish.
func TestGlue(t *testing.T) {
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  []string
	}{
		{"web.fed.example.", dns.TypeSRV, []string{
			"192-0-2-1.addr.web.fed.example. 30 A 192.0.2.1",
			"2001-0db8-0000-0000-0000-0000-0000-0001.addr.web.fed.example. 30 AAAA 2001:db8::1",
		}},
		{"front.fed.example.", dns.TypeSRV, []string{
			"plain.fed.example. 30 A 192.0.2.2", "plain.fed.example. 30 A 192.0.2.3", "plain.fed.example. 30 AAAA 2001:db8::2",
		}},
		{"fed.example.", dns.TypeNS, []string{"ns.dns.fed.example. 5 A 192.0.2.53", "ns.dns.fed.example. 5 AAAA 2001:db8::53"}},
		{"chain.fed.example.", dns.TypeSRV, nil}, // via has addresses, all behind a host
		{"plain.fed.example.", dns.TypeA, nil},
		{"plain.fed.example.", dns.TypeTXT, nil},
		{"fed.example.", dns.TypeSOA, nil},
	} {
		r := ask(tt.name, tt.qtype)
		if d := cmp.Diff(tt.want, text(reply.AppendGlue(nil, r, reply.AppendAnswer(nil, r, tt.name, 0), 0, now))); d != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.name, dns.Type(tt.qtype), d)
		}
	}
}

// TestResolved adds what was looked up elsewhere: one RRset, each address once,
// with the smallest TTL.
func TestResolved(t *testing.T) {
	others := []netip.Addr{
		netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7"),
		netip.MustParseAddr("2001:db8::7"),
	}
	const name = "WEB.fed.example."
	for _, tt := range []struct {
		qtype  uint16
		others []netip.Addr
		ttl    uint32
		want   []string
	}{
		{dns.TypeA, others, 20, []string{"WEB.fed.example. 20 A 192.0.2.1", "WEB.fed.example. 20 A 198.51.100.7"}},
		{dns.TypeA, others, 100, []string{"WEB.fed.example. 30 A 192.0.2.1", "WEB.fed.example. 30 A 198.51.100.7"}},
		{dns.TypeA, nil, 5, []string{"WEB.fed.example. 5 A 192.0.2.1"}},
		{dns.TypeAAAA, others[:3], 5, []string{"WEB.fed.example. 5 AAAA 2001:db8::1"}},
	} {
		r := ask("web.fed.example.", tt.qtype)
		if d := cmp.Diff(tt.want, text(reply.AppendResolved(nil, r, name, tt.others, tt.ttl))); d != "" {
			t.Errorf("%s with TTL %d (-want +got):\n%s", dns.Type(tt.qtype), tt.ttl, d)
		}
	}
}

// TestTransferGroups checks that SOA and NS come alone, that the records of a name
// come together, and that a reader may stop at any of them.
func TestTransferGroups(t *testing.T) {
	z := fixture()
	var groups [][]dns.RR
	for rrs := range reply.FullTransfer(z, "fed.example.", now) {
		groups = append(groups, rrs)
	}
	last := len(groups) - 1
	for _, i := range []int{0, 1, last} {
		if len(groups[i]) != 1 || groups[i][0].Header().Rrtype == dns.TypeNS != (i == 1) {
			t.Errorf("group %d is %v", i, groups[i])
		}
	}
	seen := make(map[string]bool)
	for i, rrs := range groups[2:last] {
		name := rrs[0].Header().Name
		if seen[name] || slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Name != name }) {
			t.Errorf("group %d is %v", 2+i, rrs)
		}
		seen[name] = true
	}
	if !seen["ns.dns.fed.example."] || !seen["plain.fed.example."] || !seen["i.front.fed.example."] {
		t.Errorf("there are %v", seen)
	}
	for stop := range groups {
		n := 0
		for range reply.FullTransfer(z, "fed.example.", now) {
			if n++; n > stop {
				break
			}
		}
	}
	for rrs := range reply.FullTransfer(z, "web.fed.example.", now) {
		t.Errorf("a name that is no origin has %v", rrs)
	}
}
