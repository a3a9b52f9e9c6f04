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
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestInstanceNames has rows 5.11 and 5.13 of the decision table: which IDs are
// names. What is none still counts for the fqdn and its protocols.
func TestInstanceNames(t *testing.T) {
	long := strings.Repeat("x", 63)
	tests := []struct {
		id    string
		name  string // below the fqdn
		fault zone.Fault
	}{
		{id: "v1", name: "v1"},
		{id: "V1", name: "v1"},
		{id: "v1.", name: "v1"},
		{id: "DB.r1", name: "db.r1"},
		{id: "a_b", name: "a_b"},
		{id: "0", name: "0"},
		{id: "b\u00fccher", name: "xn--bcher-kva"},
		{id: long, name: long},
		{id: "addr", name: "addr"},
		{id: "addr.x", name: "addr.x"},
		{id: "x.addr", fault: subtree.FaultInstanceID},
		{id: "192-0-2-1.addr", fault: subtree.FaultInstanceID},
		{id: long + "x", fault: subtree.FaultInstanceID},
		{id: "_x", fault: subtree.FaultInstanceID},
		{id: "x._y", fault: subtree.FaultInstanceID},
		{id: "-x", fault: subtree.FaultInstanceID},
		{id: "x-", fault: subtree.FaultInstanceID},
		{id: "a..b", fault: subtree.FaultInstanceID},
		{id: ".a", fault: subtree.FaultInstanceID},
		{id: ".", fault: subtree.FaultInstanceID},
		{id: "a b", fault: subtree.FaultInstanceID},
		{id: "a\x00", fault: subtree.FaultInstanceID},
		{id: "a/b", fault: subtree.FaultInstanceID},
		{id: "*", fault: subtree.FaultInstanceID},
		{id: `a\.b`, fault: subtree.FaultInstanceID},
		{id: strings.Repeat(long+".", 3) + strings.Repeat("x", 45), fault: subtree.FaultNameTooLong},
	}
	for _, tt := range tests {
		t.Run(tt.id, func(t *testing.T) {
			b := builder(owner("o", "fed.example"))
			s := service("s s.fed.example 192.0.2.1@80 id/HTTP")
			s.Instances[0].ID = tt.id
			b.Put(0, s, 1)
			z := b.Publish(now)
			expect(t, z, now,
				"s A | NOERROR | 30 A 192.0.2.1",
				"_http._tcp.s SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.s.fed.example.",
			)
			want := faultCount{tt.fault: 1}
			if tt.name != "" {
				expect(t, z, now,
					tt.name+".s A | NOERROR | 30 A 192.0.2.1",
					"_http._tcp."+tt.name+".s SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.s.fed.example.",
					"_tcp."+tt.name+".s A | NODATA",
				)
				want = nil
			}
			if d := cmp.Diff(want, faults(b.Publish(now), 0)); d != "" {
				t.Errorf("faults (-want +got):\n%s", d)
			}
		})
	}
}

// longName returns a name of n characters below fed.example.
func longName(n int) string {
	name := "fed.example"
	for len(name) < n {
		label := min(63, n-len(name)-1)
		if n-len(name)-1-label == 1 {
			label--
		}
		name = strings.Repeat("l", label) + "." + name
	}
	return name
}

// TestLongNames has rows 5.12 and 5.15: at most 254 characters with the final
// dot, and only what would be longer is left out.
func TestLongNames(t *testing.T) {
	const v4, v6, mongo, mongodb, tcp = len("192-0-2-1.addr."), len("0000-0000-0000-0000-0000-0000-0000-0000.addr."),
		len("_mongo._tcp."), len("_mongodb._tcp."), len("_tcp._tcp.")
	for n := 254 - v6 - len("i.") - 2; n <= 253; n++ {
		name := longName(n)
		if len(name) != n {
			t.Fatalf("name of %d characters, want %d", len(name), n)
		}
		b := builder(owner("o", "fed.example"))
		b.Put(0, service("s "+name+" 192.0.2.1@1 2001:db8::1@2 gw.example.net@3 2001:db8::1@4 i/MONGO j/TCP"), 1)
		z := b.Publish(now)

		var srv []string
		add := func(fits bool, record string) {
			if fits {
				srv = append(srv, record)
			}
		}
		fits := func(prefix int) bool { return prefix+n+1 <= 254 }
		add(fits(v4), "30 SRV 0 100 1 192-0-2-1.addr."+name+".")
		add(fits(v6), "30 SRV 0 100 2 2001-0db8-0000-0000-0000-0000-0000-0001.addr."+name+".")
		add(fits(v6), "30 SRV 0 100 4 2001-0db8-0000-0000-0000-0000-0000-0001.addr."+name+".")
		srv = append(srv, "30 SRV 0 100 3 gw.example.net.")
		expect(t, z, now, name+". SRV | INDIRECT | "+strings.Join(srv, " | ")+" | host gw.example.net.", name+". A | INDIRECT | 30 A 192.0.2.1 | host gw.example.net.")

		prefixes := []int{v4, v6, mongo, mongodb, tcp, len("i."), len("j.")}
		if fits(len("i.")) {
			prefixes = append(prefixes, mongo+len("i."), mongodb+len("i."), tcp+len("j."))
		}
		want := 0
		for _, prefix := range prefixes {
			if !fits(prefix) {
				want++
			}
		}
		if got := faults(b.Publish(now), 0)[subtree.FaultNameTooLong]; got != want {
			t.Errorf("%d characters: %d names are too long, want %d", n, got, want)
		}
		for rrs := range reply.FullTransfer(z, "fed.example.", now) {
			for _, rr := range rrs {
				checkPacks(t, rr)
			}
		}
		r := z.Lookup(name+".", dns.TypeSRV, now)
		for _, rr := range reply.AppendGlue(nil, &r, reply.AppendAnswer(nil, &r, name+".", 0), 0, now) {
			checkPacks(t, rr)
			if rr.Header().Name[0] == '1' != (rr.Header().Rrtype == dns.TypeA) {
				t.Errorf("address of another target: %s", rr)
			}
		}
	}
}

// checkPacks sends a record through the wire format.
func checkPacks(t testing.TB, rr dns.RR) {
	t.Helper()
	m := new(dns.Msg)
	m.Answer = []dns.RR{rr}
	wire, err := m.Pack()
	if err != nil {
		t.Fatalf("%s: %v", rr, err)
	}
	if err := m.Unpack(wire); err != nil {
		t.Fatalf("%s: %v", rr, err)
	}
	if !dns.IsDuplicate(m.Answer[0], rr) || m.Answer[0].String() != rr.String() && rr.Header().Rrtype != dns.TypeTXT {
		t.Fatalf("%s came back as %s", rr, m.Answer[0])
	}
}

// TestFQDNTooLongForTargets has an fqdn so long that no endpoint has a target: the
// service is there, with addresses, and without SRV records.
func TestFQDNTooLongForTargets(t *testing.T) {
	name := longName(245)
	b := builder(owner("o", "fed.example"))
	b.Put(0, service("s "+name+" 192.0.2.1@1 i/HTTP"), 1)
	z := b.Publish(now)
	expect(t, z, now,
		name+". A | NOERROR | 30 A 192.0.2.1",
		fmt.Sprintf("i.%s. A | NOERROR | 30 A 192.0.2.1", name),
		fmt.Sprintf("%s. i.%s. SRV | NODATA", name, name),
	)
}

// TestHasName asks a service for the names that it would have alone.
func TestHasName(t *testing.T) {
	s := &federation.Service{
		Name: "web", FQDN: must.Value(federation.ParseFQDN("Web.example")),
		Endpoints: []federation.Endpoint{{Address: must.Value(federation.ParseAddress("192.0.2.1")), Port: 80}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTP}},
	}
	for name, want := range map[string]bool{
		"web.example": true, "v1.web.example": true, "_tcp.web.example": true, "_http._tcp.web.example": true,
		"v2.web.example": false, "example": false, "xweb.example": false, "": false,
	} {
		if got := zone.HasName(s, name); got != want {
			t.Errorf("the service has the name %q: %v, want %v", name, got, want)
		}
	}
}
