package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// settling is an owner that can be asked what is settled.
type settling struct {
	*tierProcess

	status string // address
}

// settlingOwner starts an owner or relay whose catalogs are as the keys say.
func (p *world) settlingOwner(t testing.TB, name, key, catalogs string) settling {
	t.Helper()
	s := settling{status: loopback.Address(t)}
	address := loopback.Address(t)
	config := place.Owner{
		Address: address, TLS: p.Files(key), Allow: []string{relayID, coreDNSID},
		More: fmt.Sprintf("status: %q\nreceipts: %s.receipts\ncatalogs:\n%s", s.status, name, catalogs),
	}
	s.tierProcess = p.start(t, name, "federationctl", address, "serve", "--config", p.Put(t, name+".yaml", config.Config()))
	s.gate = realserver.StartGate(t, address)
	return s
}

// settled asks whether a name is gone, or there, for everybody.
func (s settling) settled(t testing.TB, what, name string, timeout time.Duration, more ...string) (status.Settlement, int) {
	t.Helper()
	args := append([]string{"wait", what, name, "--at", s.status, "--timeout", timeout.String(), "-o", "json"}, more...)
	command := exec.CommandContext(t.Context(), place.Built(t, "federationctl"), args...)
	out, err := command.Output()
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	var said status.Settlement
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return said, code
}

// seen is when somebody was answered last with the address.
type seen struct {
	mu   sync.Mutex
	last map[string]time.Time // by who was asked
}

// watch asks a server for a name all the while, until the test ends.
func (s *seen) watch(t *testing.T, n *tierProcess, name, address string) {
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil {
			if a, err := n.ask(ctx, name); err == nil && a.address == address {
				s.mu.Lock()
				s.last[n.Name] = a.at
				s.mu.Unlock()
			}
			select {
			case <-time.After(tick):
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		asking.Wait()
	})
}

// TestSettled withdraws a service, and asks when it is safe to stop what is behind it: an
// owner with a CoreDNS beside it, and a relay with three, of which one is asked through another
// that caches.
func TestSettled(t *testing.T) {
	t.Parallel()
	p := newWorld(t)
	const web = "web." + zone
	with := services(map[string]string{"web": "192.0.2.1"})
	p.Put(t, "catalog.yaml", with)
	origin := p.settlingOwner(t, "origin", "owner", "- sources:\n  - file: {path: catalog.yaml}\n")
	relay := p.settlingOwner(t, "relay", "relay", fmt.Sprintf("- relay: {addresses: [%q], owner_ids: [%q], keepalive: 10s}\n", origin.gate.Address, ownerID))
	beside := p.coreDNS(t, "beside", origin.tierProcess, ownerID, zone, time.Hour)
	asked := seen{last: make(map[string]time.Time)}
	clients := []*tierProcess{beside}
	for _, name := range []string{"first", "second", "third"} {
		clients = append(clients, p.coreDNS(t, name, relay.tierProcess, relayID, zone, time.Hour))
	}
	cached := loopback.Address(t)
	clients = append(clients, p.start(t, "cache", "coredns", cached, "-conf", p.Put(t, "cache.corefile", fmt.Sprintf(
		".:%s {\nbind 127.0.0.1\ncache\nforward . %s\n}\n", cached[strings.LastIndexByte(cached, ':')+1:], clients[3].address))))
	for _, n := range clients {
		n.live(t, web, "192.0.2.1")
		asked.watch(t, n, web, "192.0.2.1")
	}
	if said, code := origin.settled(t, "there", web, 30*time.Second); code != 0 || said.Consumers != 2 {
		t.Fatalf("exit code %d, %+v", code, said)
	}
	if said, code := origin.settled(t, "gone", web, 100*time.Millisecond); code != 3 || said.Published != 1 {
		t.Errorf("it is published: exit code %d, %+v", code, said)
	}

	type outcome struct {
		status.Settlement
		code int
		at   time.Time
	}
	before := make(chan outcome, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		said, code := origin.settled(t, "gone", web, time.Minute)
		before <- outcome{said, code, time.Now()}
	})
	withdrawn := time.Now()
	p.Put(t, "catalog.yaml", services(map[string]string{"other": "192.0.2.2"}))
	after, code := origin.settled(t, "gone", web, time.Minute)
	at := time.Now()
	waiting.Wait()
	for _, o := range []outcome{<-before, {after, code, at}} {
		if o.code != 0 || !o.Settled || o.Consumers != 2 {
			t.Errorf("exit code %d, %+v", o.code, o.Settlement)
		}
		asked.mu.Lock()
		for who, last := range asked.last {
			if last.After(o.at) {
				t.Errorf("%s answered %v after it was said to be gone", who, last.Sub(o.at))
			}
		}
		asked.mu.Unlock()
		t.Logf("gone for everybody %v after it was withdrawn, with a TTL of 2 s", o.at.Sub(withdrawn))
		if took := o.at.Sub(withdrawn); took > 2*time.Second+2*time.Second+slack {
			t.Errorf("it took %v", took)
		}
	}
	asked.mu.Lock()
	defer asked.mu.Unlock()
	if len(asked.last) != len(clients) {
		t.Errorf("of %d clients %d have seen the address", len(clients), len(asked.last))
	}
}
