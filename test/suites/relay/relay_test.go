package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	zone      = "fed.example"
	ownerID   = "spiffe://fed.example/owner"
	relayID   = "spiffe://fed.example/relay"
	coreDNSID = "spiffe://fed.example/coredns"
)

func TestMain(m *testing.M) { place.Main(m) }

// catalogOf is the text of a catalog file with web at an address.
func catalogOf(address string) string {
	return "services: [{name: web, fqdn: web." + zone + ", endpoints: [{address: " + address + ", port: 80}], instances: [{id: v1, protocol: HTTP}]}]\n"
}

// startRelay starts a relay of the owner at an address, whose identity is id.
func startRelay(t *testing.T, p *place.Place, name, of, id string) (relay *realserver.Process, address string) {
	t.Helper()
	address = loopback.Address(t)
	config := place.Owner{
		Address: address, Metrics: loopback.Address(t), TLS: p.Files("relay"), Allow: []string{relayID, coreDNSID},
		More: fmt.Sprintf("catalogs:\n- relay: {addresses: [%q], owner_ids: [%q], persist: %s.catalog}\n", of, id, name),
	}
	return p.Run(t, name, place.Built(t, "federationctl"), address, "serve", "--config", p.Put(t, name+".yaml", config.Config())), address
}

// TestTiers has two relays between an origin and CoreDNS. The origin is killed, which is a loss behind both
// after the grace, and the first relay is started anew meanwhile: although it has a file it vouches for
// nothing. When the origin is back, that is answered within ten seconds.
func TestTiers(t *testing.T) {
	t.Parallel()
	const (
		back  = 10 * time.Second
		slack = 5 * time.Second // on a busy machine
	)
	p := place.For(t, map[string]string{"owner": ownerID, "relay": relayID, "coredns": coreDNSID})
	address := loopback.Address(t)
	origin := p.Run(t, "origin", place.Built(t, "federationctl"), address, "serve", "--listen", address, "--allow-any",
		"--catalog", p.Put(t, "catalog.yaml", catalogOf("192.0.2.1")),
		"--cert", p.Path("owner.pem"), "--key", p.Path("owner-key.pem"), "--ca", p.Path("ca.pem"))
	first, address := startRelay(t, p, "first", address, ownerID)
	_, address = startRelay(t, p, "second", address, relayID)
	coreDNS := loopback.Address(t)
	corefile := place.DNS{Zone: zone, Address: coreDNS, Owners: []string{address}, OwnerID: relayID, TLS: p.Files("coredns"), Properties: []string{"ttl 2"}}
	p.Run(t, "coredns", place.Built(t, "coredns"), coreDNS, "-conf", p.Put(t, "corefile", corefile.Corefile()))

	// answers waits for an answer in the form of domain.Short and whether it is stale. Until then it is
	// one of others.
	answers := func(address string, stale bool, others func(address string, stale bool) bool) {
		t.Helper()
		await.Eventually(t, func() string {
			question := new(dns.Msg).SetQuestion("web."+zone+".", dns.TypeA)
			question.SetEdns0(dns.DefaultMsgSize, false)
			reply, err := dns.ExchangeContext(t.Context(), question, coreDNS)
			if err != nil {
				return err.Error()
			}
			got, is := domain.Short(reply), isStale(reply)
			switch {
			case got == "NOERROR "+address && is == stale:
				return ""
			case others != nil && !others(got, is):
				t.Fatalf("the answer is %s, stale: %t", got, is)
			}
			return fmt.Sprintf("the answer is %s, stale: %t", got, is)
		})
	}
	answers("192.0.2.1", false, nil)
	killed := time.Now()
	origin.Kill()
	answers("192.0.2.1", true, nil)
	if since := time.Since(killed); since < catalog.Grace-time.Second {
		t.Errorf("a stale answer %v after the origin was killed", since)
	}
	must.Do(t, first.Restart(t.Context()))
	p.Put(t, "catalog.yaml", catalogOf("192.0.2.2"))
	must.Do(t, origin.Start(t.Context()))
	started := time.Now()
	answers("192.0.2.2", false, func(_ string, stale bool) bool { return stale })
	if took := time.Since(started); took > back+slack {
		t.Errorf("the origin is answered behind two relays after %v, want %v", took, back)
	}
}

// isStale reports whether a reply says so.
func isStale(reply *dns.Msg) bool {
	if opt := reply.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok && e.InfoCode == dns.ExtendedErrorCodeStaleAnswer {
				return true
			}
		}
	}
	return false
}
