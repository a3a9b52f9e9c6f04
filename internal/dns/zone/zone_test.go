package zone_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// now is the time of the tests that need none in particular.
var now = time.Unix(1_800_000_000, 0)

func origin(s string) federation.FQDN     { return must.Value(federation.ParseOrigin(s)) }
func address(s string) federation.Address { return must.Value(federation.ParseAddress(s)) }

// service makes a service from its name, its fqdn, and any number of endpoints
// and instances: address@port and id/PROTOCOL, each with labels or a selector
// behind it as in [a,b].
func service(text string) *federation.Service {
	fields := strings.Fields(text)
	s := &federation.Service{Name: fields[0], FQDN: origin(fields[1])}
	for _, field := range fields[2:] {
		field, list, _ := strings.Cut(strings.TrimSuffix(field, "]"), "[")
		labels := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
		if at, port, ok := strings.Cut(field, "@"); ok {
			n := must.Value(strconv.ParseUint(port, 10, 16))
			s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address(at), Port: uint16(n), Labels: labels})
			continue
		}
		id, name, _ := strings.Cut(field, "/")
		p, ok := federation.ParseProtocol(name)
		if !ok {
			panic("protocol of " + field)
		}
		s.Instances = append(s.Instances, federation.Instance{ID: id, Protocol: p, EndpointSelector: labels})
	}
	return s
}

// owner makes an owner that publishes in some zones.
func owner(id string, origins ...string) zone.Owner {
	o := zone.Owner{ID: id, TTL: 30, NegativeTTL: 5}
	for _, s := range origins {
		o.Origins = append(o.Origins, origin(s))
	}
	return o
}

func config(owners ...zone.Owner) zone.Config {
	return zone.Config{
		Owners:     owners,
		NameServer: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")},
	}
}

// builder makes a builder whose owners are known.
func builder(owners ...zone.Owner) *zonetest.Builder {
	b := zonetest.NewBuilder(config(owners...), nil)
	for i := range owners {
		b.SetStatus(i, zone.Status{Live: 1, Known: true})
	}
	return b
}

// fixture is the one of the decision table: two owners of fed.example., the
// second of which is stale with 12.9 s left.
func fixture() *zonetest.Builder {
	b := builder(owner("o1", "fed.example"), owner("o2", "fed.example"))
	web := service("web web.fed.example 192.0.2.1@8080[eu] 2001:db8::1@8443[us] gw.example.net@443[us] v1/HTTP[eu] v2/HTTPS[none]")
	web.Description, web.Tags, web.SANs = "Web", []string{"a", "b"}, []string{"spiffe://o1/web"}
	web.Labels = []federation.Pair{{Key: "App", Value: "x"}}
	web.Instances[0].Metadata = []federation.Pair{
		{Key: "HOSTNAME", Value: "web.int"}, {Key: "PORT", Value: "80"}, {Key: "zone", Value: "eu"},
	}
	b.Put(0, web, 1)
	b.Put(0, service("deep deep.a.b.fed.example 192.0.2.9@5432 DB.r1/TCP"), 1)
	b.Put(0, service("apex fed.example 192.0.2.80@443 Edge/TLS"), 1)
	b.Put(1, service("old old.fed.example 203.0.113.5@443 i1/MTLS"), 1)
	b.SetStatus(1, zone.Status{Live: 2, Known: true, Expires: now.Add(12900 * time.Millisecond)})
	return b
}

// ask returns an answer as text: the kind, then the records without their name
// and class, then the hosts that are left to look up.
func ask(z *zone.Zone, name, qtype string, at time.Time) []string {
	number, _ := typeOf(qtype)
	r := z.Lookup(strings.ToLower(name), number, at)
	lines := []string{kindNames[r.Kind]}
	if r.Kind == zone.Success || r.Kind == zone.Indirect {
		lines = append(lines, data(name, reply.AppendAnswer(nil, &r, name, 0))...)
	}
	for _, h := range r.Hosts() {
		lines = append(lines, "host "+h.Name)
	}
	return lines
}

func typeOf(s string) (uint16, bool) {
	if digits, ok := strings.CutPrefix(s, "TYPE"); ok {
		return uint16(must.Value(strconv.ParseUint(digits, 10, 16))), true
	}
	qtype, ok := dns.StringToType[s]
	return qtype, ok
}

// data shows records without their class, and without their name when one is
// given, which all must have.
func data(name string, rrs []dns.RR) []string {
	var lines []string
	for _, rr := range rrs {
		line, ok := strings.CutPrefix(strings.ReplaceAll(rr.String(), "\t", " "), name)
		line = strings.TrimPrefix(line, " ")
		if !ok {
			line = "not at " + name + ": " + line
		}
		lines = append(lines, strings.Replace(line, " IN ", " ", 1))
	}
	return lines
}

var kindNames = [...]string{"OUTSIDE", "UNSYNCED", "UNHEARD", "NXDOMAIN", "NODATA", "NOERROR", "INDIRECT"}

// expect asks for every row, "NAME... TYPE... | KIND | record | ...", with records
// as ask shows them. Names are below fed.example. unless they end in a dot.
func expect(t *testing.T, z *zone.Zone, at time.Time, rows ...string) {
	t.Helper()
	for _, row := range rows {
		want := strings.Split(row, " | ")
		var names, types []string
		for field := range strings.FieldsSeq(want[0]) {
			switch _, ok := typeOf(field); {
			case ok:
				types = append(types, field)
			case strings.HasSuffix(field, "."):
				names = append(names, field)
			default:
				names = append(names, field+".fed.example.")
			}
		}
		for _, name := range names {
			for _, qtype := range types {
				if d := cmp.Diff(want[1:], ask(z, name, qtype, at)); d != "" {
					t.Errorf("%s %s (-want +got):\n%s", name, qtype, d)
				}
			}
		}
	}
}

// TestDecisionTable holds the tests of the decision table, by its sections.
func TestDecisionTable(t *testing.T) {
	z := fixture().Publish(now)
	const (
		v4  = "30 SRV 0 100 8080 192-0-2-1.addr.web.fed.example."
		v6  = "30 SRV 0 100 8443 2001-0db8-0000-0000-0000-0000-0000-0001.addr.web.fed.example."
		gw  = "30 SRV 0 100 443 gw.example.net."
		web = `30 TXT "txtvers=1" "name=web" "desc=Web" "tag=a" "tag2=b" "label.app=x" "san=spiffe://o1/web"`
		v1  = `30 TXT "txtvers=1" "id=v1" "protocol=HTTP" "hostname=web.int" "port=80" "md.zone=eu"`
		v2  = `30 TXT "txtvers=1" "id=v2" "protocol=HTTPS"`
	)
	sections := []struct {
		name string
		rows []string
	}{
		{"1 addresses", []string{
			"web A | INDIRECT | 30 A 192.0.2.1 | host gw.example.net.",
			"web AAAA | INDIRECT | 30 AAAA 2001:db8::1 | host gw.example.net.",
			"v1.web A | NOERROR | 30 A 192.0.2.1",
			"v1.web AAAA | NODATA",
			"v2.web A | INDIRECT | 30 A 192.0.2.1 | host gw.example.net.",
			"fed.example. A | NOERROR | 30 A 192.0.2.80",
			"web CNAME MX CAA NS SOA DS HTTPS SVCB TYPE65000 | NODATA",
		}},
		{"2 SRV", []string{
			"web SRV | INDIRECT | " + v4 + " | " + v6 + " | " + gw + " | host gw.example.net.",
			"_http._tcp.web SRV | NOERROR | " + v4,
			"v1.web SRV | NOERROR | " + v4,
			"_http._tcp.v1.web SRV | NOERROR | " + v4,
			"_https._tcp.v1.web SRV | NXDOMAIN",
			"_https._tcp.web SRV | INDIRECT | " + v4 + " | " + v6 + " | " + gw + " | host gw.example.net.",
			"_grpc._tcp.web SRV | NXDOMAIN",
			"_udp.web ANY | NXDOMAIN",
			"_http._udp.web SRV | NXDOMAIN",
			"_http._tcp.web A AAAA TXT | NODATA",
			"_tcp.web A SRV TXT ANY | NODATA",
			"_tcp.v1.web SRV ANY | NODATA",
			"_http.web SRV | NXDOMAIN",
			"addr.web A SRV TXT ANY | NODATA",
			"192-0-2-1.addr.web A | NOERROR | 30 A 192.0.2.1",
			"192-0-2-1.addr.web AAAA SRV TXT | NODATA",
			"2001-0db8-0000-0000-0000-0000-0000-0001.addr.web AAAA | NOERROR | 30 AAAA 2001:db8::1",
			"192-0-2-2.addr.web A | NXDOMAIN",
			"2001-db8--1.addr.web 2001-db8-0-0-0-0-0-1.addr.web AAAA | NXDOMAIN",
			"192-0-2-01.addr.web A | NXDOMAIN",
			"192-0-2-1.addr.v1.web A | NXDOMAIN",
		}},
		{"3 TXT", []string{
			"v1.web TXT | NOERROR | " + v1,
			"web TXT | NOERROR | " + web + " | " + v1 + " | " + v2,
		}},
		{"5 structure", []string{
			"fed.example. SOA | NOERROR | 5 SOA ns.dns.fed.example. hostmaster.fed.example. 1800000000 300 60 86400 5",
			"fed.example. NS | NOERROR | 5 NS ns.dns.fed.example.",
			"fed.example. MX DS DNSKEY | NODATA",
			"ns.dns A | NOERROR | 5 A 192.0.2.53",
			"ns.dns AAAA | NOERROR | 5 AAAA 2001:db8::53",
			"ns.dns TXT SRV SOA | NODATA",
			"dns A ANY | NODATA",
			"x.dns A | NXDOMAIN",
			"x.ns.dns A | NXDOMAIN",
			"nope A AAAA SRV TXT NS SOA CNAME HTTPS ANY | NXDOMAIN",
			"b A AAAA SRV TXT NS SOA CNAME HTTPS ANY | NODATA",
			"a.b A AAAA SRV TXT NS SOA CNAME HTTPS ANY | NODATA",
			"x.deep.a.b A | NXDOMAIN",
			"x.v1.web A | NXDOMAIN",
			"*.web A | NXDOMAIN",
			"r1.deep.a.b A | NODATA",
			"db.r1.deep.a.b A | NOERROR | 30 A 192.0.2.9",
			"DB.R1.DEEP.a.B.fed.EXAMPLE. A | NOERROR | 30 A 192.0.2.9",
			"_tcp._tcp.deep.a.b SRV | NOERROR | 30 SRV 0 100 5432 192-0-2-9.addr.deep.a.b.fed.example.",
			"_tcp._tcp.db.r1.deep.a.b SRV | NOERROR | 30 SRV 0 100 5432 192-0-2-9.addr.deep.a.b.fed.example.",
			"_tcp.r1.deep.a.b SRV | NXDOMAIN",
			"edge A | NOERROR | 30 A 192.0.2.80",
			"_tls._tcp SRV | NOERROR | 30 SRV 0 100 443 192-0-2-80.addr.fed.example.",
			`web ANY | NOERROR | 30 HINFO "RFC8482" ""`,
			`fed.example. ANY | NOERROR | 30 HINFO "RFC8482" ""`,
			`ns.dns ANY | NOERROR | 5 HINFO "RFC8482" ""`,
			"web HINFO | NODATA",
		}},
		{"7 stale", []string{
			"old A | NOERROR | 12 A 203.0.113.5",
			"i1.old A | NOERROR | 12 A 203.0.113.5",
			`old TXT | NOERROR | 12 TXT "txtvers=1" "name=old" | 12 TXT "txtvers=1" "id=i1" "protocol=MTLS"`,
			`old ANY | NOERROR | 12 HINFO "RFC8482" ""`,
		}},
		{"escapes", []string{
			`a\.web A | NXDOMAIN`,
			`_http\._tcp.web SRV | NXDOMAIN`,
			`\118\049.web A | NXDOMAIN`,
			`x\.fed.example. A | OUTSIDE`,
			"xfed.example. A | OUTSIDE",
			"example. SOA | OUTSIDE",
			". SOA | OUTSIDE",
		}},
	}
	for _, s := range sections {
		t.Run(s.name, func(t *testing.T) { expect(t, z, now, s.rows...) })
	}
}

// TestProtocol has what metadata tells of an answer, beside what the oracle knows.
func TestProtocol(t *testing.T) {
	z := fixture().Publish(now)
	for name, want := range map[string]federation.Protocol{
		"web.fed.example.": 0, "v1.web.fed.example.": federation.HTTP, "_http._tcp.web.fed.example.": federation.HTTP,
		"_https._tcp.v2.web.fed.example.": federation.HTTPS, "nope.fed.example.": 0,
	} {
		if r := z.Lookup(name, dns.TypeSRV, now); r.Protocol() != want {
			t.Errorf("%s: %s, want %s", name, r.Protocol(), want)
		}
	}
	if !z.HasName("x.fed.example.") || z.HasName("example.") {
		t.Error("Has: want names in fed.example. only")
	}
}

// TestRecordsAreTheCallers changes everything that answers hand out, which must
// not show in the next answer (coredns issues 4432, 6718, 7335).
func TestRecordsAreTheCallers(t *testing.T) {
	z := fixture().Publish(now)
	for _, name := range []string{"web.fed.example.", "fed.example.", "192-0-2-1.addr.web.fed.example.", "ns.dns.fed.example."} {
		for _, qtype := range questionTypes {
			r := z.Lookup(name, qtype, now)
			before := records(&r, name)
			want := lines(before)
			for _, rr := range before {
				spoil(rr)
			}
			r = z.Lookup(name, qtype, now)
			if d := cmp.Diff(want, lines(records(&r, name))); d != "" {
				t.Errorf("%s %s (-before +after):\n%s", name, dns.Type(qtype), d)
			}
		}
	}
}

// TestReadersAndWriter has readers spoil all that they are given, while versions
// come and go. The race detector does the rest.
func TestReadersAndWriter(t *testing.T) {
	b := fixture()
	var current atomic.Pointer[zone.Zone]
	current.Store(b.Publish(now))
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				z := current.Load()
				for _, name := range []string{"web.fed.example.", "fed.example.", "moving.fed.example."} {
					for _, qtype := range questionTypes {
						r := z.Lookup(name, qtype, now)
						for _, rr := range records(&r, name) {
							spoil(rr)
						}
					}
				}
				for range reply.FullTransfer(z, "fed.example.", now) {
				}
			}
		})
	}
	for i := range 200 {
		b.Put(0, service(fmt.Sprintf("moving moving.fed.example 192.0.2.%d@80 web.fed.example@80 i/TCP", i)), uint64(i))
		b.SetStatus(0, zone.Status{Live: uint64(i), Known: true})
		current.Store(b.Publish(now.Add(time.Duration(i) * time.Second)))
	}
	close(done)
	readers.Wait()
}

// records returns all records of a reply.
func records(r *zone.Result, name string) []dns.RR {
	if r.Kind != zone.Success && r.Kind != zone.Indirect {
		return reply.AppendAuthority(nil, r)
	}
	answer := reply.AppendAnswer(nil, r, name, 0)
	return append(answer, reply.AppendGlue(nil, r, answer, 0, now)...)
}

func spoil(rr dns.RR) {
	rr.Header().Name, rr.Header().Ttl = "spoiled.", 9
	switch rr := rr.(type) {
	case *dns.A:
		rr.A[len(rr.A)-1] ^= 0xff
	case *dns.AAAA:
		rr.AAAA[len(rr.AAAA)-1] ^= 0xff
	case *dns.TXT:
		rr.Txt[0] = "spoiled"
	case *dns.SRV:
		rr.Target = "spoiled."
	case *dns.SOA:
		rr.Serial++
	}
}
