package relay

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// TestPublishTo has an owner dial a relay, and relay another catalog of that relay: nobody connects
// to the owner from outside, and its services resolve behind the relay through kill, cut and
// restart.
func TestPublishTo(t *testing.T) {
	t.Parallel()
	p := newWorld(t)
	const web, own = "web." + zone, "own." + zone
	p.Put(t, "own.yaml", services(map[string]string{"own": "192.0.2.9"}))
	p.Put(t, "inner.yaml", services(map[string]string{"web": "192.0.2.1", "old": "192.0.2.1"}))
	address := loopback.Address(t)
	outer := place.Owner{
		Address: address, TLS: p.Files("relay"), Allow: []string{ownerID, coreDNSID}, More: fmt.Sprintf(`catalogs:
- relay: {accept: [%q], zones: [%s]}
- server_name: own.example
  sources: [{file: {path: own.yaml}}]
`, ownerID, zone),
	}
	relay := p.start(t, "relay", "federationctl", address, "serve", "--config", p.Put(t, "relay.yaml", outer.Config()))
	relay.gate = realserver.StartGate(t, address)
	way := realserver.StartGate(t, address) // of what the owner dials
	at := loopback.Address(t)
	within := place.Owner{Address: at, TLS: p.Files("owner"), Allow: []string{relayID, coreDNSID}, More: fmt.Sprintf(`publish_to: [{addresses: [%q], owner_ids: [%q]}]
catalogs:
- sources: [{file: {path: inner.yaml}}]
- server_name: theirs.example
  relay: {addresses: [%q], owner_ids: [%q], tls_servername: own.example}
`, way.Address, relayID, way.Address, relayID)}
	inner := p.start(t, "owner", "federationctl", at, "serve", "--config", p.Put(t, "owner.yaml", within.Config()))
	inner.gate = realserver.StartGate(t, at)
	behind := p.coreDNS(t, "behind", relay, relayID, zone, time.Hour)
	inside := place.DNS{
		Zone: zone, Address: loopback.Address(t), Owners: []string{inner.gate.Address}, OwnerID: ownerID, TLS: p.Files("coredns"),
		Properties: []string{"tls_servername theirs.example", "ttl 2", "retention 1h"},
	}
	beside := p.start(t, "beside", "coredns", inside.Address, "-conf", p.Put(t, "beside.corefile", inside.Corefile()))

	well := func(what, address string) {
		t.Helper()
		began := time.Now()
		behind.within(t, 2*time.Minute, web, address)
		beside.within(t, 2*time.Minute, own, "192.0.2.9")
		t.Logf("%s: all is well after %v", what, time.Since(began).Round(10*time.Millisecond))
	}
	stale := func() {
		t.Helper()
		behind.answers(t, web, "stale", answer.stale)
	}
	well("at first", "192.0.2.1")

	p.Put(t, "inner.yaml", services(map[string]string{"web": "192.0.2.2"}))
	well("after a change", "192.0.2.2")

	behind.answers(t, "old."+zone, "gone", func(a answer) bool { return a.rcode == dns.RcodeNameError })

	// New values of the relay are in force although the owner goes on.
	p.Put(t, "relay.yaml", strings.Replace(outer.Config(), "zones: ["+zone+"]", "zones: [other.example]", 1))
	behind.answers(t, web, "out of the zones", func(a answer) bool { return a.rcode == dns.RcodeNameError })
	p.Put(t, "relay.yaml", outer.Config())
	well("after two reloads of the relay", "192.0.2.2")

	inner.Kill()
	stale()
	must.Do(t, inner.Start(t.Context()))
	well("after the owner was killed", "192.0.2.2")

	way.Cut()
	well("after a cut", "192.0.2.2")

	way.Refuse(true)
	way.Cut()
	stale()
	way.Refuse(false)
	well("after a time without the network", "192.0.2.2")

	relay.Kill()
	stale()
	must.Do(t, relay.Start(t.Context()))
	well("after the relay was killed", "192.0.2.2")
}

// within waits for longer than live.
func (n *tierProcess) within(t testing.TB, limit time.Duration, name, address string) {
	t.Helper()
	for began := time.Now(); ; passes(t, tick) {
		a, err := n.ask(t.Context(), name)
		if err == nil && a.address == address && !a.stale() {
			return
		}
		if time.Since(began) > limit {
			t.Fatalf("%s answers %v, %v for %s after %v, expected %s", n.Name, a, err, name, limit, address)
		}
	}
}
