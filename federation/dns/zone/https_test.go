package zone_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
)

// TestHTTPS has what HTTPS records say, and that there are none unless the owner's block wants
// them.
func TestHTTPS(t *testing.T) {
	wants := owner("o", "fed.example")
	wants.HTTPS = true
	b, without := builder(wants), builder(owner("o", "fed.example"))
	for _, text := range []string{
		"one one.fed.example 192.0.2.1@8443 192.0.2.2@8443 2001:db8::1@8443 v1/HTTPS",
		"two two.fed.example 192.0.2.1@443 v1/HTTP2",
		"both both.fed.example 192.0.2.1@443 v1/HTTPS v2/HTTP2",
		"plain plain.fed.example 192.0.2.1@80[p] 192.0.2.1@443[s] v1/HTTP[p] v2/HTTPS[s]",
		"split split.fed.example 192.0.2.1@443[1] 192.0.2.1@8443[2] v1/HTTPS[1] v2/HTTP2[2]",
		"ports ports.fed.example 192.0.2.1@443 192.0.2.2@8443 v1/HTTPS",
		"part part.fed.example 192.0.2.1@443[s] 192.0.2.2@80[p] v1/HTTPS[s] v2/HTTP[p]",
		"last last.fed.example 192.0.2.1@80[p] 192.0.2.2@443[s] v1/HTTPS[s] v2/HTTP[p]",
		"others others.fed.example 192.0.2.1@443 v1/HTTP v2/GRPC v3/TLS",
		"host host.fed.example gw.example.net@443 v1/HTTPS",
		"apex fed.example 192.0.2.1@443 v1/HTTPS",
	} {
		b.Put(0, service(text), 1)
		without.Put(0, service(text), 1)
	}
	const (
		one  = `30 HTTPS 1 . alpn="http/1.1" port="443"`
		high = `30 HTTPS 1 . alpn="http/1.1" port="8443"`
		two  = `30 HTTPS 1 . alpn="h2" no-default-alpn="" port="443"`
	)
	expect(t, b.Publish(now), now,
		"one v1.one HTTPS | NOERROR | "+high,
		"two v1.two v2.both HTTPS | NOERROR | "+two,
		"both HTTPS | NOERROR | "+`30 HTTPS 1 . alpn="h2,http/1.1" port="443"`,
		"v1.both v2.plain plain host fed.example. HTTPS | NOERROR | "+one,
		"split HTTPS | NOERROR | "+`30 HTTPS 1 . alpn="h2" no-default-alpn="" port="8443"`+" | "+one,
		// One port would be taken together with the address of another.
		"ports v1.ports part last HTTPS | NODATA",
		"v1.part v1.last HTTPS | NOERROR | "+one,
		"others v1.plain _https._tcp.one _tcp.one 192-0-2-1.addr.one ns.dns HTTPS | NODATA",
		"nope _8443._https.one HTTPS | NXDOMAIN",
		"one SVCB | NODATA",
	)
	expect(t, without.Publish(now), now, "one v1.one two both plain host fed.example. HTTPS SVCB | NODATA")

	var transferred []string
	for _, rr := range transfer(t, b.Publish(now), "fed.example.") {
		if rr.Header().Rrtype == dns.TypeHTTPS && strings.HasSuffix(rr.Header().Name, "one.fed.example.") {
			transferred = append(transferred, rr.String())
		}
	}
	if len(transferred) != 2 || !strings.Contains(fmt.Sprint(transferred), high[len("30 HTTPS "):]) {
		t.Errorf("a transfer has of one: %q", transferred)
	}
}

// All blocks that share a name must want HTTPS records, whether or not they have a service there: when an owner
// expires, there are as many as before. Blocks that cannot publish the name do not count.
func TestHTTPSOfSharedNames(t *testing.T) {
	for _, both := range []bool{true, false} {
		first, second, elsewhere := sharer("a", "*", nil), sharer("b", "*", nil), sharer("c", "*", nil)
		first.HTTPS, second.HTTPS = true, both
		elsewhere.Origins = []federation.FQDN{origin("other.example")}
		b := builder(first, second, elsewhere)
		want := "web HTTPS | NODATA"
		if both {
			want = `web HTTPS | NOERROR | 30 HTTPS 1 . alpn="http/1.1" port="443"`
		}
		b.Put(0, service("web web.fed.example 192.0.2.1@443 v1/HTTPS"), 1)
		expect(t, b.Publish(now), now, want, "web A | NOERROR | 30 A 192.0.2.1")
		b.Put(1, service("web web.fed.example 192.0.2.2@443 v1/HTTPS"), 1)
		expect(t, b.Publish(now), now, want, "web A | NOERROR | 30 A 192.0.2.1 | 30 A 192.0.2.2")
		b.SetStatus(1, zone.Status{Live: 2, Known: true, Lost: now.Add(-time.Hour), Expires: now})
		expect(t, b.Publish(now), now, want, "web A | NOERROR | 30 A 192.0.2.1")
	}
}
