package relay

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// slack is how much later than it must something may be seen on a busy machine.
const slack = 5 * time.Second

// TestTiers kills one of four tiers, and then the origin. What CoreDNS knows outlives that
// by its own retention, once, whatever happens in between: to a relay that is started anew
// as well, although it has a file.
func TestTiers(t *testing.T) {
	t.Parallel()
	const retention = 10 * time.Second // in which a stale answer must be seen
	p := newWorld(t)
	origin := p.origin(t, services(map[string]string{"web": "192.0.2.1"}))
	first := p.relay(t, "first", origin, ownerID, "")
	second := p.relay(t, "second", first, relayID, "")
	d := p.coreDNS(t, "coredns", second, relayID, zone, retention)
	const web = "web." + zone
	d.live(t, web, "192.0.2.1")

	first.Kill()
	d.lost(t, web)
	must.Do(t, first.Start(t.Context()))
	d.live(t, web, "192.0.2.1")

	// The relays come back without the origin, and vouch for nothing.
	killed := time.Now()
	origin.Kill()
	d.lost(t, web)
	noticed := time.Now()
	must.Do(t, second.Restart(t.Context()))
	must.Do(t, first.Restart(t.Context()))
	var last answer
	gone := d.answers(t, web, "gone", func(a answer) bool {
		if a.address != "" {
			last = a
			if !a.stale() {
				t.Errorf("%v after the origin was killed the answer is %v", a.at.Sub(killed), a)
			}
		}
		return a.address == ""
	})
	if until := noticed.Add(retention); last.asked.Add(last.ttl).After(until.Add(slack)) {
		t.Errorf("an answer %v after the origin was killed has a TTL of %v", last.at.Sub(killed), last.ttl)
	}
	if gone.at.Before(killed.Add(retention - time.Second)) { // the last second has no TTL
		t.Errorf("it is gone %v after the origin was killed, before the retention of %v", gone.at.Sub(killed), retention)
	}
	t.Logf("the last answer came %v after the origin was killed, with a retention of %v", last.at.Sub(killed), retention)

	p.Put(t, "catalog.yaml", services(map[string]string{"web": "192.0.2.2"}))
	must.Do(t, origin.Start(t.Context()))
	d.live(t, web, "192.0.2.2")
}

// TestOlderVersion has a relay of an origin that speaks v1alpha1, whose services have
// protocols and no instances. Consumers of v1alpha2 get them all. When the origin has a
// service that v1alpha1 cannot express, nobody denies that there is one: neither a consumer
// of v1alpha1, nor the relay to those of v1alpha2.
func TestOlderVersion(t *testing.T) {
	t.Parallel()
	const (
		web    = "web." + zone
		unsaid = "unsaid." + zone
	)
	said := "- {name: web, fqdn: " + web + ", endpoints: [{address: 192.0.2.1, port: 80}], instances: [{id: v1, protocol: HTTP}], sans: [spiffe://" + web + "/web]}\n"
	p := newWorld(t)
	origin := p.origin(t, "services:\n"+said)
	p.api = "v1alpha1"
	relay := p.relay(t, "relay", origin, ownerID, "")
	older := p.coreDNS(t, "older", origin, ownerID, zone, time.Hour)
	p.api = ""
	d := p.coreDNS(t, "coredns", relay, relayID, zone, time.Hour)
	d.live(t, web, "192.0.2.1")
	d.live(t, "http."+web, "192.0.2.1")
	d.gone(t, "v1."+web) // v1alpha1 has no place for it
	d.gone(t, unsaid)
	older.live(t, web, "192.0.2.1")
	older.gone(t, unsaid)

	p.Put(t, "catalog.yaml", "services:\n"+said+
		"- {name: unsaid, fqdn: "+unsaid+", endpoints: [{address: 192.0.2.2, port: 80}], instances: [{id: v1, protocol: HTTP}]}\n")
	d.lost(t, web) // the relay does not vouch for its catalog any more
	// A consumer that comes now has what it is told, and denies nothing else.
	p.api = "v1alpha1"
	late := p.coreDNS(t, "late", origin, ownerID, zone, time.Hour)
	late.live(t, web, "192.0.2.1")
	p.api = ""
	behind := p.coreDNS(t, "behind", relay, relayID, zone, time.Hour) // the relay, which has nothing to tell
	for _, n := range []*tierProcess{late, behind} {
		n.answers(t, unsaid, "a failure", func(a answer) bool {
			if a.rcode == dns.RcodeNameError {
				t.Errorf("%s answers %v", unsaid, a)
			}
			return a.rcode == dns.RcodeServerFailure
		})
	}

	p.Put(t, "catalog.yaml", "services:\n"+said+
		"- {name: unsaid, fqdn: "+unsaid+", endpoints: [{address: 192.0.2.2, port: 80}], instances: [{id: v1, protocol: HTTP}], sans: [spiffe://"+unsaid+"/u]}\n")
	for _, n := range []*tierProcess{d, older, late, behind} {
		n.live(t, unsaid, "192.0.2.2")
		n.live(t, web, "192.0.2.1")
		n.gone(t, "nope."+zone)
	}
}
