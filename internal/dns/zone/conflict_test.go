package zone_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
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
			name:     "instance of the same owner where names are derived",
			services: []string{"0 s s.fed.example 192.0.2.1@80 db.r1/HTTP", "0 x fed.example 192.0.2.2@80 r1.s/TCP"},
			rows:     []string{"r1.s A | NOERROR | 30 A 192.0.2.2", "db.r1.s A | NOERROR | 30 A 192.0.2.1"},
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
					if d := cmp.Diff(want, faults(b.Publish(now), i)); d != "" {
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

// TestAdmit has the rules about where an owner may publish.
func TestAdmit(t *testing.T) {
	outer, inner := owner("outer", "fed.example", "alone.example"), owner("inner", "in.fed.example")
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
		{name: "in the shorter zone of another owner", config: within(inner, outer), fqdn: "a.fed.example", reason: federation.ReasonOutOfZone},
		{name: "name server", config: within(outer), fqdn: "ns.dns.fed.example", reason: federation.ReasonReservedName},
		{name: "deeper dns", config: within(outer), fqdn: "dns.a.fed.example", want: "dns.a.fed.example."},
		{name: "address", config: within(outer), fqdn: "192-0-2-1.addr.web.fed.example", reason: federation.ReasonReservedName},
		{name: "renamed", config: within(renamer), fqdn: "a.mysql.com", want: "a.fed.example."},
		{name: "renamed to the apex", config: within(renamer), fqdn: "mysql.com", want: "fed.example."},
		{name: "renamed by the first that matches, once", config: within(renamer), fqdn: "x.db.mysql.com", want: "x.first.fed.example."},
		{name: "renamed away", config: within(renamer), fqdn: "a.away.fed.example", reason: federation.ReasonOutOfZone},
		{name: "renamed onto a reserved name", config: within(renamer), fqdn: "dns.mysql.com", reason: federation.ReasonReservedName},
		{name: "too long when renamed", config: within(renamer), fqdn: long, reason: federation.ReasonName},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.config.PublishedName(0, origin(tt.fqdn))
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
			if d := cmp.Diff(want, faults(b.Publish(now), 0)); d != "" {
				t.Errorf("faults (-want +got):\n%s", d)
			}
			b.Remove(0, "s")
			if f := faults(b.Publish(now), 0); f != nil {
				t.Errorf("faults %v after the removal", f)
			}
		})
	}
}

// TestNestedZones gives two owners a zone and another within it: each name has the authority of its own zone, and no
// instance gets a name in the other one.
func TestNestedZones(t *testing.T) {
	b := builder(owner("outer", "fed.example"), owner("inner", "x.y.fed.example"))
	b.Put(0, service("apex fed.example 192.0.2.1@80 i/TCP web.x.y/TCP x.y/TCP"), 1)
	z := b.Publish(now)
	for name, want := range map[string]string{"nope.fed.example.": "fed.example.", "web.x.y.fed.example.": "x.y.fed.example."} {
		r := z.Lookup(name, dns.TypeA, now)
		if got := reply.AppendAuthority(nil, &r)[0].Header().Name; r.Kind != zone.NameError || got != want {
			t.Errorf("%s is %s of %s, want %s", name, kindNames[r.Kind], got, want)
		}
	}
	if d := cmp.Diff(faultCount{subtree.FaultOutOfZone: 2}, faults(b.Publish(now), 0)); d != "" {
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
