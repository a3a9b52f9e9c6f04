package federationplugin

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// TestAnswers has whole replies: of a service with everything in it, of names beside and below it, and of an
// owner that is lost. Which records a name has is in the tables of package zone.
func TestAnswers(t *testing.T) {
	const (
		v4     = "192-0-2-1.addr.web.fed.example."
		v6     = "2001-0db8-0000-0000-0000-0000-0000-0001.addr.web.fed.example."
		glue4  = ", + " + v4 + " 30 A 192.0.2.1"
		all    = "NOERROR, 30 0 100 8080 " + v4 + ", 30 0 100 8443 " + v6 + ", 30 0 100 443 gw.example.net." + glue4 + ", + " + v6 + " 30 AAAA 2001:db8::1, + gw.example.net. 20 A 198.51.100.7"
		http   = "NOERROR, 30 0 100 8080 " + v4 + glue4
		v1     = `30 "txtvers=1" "id=v1" "protocol=HTTP" "hostname=web.int" "port=80" "md.zone=eu"`
		v2     = `30 "txtvers=1" "id=v2" "protocol=HTTPS"`
		web    = `30 "txtvers=1" "name=web" "desc=Web" "tag=a" "tag2=b" "label.app=x" "san=spiffe://o1/web"`
		hinfo  = `NOERROR, 30 "RFC8482" ""`
		noData = "NOERROR, EDE 19, SOA" // an owner of the zone is lost
		denied = "NXDOMAIN, EDE 19, SOA"
		others = "CNAME MX CAA NS SOA DS HTTPS SVCB HINFO PTR NAPTR TLSA DNSKEY NSEC RRSIG"
		every  = "A AAAA SRV TXT ANY " + others
	)
	service := newService(t, "web.fed.example", "192.0.2.1:8080", "[2001:db8::1]:8443", "gw.example.net:443")
	service.Name, service.Description, service.Tags, service.SANs = "web", "Web", []string{"a", "b"}, []string{"spiffe://o1/web"}
	service.Labels = []federation.Pair{{Key: "App", Value: "x"}}
	service.Endpoints[0].Labels = []string{"eu"}
	service.Instances = []federation.Instance{
		{ID: "v1", Protocol: federation.HTTP, EndpointSelector: []string{"eu"}, Metadata: []federation.Pair{{Key: "HOSTNAME", Value: "web.int"}, {Key: "PORT", Value: "80"}, {Key: "zone", Value: "eu"}}},
		{ID: "v2", Protocol: federation.HTTPS, EndpointSelector: []string{"none"}},
	}
	synctest.Test(t, func(t *testing.T) {
		second := newBlock(t)
		second.Owner.Name = "lost.example:8008"
		c := newChain(t, &elsewhere{names: map[string]string{"gw.example.net.": "20 A 198.51.100.7"}}, []corefile.Block{newBlock(t), second},
			service, newService(t, "deep.a.b.fed.example", "192.0.2.9:5432"), newService(t, "inner.fed.example", "v1.web.fed.example:443"))
		defer hostname.Close(c.hosts)
		c.builder.Put(1, newService(t, "old.fed.example", "203.0.113.5:443"), 0)
		c.builder.SetStatus(1, zone.Status{Known: true, Live: 1, Lost: time.Now(), Expires: time.Now().Add(time.Hour)})
		c.publish()
		for _, tt := range []struct{ name, types, want string }{
			{"web", "A", "NOERROR, 20 192.0.2.1, 20 198.51.100.7"},
			{"web", "AAAA", "NOERROR, 30 2001:db8::1"},
			{"web", others, noData},
			{"v1.web", "A", "NOERROR, 30 192.0.2.1"},
			{"v2.web", "A", "NOERROR, 20 192.0.2.1, 20 198.51.100.7"},
			{"v1.web", "AAAA", noData},

			{"web v2.web _https._tcp.web _HTTPS._tcp.V2.web", "SRV", all},
			{"v1.web _http._tcp.web _http._tcp.v1.web", "SRV", http},
			{"_http._tcp.web", "A AAAA TXT " + others, noData},
			{"_tcp.web addr.web a.b b", every, noData},
			{"_grpc._tcp.web _http._udp.web _https._tcp.v1.web x.v1.web 192-0-2-2.addr.web 2001-db8--1.addr.web *.web nope nope.nope", every, denied},
			{`a\.b.web \255.web`, every, denied},
			{"192-0-2-1.addr.web", "A", "NOERROR, 30 192.0.2.1"},
			{"192-0-2-1.addr.web", "AAAA SRV TXT " + others, noData},
			{"inner", "SRV", "NOERROR, 30 0 100 443 v1.web.fed.example., + v1.web.fed.example. 30 A 192.0.2.1"},

			{"v1.web", "TXT", "NOERROR, " + v1},
			{"web", "TXT", "NOERROR, " + web + ", " + v1 + ", " + v2},
			{"web v1.web _http._tcp.web deep.a.b", "ANY", hinfo},
			{"DEEP.a.B V1.deep.a.b", "A", "NOERROR, 30 192.0.2.9"},

			{"fed.example.", "NS", "NOERROR, 5 ns.dns.fed.example., + ns.dns.fed.example. 5 A 192.0.2.53, + ns.dns.fed.example. 5 AAAA 2001:db8::53"},
			{"fed.example.", "A AAAA SRV TXT MX DS DNSKEY CNAME HTTPS HINFO CAA", noData},
			{"ns.dns", "A", "NOERROR, 5 192.0.2.53"},
			{"ns.dns", "TXT SRV " + others, noData},
			{"dns", every, noData},
			{"x.dns x.ns.dns _services._dns-sd._udp 1.2.0.192.in-addr.arpa", every, denied},

			{"old v1.old", "A", "NOERROR, EDE 3, 30 203.0.113.5"},
			{"old", "TXT", `NOERROR, EDE 3, 30 "txtvers=1" "name=old.fed.example", 30 "txtvers=1" "id=v1" "protocol=HTTPS"`},
			{"_https._tcp.old", "SRV", "NOERROR, EDE 3, 30 0 100 443 203-0-113-5.addr.old.fed.example., + 203-0-113-5.addr.old.fed.example. 30 A 203.0.113.5"},
			{"old", "AAAA MX", noData},
			{"fed.example.", "AXFR", "REFUSED"},
		} {
			for name := range strings.FieldsSeq(tt.name) {
				if !strings.HasSuffix(name, ".") {
					name += ".fed.example."
				}
				for qtype := range strings.FieldsSeq(tt.types) {
					query := new(dns.Msg)
					query.SetQuestion(name, dns.StringToType[qtype]).SetEdns0(4096, false)
					query.CheckingDisabled = true
					m := c.ask(&test.ResponseWriter{}, query)
					got := short(m)
					for _, rr := range m.Extra {
						if h := rr.Header(); h.Rrtype != dns.TypeOPT {
							got += ", + " + strings.Join(slices.DeleteFunc(strings.Fields(rr.String()), func(s string) bool { return s == "IN" }), " ")
						}
					}
					ours := qtype != "AXFR"
					if got != tt.want || m.Authoritative != ours || m.Truncated || m.RecursionAvailable || m.AuthenticatedData || ours && !m.CheckingDisabled {
						t.Errorf("%s %s: %s, want %s\n%v", name, qtype, got, tt.want, m.MsgHdr)
					}
					query.Extra = nil
					if plain := c.ask(&test.ResponseWriter{}, query); plain.IsEdns0() != nil {
						t.Errorf("%s %s: OPT for a client that sent none: %v", name, qtype, plain.Extra)
					}
					for _, rr := range m.Ns {
						if soa, ok := rr.(*dns.SOA); ours && (!ok || soa.Hdr.Ttl != 5 || soa.Minttl != 5) {
							t.Errorf("%s %s: the authority is %v", name, qtype, rr)
						}
					}
				}
			}
		}
	})
}

// A reply that is too large for its client has some of the answers, and says so.
func TestTruncated(t *testing.T) {
	c := newChain(t, nil, []corefile.Block{newBlock(t)}, newService(t, "eight.fed.example", addressList(8)...), newService(t, "forty.fed.example", addressList(40)...))
	for _, tt := range []struct {
		name  string
		size  uint16 // 0: no EDNS
		tcp   bool
		whole bool
	}{
		{"eight", 0, false, true},
		{"eight", 100, false, true}, // a buffer below 512 octets is 512
		{"forty", 0, false, false},
		{"forty", 512, false, false},
		{"forty", 12 + 23 + 40*16 + 11, false, true},
		{"forty", 12 + 23 + 40*16 + 10, false, false},
		{"forty", 0, true, true},
	} {
		query := new(dns.Msg)
		if query.SetQuestion(tt.name+".fed.example.", dns.TypeA); tt.size > 0 {
			query.SetEdns0(tt.size, false)
		}
		m := c.ask(&test.ResponseWriter{TCP: tt.tcp}, query)
		n := map[string]int{"eight": 8, "forty": 40}[tt.name]
		if m.Truncated == tt.whole || (len(m.Answer) == n) != tt.whole || len(m.Answer) == 0 {
			t.Errorf("%s in %d octets: %d answers, truncated is %t", tt.name, tt.size, len(m.Answer), m.Truncated)
		}
	}
}
