package relay

import (
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// slack is how much later than it must something may be seen on a busy machine.
const slack = 5 * time.Second

// TestTiers has three relays between an origin and CoreDNS. A relay that is killed for longer than
// the grace is a loss, of which the retention ends behind all of them when it does before the
// first. So does that of the origin, to a relay that is started anew meanwhile as well, although it
// has a file. When the origin is back, that is answered behind three relays within ten seconds.
func TestTiers(t *testing.T) {
	t.Parallel()
	const (
		retention = 25 * time.Second
		back      = 10 * time.Second
	)
	p := newWorld(t)
	origin := p.origin(t, services(map[string]string{"web": "192.0.2.1"}))
	tiers := []*tierProcess{origin}
	for i, name := range []string{"first", "second", "third"} {
		id := relayID
		if i == 0 {
			id = ownerID
		}
		tiers = append(tiers, p.relay(t, name, tiers[i], id, ""))
	}
	near := p.coreDNS(t, "near", origin, ownerID, zone, retention)
	far := p.coreDNS(t, "far", tiers[3], relayID, zone, retention)
	both := []*tierProcess{near, far}
	for _, d := range both {
		d.live(t, web, "192.0.2.1")
	}

	tiers[2].Kill()
	far.lost(t, web)
	must.Do(t, tiers[2].Start(t.Context()))
	far.live(t, web, "192.0.2.1")

	// A relay comes back without the origin, and vouches for nothing.
	killed := time.Now()
	origin.Kill()
	for _, d := range both {
		d.lost(t, web)
		if since := time.Since(killed); since < catalog.Grace-time.Second {
			t.Errorf("%s: a stale answer %v after the origin was killed", d.Name, since)
		}
	}
	must.Do(t, tiers[2].Restart(t.Context()))
	var ended sync.WaitGroup
	for _, d := range both {
		ended.Go(func() {
			var last answer
			gone := d.answers(t, web, "gone", func(a answer) bool {
				if a.address != "" {
					last = a
					if !a.stale() {
						t.Errorf("%s: %v after the origin was killed the answer is %v", d.Name, a.at.Sub(killed), a)
					}
				}
				return a.address == ""
			})
			if until := killed.Add(retention); last.asked.Add(last.ttl).After(until.Add(slack)) {
				t.Errorf("%s: an answer %v after the origin was killed has a TTL of %v", d.Name, last.at.Sub(killed), last.ttl)
			}
			if gone.at.Before(killed.Add(retention - 3*time.Second)) { // whole seconds are passed on, and the last one has no TTL
				t.Errorf("%s: it is gone %v after the origin was killed, before the retention of %v", d.Name, gone.at.Sub(killed), retention)
			}
			t.Logf("%s: the last answer came %v after the origin was killed, with a retention of %v", d.Name, last.at.Sub(killed), retention)
		})
	}
	ended.Wait()

	p.Put(t, "catalog.yaml", services(map[string]string{"web": "192.0.2.2"}))
	must.Do(t, origin.Start(t.Context()))
	started := time.Now()
	far.live(t, web, "192.0.2.2")
	took := time.Since(started)
	t.Logf("the origin is answered behind three relays after %v", took)
	if took > back+slack {
		t.Errorf("the origin is answered behind three relays after %v, want %v", took, back)
	}
}

// TestOlderVersion has a relay of an origin that speaks v1alpha1, whose services have
// protocols and no instances. Consumers of v1alpha2 get them all. When the origin has a
// service that v1alpha1 cannot express, nobody denies that there is one: neither a consumer
// of v1alpha1, nor the relay to those of v1alpha2.
func TestOlderVersion(t *testing.T) {
	t.Parallel()
	const unsaid = "unsaid." + zone
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
