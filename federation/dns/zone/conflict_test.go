package zone_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

type faultCount = map[zone.Fault]int

// TestConflicts has section 6 of the decision table: who has a name that two
// services want, whatever came first.
func TestConflicts(t *testing.T) {
	const web = "0 web web.fed.example 192.0.2.1@80 v1/HTTP"
	tests := []struct {
		name     string
		services []string // the index of the owner, and what service takes
		rows     []string
		faults   [2]faultCount
	}{
		{
			name:     "same fqdn, two owners",
			services: []string{"0 s dup.fed.example 10.0.0.1@80 i/TCP", "1 a dup.fed.example 10.0.0.2@80 j/TLS"},
			rows: []string{
				"dup A | NOERROR | 30 A 10.0.0.1",
				"i.dup A | NOERROR | 30 A 10.0.0.1",
				"j.dup A | NXDOMAIN",
				"_tls._tcp.dup SRV | NXDOMAIN",
				"10-0-0-2.addr.dup A | NXDOMAIN",
			},
			faults: [2]faultCount{1: {precedence.FaultFQDN: 1}},
		},
		{
			name:     "same fqdn, same owner, two names",
			services: []string{"0 b dup.fed.example 10.0.0.2@80 i/TCP", "0 a dup.fed.example 10.0.0.1@80 i/TCP"},
			rows:     []string{"dup A | NOERROR | 30 A 10.0.0.1"},
			faults:   [2]faultCount{0: {precedence.FaultFQDN: 1}},
		},
		{
			name:     "service at an instance name, same owner",
			services: []string{web, "0 x v1.web.fed.example 192.0.2.77@81 i/TCP"},
			rows: []string{
				"v1.web A | NOERROR | 30 A 192.0.2.77",
				`v1.web TXT | NOERROR | 30 TXT "txtvers=1" "name=x" | 30 TXT "txtvers=1" "id=i" "protocol=TCP"`,
				"_tcp._tcp.v1.web SRV | NOERROR | 30 SRV 0 100 81 192-0-2-77.addr.v1.web.fed.example.",
				"_http._tcp.v1.web SRV | NXDOMAIN",
				"_tcp.v1.web SRV | NODATA",
				"i.v1.web A | NOERROR | 30 A 192.0.2.77",
				"web A | NOERROR | 30 A 192.0.2.1",
				`web TXT | NOERROR | 30 TXT "txtvers=1" "name=web" | 30 TXT "txtvers=1" "id=v1" "protocol=HTTP"`,
				"_http._tcp.web SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.web.fed.example.",
			},
			faults: [2]faultCount{0: {subtree.FaultInstanceName: 1}},
		},
		{
			name:     "service of an earlier owner at an instance name",
			services: []string{"1 web web.fed.example 192.0.2.1@80 v1/HTTP", "0 x v1.web.fed.example 192.0.2.77@81 i/TCP"},
			rows: []string{
				"v1.web i.v1.web A | NOERROR | 30 A 192.0.2.77",
				"_http._tcp.v1.web SRV | NXDOMAIN",
				"web A | NOERROR | 30 A 192.0.2.1",
			},
			faults: [2]faultCount{1: {subtree.FaultInstanceName: 1}},
		},
		{
			// Nothing that is derived from the service is published, either; what is
			// below without being the first owner's is.
			name: "service of a later owner at an instance name",
			services: []string{
				web, "1 x v1.web.fed.example 192.0.2.77@81 i/TCP a.i/TCP", "1 y y.v1.web.fed.example 192.0.2.78@81 i/TCP",
				"1 z i.v1.web.fed.example 192.0.2.79@81 i/TCP",
			},
			rows: []string{
				"v1.web A | NOERROR | 30 A 192.0.2.1",
				`v1.web TXT | NOERROR | 30 TXT "txtvers=1" "id=v1" "protocol=HTTP"`,
				"v1.web _http._tcp.v1.web SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.web.fed.example.",
				"_tcp.v1.web A | NODATA",
				"_tcp._tcp.v1.web addr.v1.web 192-0-2-77.addr.v1.web a.i.v1.web A SRV | NXDOMAIN",
				"y.v1.web i.y.v1.web A | NOERROR | 30 A 192.0.2.78",
				"i.v1.web i.i.v1.web A | NOERROR | 30 A 192.0.2.79",
			},
			faults: [2]faultCount{1: {subtree.FaultInstanceName: 2}},
		},
		{
			name:     "service of a later owner where names are derived",
			services: []string{"0 s s.fed.example 192.0.2.1@80 db.r1/HTTP", "1 x r1.s.fed.example 192.0.2.2@80 i/TCP", "1 y addr.s.fed.example 192.0.2.3@80 i/TCP"},
			rows: []string{
				"r1.s addr.s _tcp.s A | NODATA",
				"db.r1.s A | NOERROR | 30 A 192.0.2.1",
				"i.r1.s i.addr.s A | NXDOMAIN",
				"192-0-2-1.addr.s A | NOERROR | 30 A 192.0.2.1",
			},
			faults: [2]faultCount{1: {subtree.FaultInstanceName: 2}},
		},
		{
			name:     "instance of a later owner where names are derived",
			services: []string{"0 s s.fed.example 192.0.2.1@80 db.r1/HTTP", "1 x fed.example 192.0.2.2@80 r1.s/TCP db.r1.s/TCP ok/TCP"},
			rows: []string{
				"r1.s A | NODATA",
				"_tcp.r1.s _tcp._tcp.r1.s _tcp._tcp.db.r1.s SRV | NXDOMAIN",
				"db.r1.s A | NOERROR | 30 A 192.0.2.1",
				"_http._tcp.db.r1.s SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.s.fed.example.",
				"ok A | NOERROR | 30 A 192.0.2.2",
			},
		},
		{
			// The service of the second owner conflicts with nothing, because the
			// first owner has taken its own name.
			name: "service at a name of a service that is not published",
			services: []string{
				"0 a fed.example 192.0.2.1@80 web/TCP", "1 web web.fed.example 192.0.2.2@80 v1.x/TCP", "2 v1 v1.x.web.fed.example 192.0.2.3@80 i/TCP",
			},
			rows: []string{
				"web A | NOERROR | 30 A 192.0.2.1",
				"x.web A | NODATA",
				"v1.x.web i.v1.x.web A | NOERROR | 30 A 192.0.2.3",
			},
			faults: [2]faultCount{1: {subtree.FaultInstanceName: 1}},
		},
		{
			name:     "service at an empty non-terminal",
			services: []string{"0 x b.fed.example 192.0.2.77@80 i/TCP", "0 deep deep.a.b.fed.example 192.0.2.9@80 DB.r1/TCP", "0 y r1.deep.a.b.fed.example 192.0.2.78@80 i/TCP"},
			rows: []string{
				"b A | NOERROR | 30 A 192.0.2.77",
				"a.b A | NODATA",
				"r1.deep.a.b A | NOERROR | 30 A 192.0.2.78",
				"db.r1.deep.a.b A | NOERROR | 30 A 192.0.2.9",
			},
		},
		{
			name:     "service where addresses stand",
			services: []string{web, "0 x addr.web.fed.example 192.0.2.77@80 i/TCP 1-2-3/TCP"},
			rows: []string{
				"addr.web A | NOERROR | 30 A 192.0.2.77",
				"192-0-2-1.addr.web A | NOERROR | 30 A 192.0.2.1",
				"192-0-2-77.addr.web A | NXDOMAIN",
				"192-0-2-77.addr.addr.web A | NOERROR | 30 A 192.0.2.77",
				"1-2-3.addr.web A | NOERROR | 30 A 192.0.2.77",
			},
		},
		{
			name:     "service below an address",
			services: []string{web, "1 x x.192-0-2-1.addr.web.fed.example 192.0.2.77@80 i/TCP", "1 y x.192-0-2-9.addr.web.fed.example 192.0.2.78@80 i/TCP"},
			rows: []string{
				"x.192-0-2-1.addr.web A | NOERROR | 30 A 192.0.2.77",
				"192-0-2-1.addr.web A | NOERROR | 30 A 192.0.2.1",
				"192-0-2-9.addr.web A | NODATA",
			},
		},
		{
			name:     "nested fqdns of two owners",
			services: []string{"0 b b.fed.example 192.0.2.1@80 i/TCP", "1 ab a.b.fed.example 192.0.2.2@80 i/TCP"},
			rows: []string{
				"b A | NOERROR | 30 A 192.0.2.1",
				"a.b A | NOERROR | 30 A 192.0.2.2",
				"i.b A | NOERROR | 30 A 192.0.2.1",
				"i.a.b A | NOERROR | 30 A 192.0.2.2",
			},
		},
		{
			name:     "service at the apex",
			services: []string{"0 apex fed.example 192.0.2.80@443 Edge/TLS"},
			rows: []string{
				"fed.example. A | NOERROR | 30 A 192.0.2.80",
				"fed.example. NS | NOERROR | 5 NS ns.dns.fed.example.",
				"edge A | NOERROR | 30 A 192.0.2.80",
				"_tls._tcp SRV | NOERROR | 30 SRV 0 100 443 192-0-2-80.addr.fed.example.",
				"_tcp addr A | NODATA",
			},
		},
		{
			name:     "reserved instance names",
			services: []string{"0 apex fed.example 192.0.2.80@443 dns/TLS ns.dns/TLS ok/TLS", "0 x addr.fed.example 192.0.2.81@443 192-0-2-80/TLS"},
			rows: []string{
				"dns A | NODATA",
				"ns.dns A | NOERROR | 5 A 192.0.2.53",
				"_tls._tcp.dns SRV | NXDOMAIN",
				"ok A | NOERROR | 30 A 192.0.2.80",
				"192-0-2-80.addr A | NOERROR | 30 A 192.0.2.80",
			},
			faults: [2]faultCount{0: {subtree.FaultReservedName: 3}},
		},
		{
			// Neither is the name of a service: the one with the longer fqdn has
			// it, and all that is below.
			name:     "one instance name of two services",
			services: []string{"0 s b.fed.example 192.0.2.1@80 j.i/HTTP", "0 x i.b.fed.example 192.0.2.2@80 j/TCP k/HTTP"},
			rows: []string{
				"j.i.b A | NOERROR | 30 A 192.0.2.2",
				"_tcp._tcp.j.i.b SRV | NOERROR | 30 SRV 0 100 80 192-0-2-2.addr.i.b.fed.example.",
				"_http._tcp.j.i.b SRV | NXDOMAIN",
				"_tcp.j.i.b SRV | NODATA",
			},
		},
		{
			name:     "a host that is the address name of another endpoint",
			services: []string{"0 s s.fed.example 192-0-2-1.addr.s.fed.example@80[a] 192.0.2.1@80[b] i/TCP[a] j/TLS[b]"},
			rows: []string{
				"s i.s j.s SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.s.fed.example.",
				"s i.s j.s 192-0-2-1.addr.s A | NOERROR | 30 A 192.0.2.1",
			},
		},
		{
			name: "the same on several ports",
			services: []string{
				"0 s s.fed.example 192-0-2-1.addr.s.fed.example@80[a] 192.0.2.1@80[b] 192-0-2-1.addr.s.fed.example@81 192.0.2.1@82 i/TCP[a] j/TLS[b]",
			},
			rows: []string{
				"s SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.s.fed.example. | 30 SRV 0 100 81 192-0-2-1.addr.s.fed.example. | 30 SRV 0 100 82 192-0-2-1.addr.s.fed.example.",
				"i.s SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.s.fed.example.",
				"s i.s j.s 192-0-2-1.addr.s A | NOERROR | 30 A 192.0.2.1",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, order := range permutations(len(tt.services)) {
				b := builder(owner("o1", "fed.example"), owner("o2", "fed.example"), owner("o3", "fed.example"))
				for _, i := range order {
					index, text, _ := strings.Cut(tt.services[i], " ")
					b.Put(int(index[0]-'0'), service(text), 1)
				}
				expect(t, b.Publish(now), now, tt.rows...)
				for i, want := range tt.faults {
					if d := cmp.Diff(want, faults(b, i)); d != "" {
						t.Errorf("faults of owner %d (-want +got):\n%s", i, d)
					}
				}
				if t.Failed() {
					t.Fatalf("services in order %v", order)
				}
			}
		})
	}
}

// permutations returns every order of n things.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, order := range permutations(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(order), at, n-1))
		}
	}
	return all
}

// TestNameMovesToNextOwnerAndBack follows names from one service to another and back.
func TestNameMovesToNextOwnerAndBack(t *testing.T) {
	b := builder(owner("o1", "fed.example"), owner("o2", "fed.example"))
	first, second := service("s dup.fed.example 10.0.0.1@80 i/TCP"), service("a dup.fed.example 10.0.0.2@80 i/TCP")
	const firstHasIt, secondHasIt = "dup A | NOERROR | 30 A 10.0.0.1", "dup A | NOERROR | 30 A 10.0.0.2"
	b.Put(0, first, 1)
	b.Put(1, second, 1)
	expect(t, b.Publish(now), now, firstHasIt)

	b.Remove(0, "s")
	expect(t, b.Publish(now), now, secondHasIt)
	if f := faults(b, 1); f != nil {
		t.Errorf("faults %v after the takeover", f)
	}
	b.Put(0, first, 1)
	expect(t, b.Publish(now), now, firstHasIt)

	// The first owner is lost. Its time is over before anybody removes what it
	// offered, and its return before that changes everything back.
	b.SetStatus(0, zone.Status{Live: 2, Known: true, Expires: now.Add(10 * time.Second)})
	z := b.Publish(now)
	expect(t, z, now.Add(9*time.Second), "dup A | NOERROR | 1 A 10.0.0.1")
	expect(t, z, now.Add(9*time.Second+time.Millisecond), secondHasIt)
	b.Put(0, first, 2)
	expect(t, b.Publish(now), now.Add(time.Hour), firstHasIt)

	// A service that moves away leaves its name to the other.
	b.Put(0, service("s other.fed.example 10.0.0.1@80 i/TCP"), 2)
	expect(t, b.Publish(now), now, secondHasIt, "other A | NOERROR | 30 A 10.0.0.1")
	b.Remove(0, "s")
	b.Remove(1, "a")
	b.Remove(1, "a")
	expect(t, b.Publish(now), now, "dup other A | NXDOMAIN")

	// A service at an instance name gives it back.
	b.Put(0, service("web web.fed.example 192.0.2.1@80 v1/HTTP"), 2)
	b.Put(0, service("x v1.web.fed.example 192.0.2.77@80 i/TCP"), 2)
	expect(t, b.Publish(now), now, "v1.web A | NOERROR | 30 A 192.0.2.77")
	b.Remove(0, "x")
	expect(t, b.Publish(now), now, "v1.web A | NOERROR | 30 A 192.0.2.1", "_http._tcp.v1.web SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.web.fed.example.")
	if f := faults(b, 0); f != nil {
		t.Errorf("faults %v after the name came back", f)
	}
	b.Remove(0, "web")
	expect(t, b.Publish(now), now, "web v1.web A | NXDOMAIN")
}

// TestInstanceNamesKeepTheirOwner shows that a later owner cannot take the name
// of an instance, whatever it does, and has it when the instance is gone.
func TestInstanceNamesKeepTheirOwner(t *testing.T) {
	b := builder(owner("o1", "fed.example"), owner("o2", "fed.example"), owner("o3", "fed.example"))
	web := service("web web.fed.example 192.0.2.1@80 v1/HTTP")
	const (
		instance = "v1.web A | NOERROR | 30 A 192.0.2.1"
		taken    = "v1.web i.v1.web A | NOERROR | 30 A 192.0.2.77"
	)
	b.Put(1, service("x v1.web.fed.example 192.0.2.77@80 i/TCP"), 1)
	b.Put(2, service("x v1.web.fed.example 192.0.2.99@80 i/TCP"), 1)
	expect(t, b.Publish(now), now, taken)
	b.Put(0, web, 1)
	expect(t, b.Publish(now), now, instance, "i.v1.web A | NXDOMAIN")
	for i, want := range []faultCount{nil, {subtree.FaultInstanceName: 1}, {precedence.FaultFQDN: 1}} {
		if d := cmp.Diff(want, faults(b, i)); d != "" {
			t.Errorf("faults of owner %d (-want +got):\n%s", i, d)
		}
	}

	// The first owner is lost: its names are its own as long as it is answered.
	b.SetStatus(0, zone.Status{Live: 2, Known: true, Lost: now, Expires: now.Add(10 * time.Second)})
	z := b.Publish(now)
	expect(t, z, now.Add(9*time.Second), "v1.web A | NOERROR | 1 A 192.0.2.1")
	expect(t, z, now.Add(9*time.Second+time.Millisecond), taken, "web A | NODATA")
	b.Put(0, web, 2)
	expect(t, b.Publish(now), now.Add(time.Hour), instance)

	// The instance goes, and comes back under another name.
	b.Put(0, service("web web.fed.example 192.0.2.1@80 v2/HTTP"), 2)
	expect(t, b.Publish(now), now, taken, "v2.web A | NOERROR | 30 A 192.0.2.1")
	b.Put(0, service("web web.fed.example 192.0.2.1@80 v1/HTTP v2/HTTP"), 2)
	expect(t, b.Publish(now), now, instance)
	b.Put(0, service("web moved.fed.example 192.0.2.1@80 v1/HTTP"), 2)
	expect(t, b.Publish(now), now, taken)
	b.Put(0, web, 2)
	b.Remove(0, "web")
	expect(t, b.Publish(now), now, taken)
	b.Remove(1, "x")
	expect(t, b.Publish(now), now, "v1.web i.v1.web A | NOERROR | 30 A 192.0.2.99")
	for i := range 3 {
		if f := faults(b, i); f != nil {
			t.Errorf("faults of owner %d: %v", i, f)
		}
	}
}

// TestAdmit has the rules about where an owner may publish.
func TestAdmit(t *testing.T) {
	outer, inner, everywhere := owner("outer", "fed.example", "alone.example"), owner("inner", "in.fed.example"), owner("root", ".")
	renamer := owner("renamer", "fed.example")
	renamer.Renames = []zone.Rename{
		{From: origin("db.mysql.com"), To: origin("first.fed.example")},
		{From: origin("mysql.com"), To: origin("fed.example")},
		{From: origin("first.fed.example"), To: origin("twice.fed.example")},
		{From: origin("long"), To: origin(strings.Repeat("l.", 100) + "fed.example")},
		{From: origin("away.fed.example"), To: origin("elsewhere.example")},
	}
	within := func(owners ...zone.Owner) zone.Config { return zone.Config{Owners: owners} }
	long := strings.Repeat("a.", 40) + "long."
	tests := []struct {
		name   string
		config zone.Config
		fqdn   string
		want   string
		reason federation.Reason
	}{
		{name: "in a zone", config: within(outer), fqdn: "a.fed.example", want: "a.fed.example."},
		{name: "at its apex", config: within(outer), fqdn: "alone.example", want: "alone.example."},
		{name: "in none", config: within(outer), fqdn: "a.example", reason: federation.ReasonOutOfZone},
		{name: "not at a label", config: within(outer), fqdn: "xfed.example", reason: federation.ReasonOutOfZone},
		{name: "in a longer zone of another owner", config: within(outer, inner), fqdn: "a.in.fed.example", reason: federation.ReasonOutOfZone},
		{name: "at a longer zone of another owner", config: within(outer, inner), fqdn: "in.fed.example", reason: federation.ReasonOutOfZone},
		{name: "beside it", config: within(outer, inner), fqdn: "a.fed.example", want: "a.fed.example."},
		{name: "in the shorter zone of another owner", config: within(inner, outer), fqdn: "a.fed.example", reason: federation.ReasonOutOfZone},
		{name: "in the root", config: within(everywhere), fqdn: "com", want: "com."},
		{name: "name server", config: within(outer), fqdn: "ns.dns.fed.example", reason: federation.ReasonReservedName},
		{name: "above the name server", config: within(outer), fqdn: "dns.fed.example", reason: federation.ReasonReservedName},
		{name: "beside the name server", config: within(outer), fqdn: "x.dns.fed.example", reason: federation.ReasonReservedName},
		{name: "deeper dns", config: within(outer), fqdn: "dns.a.fed.example", want: "dns.a.fed.example."},
		{name: "name server of the root", config: within(everywhere), fqdn: "ns.dns", reason: federation.ReasonReservedName},
		{name: "name server of the zone above", config: within(owner("o", "dns.example")), fqdn: "ns.dns.example", reason: federation.ReasonReservedName},
		{name: "beside it", config: within(owner("o", "dns.example")), fqdn: "x.dns.example", want: "x.dns.example."},
		{name: "name server above, as an apex", config: within(owner("o", "ns.dns.example")), fqdn: "ns.dns.example", reason: federation.ReasonReservedName},
		{name: "address", config: within(outer), fqdn: "192-0-2-1.addr.web.fed.example", reason: federation.ReasonReservedName},
		{name: "IPv6 address", config: within(outer), fqdn: "2001-0db8-0000-0000-0000-0000-0000-0001.addr.web.fed.example", reason: federation.ReasonReservedName},
		{name: "address of the root", config: within(everywhere), fqdn: "192-0-2-1.addr", reason: federation.ReasonReservedName},
		{name: "no address", config: within(outer), fqdn: "192-0-2-256.addr.web.fed.example", want: "192-0-2-256.addr.web.fed.example."},
		{name: "another spelling", config: within(outer), fqdn: "2001-db8--1.addr.web.fed.example", want: "2001-db8--1.addr.web.fed.example."},
		{name: "addr", config: within(outer), fqdn: "addr.web.fed.example", want: "addr.web.fed.example."},
		{name: "renamed", config: within(renamer), fqdn: "a.mysql.com", want: "a.fed.example."},
		{name: "renamed to the apex", config: within(renamer), fqdn: "mysql.com", want: "fed.example."},
		{name: "renamed by the first that matches, once", config: within(renamer), fqdn: "x.db.mysql.com", want: "x.first.fed.example."},
		{name: "renamed away", config: within(renamer), fqdn: "a.away.fed.example", reason: federation.ReasonOutOfZone},
		{name: "renamed onto a reserved name", config: within(renamer), fqdn: "dns.mysql.com", reason: federation.ReasonReservedName},
		{name: "too long when renamed", config: within(renamer), fqdn: long, reason: federation.ReasonName},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.config.Admit(0, origin(tt.fqdn))
			if tt.reason != "" {
				if err == nil || err.Reason != tt.reason || err.Field != "fqdn" || err.Rule == "" {
					t.Fatalf("error %#v, want reason %s", err, tt.reason)
				}
			} else if err != nil || got.String() != tt.want {
				t.Fatalf("%s, %v, want %s", got, err, tt.want)
			}

			// What is refused is counted, until it is offered no longer.
			b := zonetest.NewBuilder(tt.config, nil)
			s := service("s " + tt.fqdn + " 192.0.2.1@80 i/TCP")
			b.Put(0, s, 1)
			b.Put(0, s, 2)
			var want faultCount
			if tt.reason != "" {
				want = faultCount{zone.Fault(tt.reason): 1}
			}
			if d := cmp.Diff(want, faults(b, 0)); d != "" {
				t.Errorf("faults (-want +got):\n%s", d)
			}
			b.Remove(0, "s")
			if f := faults(b, 0); f != nil {
				t.Errorf("faults %v after the removal", f)
			}
		})
	}
}

// TestServiceThatMovesWhereItMayNotBeIsGone shows that a service that moves where it may not be is no
// longer where it was: in this server block nothing of it is valid.
func TestServiceThatMovesWhereItMayNotBeIsGone(t *testing.T) {
	b := builder(owner("o1", "fed.example"))
	b.Put(0, service("s a.fed.example 192.0.2.1@80 i/TCP"), 1)
	b.Put(0, service("s a.example 192.0.2.1@80 i/TCP"), 1)
	expect(t, b.Publish(now), now, "a A | NXDOMAIN")
	b.Put(0, service("s b.fed.example 192.0.2.1@80 i/TCP"), 1)
	expect(t, b.Publish(now), now, "b A | NOERROR | 30 A 192.0.2.1")
	if f := faults(b, 0); f != nil {
		t.Errorf("faults %v", f)
	}
}

// TestNestedZones gives two owners a zone and another within it.
func TestNestedZones(t *testing.T) {
	inner := owner("inner", "x.y.fed.example")
	inner.NegativeTTL = 7
	b := builder(owner("outer", "fed.example"), inner)
	b.Put(0, service("apex fed.example 192.0.2.1@80 i/TCP web.x.y/TCP x.y/TCP"), 1)
	b.Put(1, service("web web.x.y.fed.example 192.0.2.2@80 i/TCP"), 1)
	z := b.Publish(now)
	rows := []string{
		"i A | NOERROR | 30 A 192.0.2.1",
		"y A ANY | NODATA", // there is something below (RFC 8020)
		"z.y A | NXDOMAIN",
		"x.y A | NODATA",
		"x.y SOA | NOERROR | 7 SOA ns.dns.x.y.fed.example. hostmaster.x.y.fed.example. 1800000000 300 60 86400 7",
		"ns.dns.x.y A | NOERROR | 7 A 192.0.2.53",
		"web.x.y A | NOERROR | 30 A 192.0.2.2",
		"_tcp._tcp.x.y SRV | NXDOMAIN",
	}
	expect(t, z, now, rows...)
	b.Remove(1, "web")
	b.Remove(0, "apex")
	z = b.Publish(now)
	expect(t, z, now, "y A | NODATA", "web.x.y A | NXDOMAIN", "i A | NXDOMAIN")
	for i, want := range []string{"fed.example.", "x.y.fed.example."} {
		r := z.Lookup([]string{"nope.fed.example.", "nope.x.y.fed.example."}[i], dns.TypeA, now)
		if got := reply.Authority(nil, &r)[0].Header().Name; got != want {
			t.Errorf("authority %s, want %s", got, want)
		}
	}
	b.Put(0, service("apex fed.example 192.0.2.1@80 web.x.y/TCP x.y/TCP"), 1)
	if d := cmp.Diff(faultCount{subtree.FaultOutOfZone: 2}, faults(b, 0)); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

// TestZoneHidesLabelsOfAService has a zone where labels of a service stand. It hides them, as
// any zone within another does.
func TestZoneHidesLabelsOfAService(t *testing.T) {
	b := builder(owner("outer", "fed.example"), owner("inner", "addr.web.fed.example"))
	b.Put(0, service("web web.fed.example 192.0.2.1@80 i/TCP"), 1)
	z := b.Publish(now)
	expect(t, z, now, "web A | NOERROR | 30 A 192.0.2.1", "192-0-2-1.addr.web A | NXDOMAIN")
	var below []string
	for _, rr := range transfer(t, z, "fed.example.") {
		if dns.IsSubDomain("addr.web.fed.example.", rr.Header().Name) {
			below = append(below, data("", []dns.RR{rr})...)
		}
	}
	if d := cmp.Diff([]string{
		"addr.web.fed.example. 5 NS ns.dns.addr.web.fed.example.",
		"ns.dns.addr.web.fed.example. 5 A 192.0.2.53",
		"ns.dns.addr.web.fed.example. 5 AAAA 2001:db8::53",
	}, below); d != "" {
		t.Errorf("transferred (-want +got):\n%s", d)
	}
}

// TestNestedTransferDelegates has row 8.3: a zone has the zones right below it
// as delegations, and nothing else of them.
func TestNestedTransferDelegates(t *testing.T) {
	inner := owner("inner", "m.fed.example", "x.m.fed.example")
	inner.NegativeTTL = 7
	b := builder(owner("outer", "fed.example"), inner)
	b.Put(0, service("a a.fed.example 192.0.2.1@80 i/TCP"), 1)
	b.Put(0, service("z z.fed.example 192.0.2.2@80 i/TCP"), 1)
	b.Put(1, service("in in.m.fed.example 192.0.2.3@80 i/TCP"), 1)
	z := b.Publish(now)
	for origin, want := range map[string][]string{
		"fed.example.": {
			"i.a.fed.example. 30 A 192.0.2.1", "m.fed.example. 7 NS ns.dns.m.fed.example.", "ns.dns.m.fed.example. 7 A 192.0.2.53",
			"ns.dns.m.fed.example. 7 AAAA 2001:db8::53", "z.fed.example. 30 A 192.0.2.2", "i.z.fed.example. 30 A 192.0.2.2",
		},
		"m.fed.example.": {
			"in.m.fed.example. 30 A 192.0.2.3", "i.in.m.fed.example. 30 A 192.0.2.3", "x.m.fed.example. 7 NS ns.dns.x.m.fed.example.",
			"ns.dns.x.m.fed.example. 7 A 192.0.2.53", "ns.dns.x.m.fed.example. 7 AAAA 2001:db8::53",
		},
		"x.m.fed.example.": nil,
	} {
		var got []string
		for _, rr := range transfer(t, z, origin)[4:] {
			h := rr.Header()
			if strings.Contains(h.Name, "addr.") || h.Rrtype == dns.TypeSRV || h.Rrtype == dns.TypeTXT || h.Rrtype == dns.TypeSOA || h.Name == "a.fed.example." {
				continue
			}
			got = append(got, data("", []dns.RR{rr})...)
		}
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", origin, d)
		}
	}
	// One server has both, and answers from the inner zone.
	expect(t, z, now, "m NS | NOERROR | 7 NS ns.dns.m.fed.example.", "in.m A | NOERROR | 30 A 192.0.2.3", "nope.m A | NXDOMAIN")
}

// TestRootZone has the root as an origin (once a bug of CoreDNS).
func TestRootZone(t *testing.T) {
	o := owner("o", ".")
	o.Renames = []zone.Rename{{From: origin("apex.example"), To: origin(".")}}
	b := builder(o)
	b.Put(0, service("com com 192.0.2.1@80 a/HTTP"), 1)
	b.Put(0, service("apex apex.example 192.0.2.2@80 b/HTTP"), 1)
	z := b.Publish(now)
	expect(t, z, now,
		". SOA | NOERROR | 5 SOA ns.dns. hostmaster. 1800000000 300 60 86400 5",
		". NS | NOERROR | 5 NS ns.dns.",
		"ns.dns. A | NOERROR | 5 A 192.0.2.53",
		"dns. A | NODATA",
		"com. A | NOERROR | 30 A 192.0.2.1",
		"com. SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.com.",
		"a.com. _http._tcp.com. SRV | NOERROR | 30 SRV 0 100 80 192-0-2-1.addr.com.",
		". A | NOERROR | 30 A 192.0.2.2",
		"b. A | NOERROR | 30 A 192.0.2.2",
		"_http._tcp. SRV | NOERROR | 30 SRV 0 100 80 192-0-2-2.addr.",
		"192-0-2-2.addr. A | NOERROR | 30 A 192.0.2.2",
		"_tcp. addr. A | NODATA",
		"net. x.com. A | NXDOMAIN",
		`a\.com. A | NXDOMAIN`,
	)
	if got := fmt.Sprint(z.SOA(".").Mbox, z.SOA("com.")); got != "hostmaster.<nil>" {
		t.Errorf("SOA %s", got)
	}
}
