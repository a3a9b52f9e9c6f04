package relay

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestResume counts what owners send to a relay and to CoreDNS that have most of the catalog
// already: after a cut, after the owner or they themselves were started anew, only little.
func TestResume(t *testing.T) {
	t.Parallel()
	long(t)
	const (
		many      = 20_000
		retention = time.Minute
		share     = 20 // at most one of so many octets is sent again
	)
	p := newWorld(t)
	all := make(map[string]string, many)
	for i := range many {
		all[fmt.Sprintf("s%d", i)] = fmt.Sprintf("10.1.%d.%d", i>>8, i&255)
	}
	origin := p.origin(t, services(all))
	relay := p.relay(t, "relay", origin, ownerID, "")
	d := p.coreDNS(t, "coredns", relay, relayID, zone, retention)
	// An owner sends its services in the order of their names.
	const first, last = "s0", "s9999"
	synced := func() {
		t.Helper()
		d.live(t, last+"."+zone, all[last])
		d.live(t, first+"."+zone, all[first])
		passes(t, 3*time.Second) // for the end marker, and until the files have been written
	}
	synced()
	for _, name := range []string{"relay.catalog", "coredns.catalog"} {
		eventually(t, func() string {
			_, err := os.Stat(p.Path(name))
			if err != nil {
				return err.Error()
			}
			return ""
		})
	}
	fromOrigin, fromRelay := origin.gate.Received(), relay.gate.Received()
	t.Logf("the first download: %d octets from the origin, %d from the relay", fromOrigin, fromRelay)

	changes := 0
	// back changes a service while the link is down, has it come back, and counts.
	back := func(what string, down, up func()) {
		t.Helper()
		before, beforeRelay := origin.gate.Received(), relay.gate.Received()
		down()
		changes++
		all[first] = fmt.Sprintf("10.2.0.%d", changes)
		p.Put(t, "catalog.yaml", services(all))
		up()
		synced()
		again, againRelay := origin.gate.Received()-before, relay.gate.Received()-beforeRelay
		t.Logf("%s: %d octets from the origin (%.2f %%), %d from the relay (%.2f %%)",
			what, again, 100*float64(again)/float64(fromOrigin), againRelay, 100*float64(againRelay)/float64(fromRelay))
		if again > fromOrigin/share || againRelay > fromRelay/share {
			t.Errorf("%s: more than one octet of %d was sent again", what, share)
		}
	}
	cut := func(n *tierProcess) (down, up func()) {
		return func() { n.gate.Refuse(true); n.gate.Cut() }, func() { n.gate.Refuse(false) }
	}
	restart := func(n *tierProcess) (down, up func()) {
		return n.Kill, func() { must.Do(t, n.Start(t.Context())) }
	}
	down, up := cut(origin)
	back("the relay was cut off", down, up)
	down, up = cut(relay)
	back("CoreDNS was cut off", down, up)
	down, up = restart(origin)
	back("the origin was killed", down, up)
	down, up = restart(relay)
	back("the relay was killed", down, up)
	down, up = restart(d)
	back("CoreDNS was killed", down, up)
}
