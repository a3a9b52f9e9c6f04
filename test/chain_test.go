package test

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// TestChain has the plugin between others of CoreDNS: cache keeps none of its answers, log shows what it
// says of them, and the next plugin answers what falls through. Which names do is in package plugin.
func TestChain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	next := startNameserver(t, map[string]string{
		"nope.fall.example.": "60 A 198.51.100.1", "nope.part.example.": "60 A 198.51.100.1", "x.a.part.example.": "60 A 198.51.100.1",
		"target.fall.example.": "60 A 198.51.100.2", "web.fall.example.": "60 MX 10 wrong.example.net.",
	})
	simple := func(fqdn, host string) *federation.Service {
		return fixtureService(fqdn, fqdn, []string{host + ":443"}, []string{"v1 HTTPS"})
	}
	o := startOwner(t, p, simple("web.cache.example", "192.0.2.1"), simple("web.fall.example", "192.0.2.1"), simple("inner.fall.example", "target.fall.example"))
	const logged = "metadata\nlog . \"seen {name} {type} <{/federation/owner}> <{/federation/service}> <{/federation/instance}> <{/federation/protocol}> <{/federation/state}>\""
	d := startCoreDNS(t, federationBlock(p, "cache.example", "cache 3600\n"+logged, o.address+" ttl 3")+
		federationBlock(p, "fall.example", "cache 60\nforward . "+next, o.address+" fallthrough")+
		federationBlock(p, "part.example", "forward . "+next, o.address+" fallthrough a.part.example"))
	d.awaitAnswer(t, "nope.part.example", dns.TypeA, "NXDOMAIN")
	checkTable(t, d.address, "cache.example.", []tableRow{{"web", "A", "NOERROR, 3 A 192.0.2.1"}, {"nope", "A", nxDomain}})
	mustQuery(t, d.address, "_https._tcp.web.cache.example", dns.TypeSRV)
	mustQuery(t, d.address, "v1.web.cache.example", dns.TypeTXT)
	awaitLog(t, d.Process, 1, fmt.Sprintf("seen _https._tcp.web.cache.example. SRV <%s> <web.cache.example> <> <HTTPS> <live>", o.address))
	awaitLog(t, d.Process, 1, fmt.Sprintf("seen v1.web.cache.example. TXT <%s> <web.cache.example> <v1> <HTTPS> <live>", o.address))
	mustUpsert(t, o, simple("web.cache.example", "192.0.2.4"))
	d.awaitAnswer(t, "web.cache.example", dns.TypeA, "NOERROR 192.0.2.4")
	o.Delete("web.cache.example")
	d.awaitAnswer(t, "web.cache.example", dns.TypeA, "NXDOMAIN")
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"nope.fall.example", dns.TypeA, "NOERROR 198.51.100.1"},
		{"x.web.fall.example", dns.TypeA, "NXDOMAIN"}, // from the next plugin
		{"web.fall.example", dns.TypeA, "NOERROR 192.0.2.1"},
		{"web.fall.example", dns.TypeMX, "NOERROR"},
		{"_tcp.web.fall.example", dns.TypeA, "NOERROR"},
		{"inner.fall.example", dns.TypeA, "NOERROR 198.51.100.2"}, // coredns#6088
		{"nope.part.example", dns.TypeA, "NXDOMAIN"},
		{"x.a.part.example", dns.TypeA, "NOERROR 198.51.100.1"},
	} {
		d.awaitAnswer(t, tt.name, tt.qtype, tt.want)
	}
}
