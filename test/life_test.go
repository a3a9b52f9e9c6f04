package test

import (
	"testing"

	"github.com/miekg/dns"
)

// TestLifeOfAService adds, changes and deletes services of a real owner behind a
// real CoreDNS, then stops the owner and starts it again.
func TestLifeOfAService(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := startOwner(t, p, simpleService("web", "web.fed.example", "192.0.2.1"))
	d := startCoreDNS(t, federationBlock(p, "fed.example", "", o.address))

	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	mustUpsert(t, o, simpleService("web", "web.fed.example", "192.0.2.2"))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
	mustUpsert(t, o, simpleService("api", "api.fed.example", "192.0.2.3"))
	d.awaitAnswer(t, "v1.api.fed.example", dns.TypeA, "NOERROR 192.0.2.3")
	o.Delete("api")
	gone := d.awaitAnswer(t, "api.fed.example", dns.TypeA, "NXDOMAIN")
	if len(gone.Ns) != 1 || gone.Ns[0].Header().Rrtype != dns.TypeSOA {
		t.Errorf("authority of NXDOMAIN is %v, want one SOA", gone.Ns)
	}

	o.stop()
	if ttl := d.awaitStale(t, "web.fed.example").Answer[0].Header().Ttl; ttl > 30 {
		t.Errorf("TTL of a stale answer is %d, want at most 30", ttl)
	}
	mustUpsert(t, o, simpleService("web", "web.fed.example", "192.0.2.4"))
	serveRegistry(t, p, o.address, o.Registry, 1)
	back := d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.4")
	if got := extendedError(back); got != -1 {
		t.Errorf("extended error is %d after the owner came back", got)
	}
}
