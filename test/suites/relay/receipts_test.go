package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// settling is an owner that can be asked what is settled.
type settling struct {
	*tierProcess

	status string // address
}

// settlingOwner starts an owner or relay whose catalogs are as the keys say, with a file of receipts.
func (p *world) settlingOwner(t testing.TB, name, key, catalogs string) settling {
	t.Helper()
	return p.forgetfulOwner(t, name, key, fmt.Sprintf("receipts: %s.receipts\ncatalogs:\n%s", name, catalogs))
}

// forgetfulOwner starts an owner with these keys.
func (p *world) forgetfulOwner(t testing.TB, name, key, keys string) settling {
	t.Helper()
	s := settling{status: loopback.Address(t)}
	address := loopback.Address(t)
	config := place.Owner{
		Address: address, TLS: p.Files(key), Allow: []string{relayID, coreDNSID},
		More: fmt.Sprintf("status: %q\n%s", s.status, keys),
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
	// Each CoreDNS refuses a service in another zone, and never has it.
	const refused = "- {name: elsewhere, fqdn: web.other.example, endpoints: [{address: 192.0.2.9, port: 80}], instances: [{id: v1, protocol: HTTP}]}\n"
	with := services(map[string]string{"web": "192.0.2.1"}) + refused
	p.Put(t, "catalog.yaml", with)
	origin := p.settlingOwner(t, "origin", "owner", "- sources:\n  - file: {path: catalog.yaml}\n")
	relay := p.settlingOwner(t, "relay", "relay", fmt.Sprintf("- relay: {addresses: [%q], owner_ids: [%q]}\n", origin.gate.Address, ownerID))
	beside := p.coreDNS(t, "beside", origin.tierProcess, ownerID, zone, time.Hour)
	asked := seen{last: make(map[string]time.Time)}
	clients := []*tierProcess{beside}
	for _, name := range []string{"first", "second", "third"} {
		clients = append(clients, p.coreDNS(t, name, relay.tierProcess, relayID, zone, time.Hour))
	}
	cached := loopback.Address(t)
	clients = append(clients, p.start(t, "cache", "coredns", cached, "-conf", p.Put(t, "cache.corefile", fmt.Sprintf(
		".:%s {\nbind 127.0.0.1\ncache {\nsuccess 1000 3600 0\n}\nforward . %s\n}\n", cached[strings.LastIndexByte(cached, ':')+1:], clients[3].address))))
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
	p.Put(t, "catalog.yaml", services(map[string]string{"other": "192.0.2.2"})+refused)
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

// behind returns the owner as it is reached through a gate of its own.
func (s settling) behind(t testing.TB) *tierProcess {
	t.Helper()
	return &tierProcess{Process: s.Process, address: s.address, gate: realserver.StartGate(t, s.address)}
}

// judge reports who was answered after a time with what was said to be gone by then.
func (s *seen) judge(t *testing.T, gone time.Time) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for who, last := range s.last {
		if last.After(gone) {
			t.Errorf("%s answered %v after it was said to be gone", who, last.Sub(gone))
		}
		t.Logf("%s answered last %v before it was said to be gone", who, gone.Sub(last))
	}
}

// TestSettledOfLost stops one CoreDNS and cuts another one off: until they cannot answer any more,
// both are named, and nothing is gone.
func TestSettledOfLost(t *testing.T) {
	long(t)
	t.Parallel()
	p := newWorld(t)
	const web = "web." + zone
	p.Put(t, "catalog.yaml", services(map[string]string{"web": "192.0.2.1"}))
	origin := p.settlingOwner(t, "origin", "owner", "- sources:\n  - file: {path: catalog.yaml}\n")
	way := origin.behind(t)
	stopped, cut := p.coreDNS(t, "stopped", origin.tierProcess, ownerID, zone, 5*time.Second), p.coreDNS(t, "cut", way, ownerID, zone, 5*time.Second)
	asked := seen{last: make(map[string]time.Time)}
	for _, n := range []*tierProcess{stopped, cut} {
		n.live(t, web, "192.0.2.1")
	}
	asked.watch(t, cut, web, "192.0.2.1")
	if said, code := origin.settled(t, "there", web, 30*time.Second); code != 0 || said.Consumers != 2 {
		t.Fatalf("exit code %d, %+v", code, said)
	}
	stopped.Signal(syscall.SIGSTOP)
	way.gate.Stall(true)
	p.Put(t, "catalog.yaml", services(map[string]string{"other": "192.0.2.2"}))
	withdrawn := time.Now()
	said, code := origin.settled(t, "gone", web, 3*time.Second)
	if code != 3 || said.Waiting != 2 || len(said.Missing) != 2 {
		t.Errorf("exit code %d, %+v", code, said)
	}
	for _, m := range said.Missing {
		if m.Consumer != coreDNSID || m.Reason == "" || m.Holder == "" {
			t.Errorf("who is missing is %+v", m)
		}
	}
	if said, code := origin.settled(t, "gone", web, 4*time.Minute); code != 0 || said.Done != said.Consumers {
		t.Errorf("exit code %d, %+v", code, said)
	}
	at := time.Now()
	asked.judge(t, at)
	t.Logf("it is gone %v after it was withdrawn", at.Sub(withdrawn))
}

// TestSettledOverRestart kills the owner while somebody waits who has not been told of a
// withdrawal: the owner that comes after it knows of that one from the file.
func TestSettledOverRestart(t *testing.T) {
	long(t)
	t.Parallel()
	p := newWorld(t)
	const web = "web." + zone
	p.Put(t, "catalog.yaml", services(map[string]string{"web": "192.0.2.1"}))
	origin := p.settlingOwner(t, "origin", "owner", "- sources:\n  - file: {path: catalog.yaml}\n")
	way := origin.behind(t)
	well, cut := p.coreDNS(t, "well", origin.tierProcess, ownerID, zone, time.Hour), p.coreDNS(t, "cut", way, ownerID, zone, 5*time.Second)
	asked := seen{last: make(map[string]time.Time)}
	for _, n := range []*tierProcess{well, cut} {
		n.live(t, web, "192.0.2.1")
		asked.watch(t, n, web, "192.0.2.1")
	}
	way.gate.Stall(true)
	p.Put(t, "catalog.yaml", services(map[string]string{"other": "192.0.2.2"}))
	well.gone(t, web)
	at := make(chan time.Time, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if said, code := origin.settled(t, "gone", web, 4*time.Minute); code != 0 {
			t.Errorf("exit code %d, %+v", code, said)
		}
		at <- time.Now()
	})
	if _, code := origin.settled(t, "gone", web, time.Second); code != 3 {
		t.Errorf("exit code %d", code)
	}
	for range 2 {
		must.Do(t, origin.Restart(t.Context()))
		if said, code := origin.settled(t, "gone", web, 5*time.Second); code != 3 || said.Waiting == 0 {
			t.Errorf("exit code %d after a restart, %+v", code, said)
		}
	}
	waiting.Wait()
	asked.judge(t, <-at)
}

// TestNotRemembered has an owner without a file of receipts, and a consumer that gives none.
func TestNotRemembered(t *testing.T) {
	t.Parallel()
	p := newWorld(t)
	const web = "web." + zone
	p.Put(t, "catalog.yaml", services(map[string]string{"web": "192.0.2.1"}))
	const catalogs = "catalogs:\n- sources:\n  - file: {path: catalog.yaml}\n"
	forgetful := p.forgetfulOwner(t, "forgetful", "owner", catalogs)
	remembering := p.settlingOwner(t, "remembering", "owner", strings.TrimPrefix(catalogs, "catalogs:\n"))
	well := p.coreDNS(t, "well", forgetful.tierProcess, ownerID, zone, time.Hour)
	well.live(t, web, "192.0.2.1")
	foreigner(t, p, remembering)
	if said, code := remembering.settled(t, "there", web, 30*time.Second); code != 4 || said.Unknown != 1 || said.Missing[0].Consumer != relayID {
		t.Errorf("exit code %d, %+v", code, said)
	}
	p.Put(t, "catalog.yaml", services(map[string]string{"other": "192.0.2.2"}))
	well.gone(t, web)
	for range 2 {
		said, code := forgetful.settled(t, "gone", web, time.Minute)
		if code != 4 || said.Unknown != 1 || !strings.Contains(said.Missing[0].Reason, "not remembered") {
			t.Errorf("exit code %d, %+v", code, said)
		}
		must.Do(t, forgetful.Restart(t.Context()))
	}
	if said, code := remembering.settled(t, "gone", web, 30*time.Second); code != 4 || said.Unknown != 1 || said.Missing[0].Consumer != relayID {
		t.Errorf("exit code %d, %+v", code, said)
	}
	if said, code := remembering.settled(t, "gone", web, 30*time.Second, "--ignore", relayID); code != 0 || said.Consumers != 0 {
		t.Errorf("exit code %d, %+v", code, said)
	}
}

// foreigner subscribes as a program that knows nothing of receipts, and acknowledges everything.
func foreigner(t *testing.T, p *world, of settling) {
	t.Helper()
	own := must.Get(mtls.Load(p.Files("relay"), nil))(t)
	conn := must.Get(grpc.NewClient(of.address, grpc.WithTransportCredentials(own.Client("", []federation.ID{must.Value(federation.ParseID(ownerID))}))))(t)
	t.Cleanup(func() { conn.Close() })
	stream := must.Get(rdpb.NewDiscoveryServiceClient(conn).EstablishStream(t.Context()))(t)
	must.Do(t, stream.Send(&rdpb.BidirectionalStream{Request: wire.Subscribe("")}))
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil || stream.Send(&rdpb.BidirectionalStream{Request: wire.Ack(m.GetResponse().GetNonce(), "")}) != nil {
				return
			}
		}
	})
	t.Cleanup(reading.Wait)
}
