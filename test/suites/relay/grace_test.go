package relay

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

const (
	web    = "web." + zone
	webTTL = 2 * time.Second // see coreDNS
)

// asking asks for web all the time, as a client of CoreDNS does. The function that it returns ends
// that, and fails the test where an answer was not the live one: each has the address, the whole
// TTL and no extended error.
func (n *tierProcess) asking(t *testing.T, address string) (unnoticed func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var asked int
	var wrong []string
	asking.Go(func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for ctx.Err() == nil {
			a, err := n.ask(ctx, web, busy)
			switch asked++; {
			case ctx.Err() != nil:
			case err != nil:
				wrong = append(wrong, err.Error())
			case a.rcode != dns.RcodeSuccess || a.address != address || a.ttl != webTTL || a.ede != -1:
				wrong = append(wrong, a.String())
			}
			select {
			case <-ctx.Done():
			case <-pace.C:
			}
		}
	})
	t.Cleanup(func() { cancel(); asking.Wait() })
	return func() {
		t.Helper()
		cancel()
		asking.Wait()
		if len(wrong) > 0 {
			t.Errorf("%s: %d of %d answers show a loss, the first: %s", n.Name, len(wrong), asked, wrong[0])
		}
		if asked < 100 {
			t.Errorf("%s: only %d queries", n.Name, asked)
		}
		t.Logf("%s: %d queries", n.Name, asked)
	}
}

// streamsEnded returns how many streams of consumers a relay or an owner has ended.
func (n *tierProcess) streamsEnded(t *testing.T) float64 {
	t.Helper()
	return place.Scrape(t, n.metrics).Sum("federation_owner_streams_ended_total")
}

// TestRotation replaces the certificates of all parties, and then ten times that of a relay alone.
// Each costs the one who shows it one stream, which resumes. Nobody who asks notices, and what is
// behind the relay keeps its stream. ROTATION is the time between two; the certificates live for
// twice as long, and a minute at least.
func TestRotation(t *testing.T) {
	t.Parallel()
	const rotations, many = 10, 2000
	interval := 3 * time.Second
	if text := os.Getenv("ROTATION"); text != "" {
		interval = must.Get(time.ParseDuration(text))(t)
	}
	short := max(2*interval, time.Minute)
	p := newWorld(t)
	ids := map[string]string{"owner": ownerID, "relay": relayID, "coredns": coreDNSID}
	rotate := func(lifetime time.Duration, names ...string) {
		t.Helper()
		for _, name := range names {
			must.Do(t, p.Issue(name, ids[name], time.Hour+lifetime)) // an authority backdates by an hour
		}
	}
	rotate(short, "owner", "relay", "coredns")
	all := map[string]string{"web": "192.0.2.1"}
	for i := range many {
		all[fmt.Sprintf("s%d", i)] = fmt.Sprintf("10.1.%d.%d", i>>8, i&255)
	}
	origin := p.origin(t, services(all))
	relay := p.relay(t, "relay", origin, ownerID, "")
	behind := p.coreDNS(t, "behind", relay, relayID, zone, time.Hour)
	direct := p.coreDNS(t, "direct", origin, ownerID, zone, time.Hour)
	for _, d := range []*tierProcess{behind, direct} {
		d.live(t, web, "192.0.2.1")
		d.live(t, "s1999."+zone, all["s1999"])
	}
	passes(t, 2*time.Second) // for what is acknowledged last, and so that streams are old enough to be ended
	whole := origin.gate.Received() / 2
	unnoticed := []func(){behind.asking(t, "192.0.2.1"), direct.asking(t, "192.0.2.1")}

	before, octets := direct.sessions(t), origin.gate.Received()
	for range rotations {
		rotate(short, "owner", "relay", "coredns")
		passes(t, interval)
	}
	if ended := direct.sessions(t) - before; ended < rotations || ended > rotations+2 {
		t.Errorf("%v streams of CoreDNS for %d certificates", ended, rotations)
	}
	each := (origin.gate.Received() - octets) / (2 * rotations) // of the relay and of CoreDNS
	t.Logf("%d octets from the origin for each rotation of one consumer; the catalog has %d", each, whole)
	if each > whole/10 {
		t.Errorf("%d octets for each rotation, of %d for the catalog", each, whole)
	}

	rotate(24*time.Hour, "owner", "coredns")
	passes(t, 3*time.Second)
	ended, sessions := relay.streamsEnded(t), behind.sessions(t)
	for range rotations {
		rotate(short, "relay")
		passes(t, interval)
	}
	if more := relay.streamsEnded(t) - ended; interval < time.Minute && more > 0 {
		t.Errorf("%v streams behind the relay have ended for its own certificate", more)
	}
	t.Logf("behind the relay %v streams have ended meanwhile", behind.sessions(t)-sessions)
	for _, check := range unnoticed {
		check()
	}
}

// TestRestart starts the origin anew, and then the relay. Clients of CoreDNS do not notice, neither
// directly behind it nor behind the relay.
func TestRestart(t *testing.T) {
	t.Parallel()
	p := newWorld(t)
	origin := p.origin(t, services(map[string]string{"web": "192.0.2.1"}))
	relay := p.relay(t, "relay", origin, ownerID, "")
	behind := p.coreDNS(t, "behind", relay, relayID, zone, time.Hour)
	direct := p.coreDNS(t, "direct", origin, ownerID, zone, time.Hour)
	for _, d := range []*tierProcess{behind, direct} {
		d.live(t, web, "192.0.2.1")
	}
	unnoticed := []func(){behind.asking(t, "192.0.2.1"), direct.asking(t, "192.0.2.1")}
	for _, n := range []*tierProcess{origin, origin, relay} {
		passes(t, 3*time.Second)
		n.Kill()
		must.Do(t, n.Start(t.Context()))
		passes(t, 7*time.Second)
	}
	for _, check := range unnoticed {
		check()
	}
}
