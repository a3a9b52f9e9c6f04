package register

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// eventually waits until a condition has nothing to complain of.
var eventually = await.Eventually

// The names and identities of all tests.
const (
	zone      = "reg.fed.example"
	ownerID   = "spiffe://fed.example/owner"
	coreDNSID = "spiffe://fed.example/coredns"
	fleetID   = "spiffe://fed.example/ns/fleet/sa/default" // may register everything in the zone
	otherID   = "spiffe://fed.example/ns/other/sa/default"
)

// fleetVariable is the environment variable that turns this test binary into a fleet,
// with the Config that it has in JSON.
const fleetVariable = "FEDERATION_TEST_FLEET"

func TestMain(m *testing.M) {
	if config := os.Getenv(fleetVariable); config != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := fleet.Main(ctx, config, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1) //nolint:gocritic // the process ends, so its signal handler needs no stop
		}
		return
	}
	place.Main(m)
}

// enabled ends the test here unless tests that take minutes are wanted.
func enabled(t *testing.T) {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it takes a minute or more; make e2e runs it")
	}
}

// passes waits until a time.
func passes(t testing.TB, when time.Time) {
	t.Helper()
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// options are those of start. The zero value has one owner with the rules of usual
// and memory.
type options struct {
	owners      int           // default 1
	rules       string        // default usual
	store       string        // of all owners, in YAML; default memory
	convergence time.Duration // default 1s: until it is over, an owner with a new store is silent
	linger      time.Duration // default 0
}

// usual are the rules of most tests: fleet may register everything in the zone.
const usual = `
rules:
- name: everything
  providers: ["spiffe://fed.example/ns/fleet/sa/*"]
  services: ["*.reg.fed.example"]
  addresses: [10.0.0.0/8, peer]
  ttl: {min: 1s, max: 1h, default: 30s}
  quota: 1000000
`

// processes is what a test runs: an authority, owners with one source of registrations
// each, and a CoreDNS that follows them.
type processes struct {
	options
	*place.Place

	owners []*owner
	dns    *domain.DNS
}

// owner is a running federationctl serve.
type owner struct {
	*realserver.Process

	address string // of consumers and providers
	metrics string
}

// start starts them for a test.
func start(t testing.TB, o options) *processes {
	t.Helper()
	w := &processes{options: o, Place: place.For(t, map[string]string{
		"owner": ownerID, "coredns": coreDNSID, "fleet": fleetID, "other": otherID,
	})}
	w.Put(t, "rules.yaml", cmp.Or(o.rules, usual))
	for i := range max(1, o.owners) {
		w.startOwner(t, i)
	}
	w.dns = w.startDNS(t, w.addresses()...)
	return w
}

// startOwner starts the i-th owner.
func (w *processes) startOwner(t testing.TB, i int) {
	t.Helper()
	name := fmt.Sprintf("owner-%d", i+1)
	o := &owner{address: loopback.Address(t), metrics: loopback.Address(t)}
	keys := fmt.Sprintf("rules: rules.yaml, linger: %v, convergence: %v", w.linger, cmp.Or(w.convergence, time.Second))
	if w.store != "" {
		keys += ", store: " + w.store
	}
	config := place.Owner{
		Address: o.address, Metrics: o.metrics, TLS: w.Files("owner"), Allow: []string{coreDNSID},
		More: fmt.Sprintf("window: 1024\ncatalogs:\n- sources:\n  - registration: {%s}\n", keys),
	}
	w.owners = append(w.owners, o)
	o.Process = w.Run(t, name, place.Built(t, "federationctl"), o.address, "serve", "--config", w.Put(t, name+".yaml", config.Config()))
}

// addresses returns those of all owners.
func (w *processes) addresses() (all []string) {
	for _, o := range w.owners {
		all = append(all, o.address)
	}
	return all
}

// startDNS starts a CoreDNS that follows owners, and waits until it does.
func (w *processes) startDNS(t testing.TB, owners ...string) *domain.DNS {
	t.Helper()
	address := loopback.Address(t)
	corefile := place.DNS{Zone: zone, Address: address, Owners: owners, OwnerID: ownerID, TLS: w.Files("coredns"), Properties: []string{"ttl 5"}}
	name := "coredns" + strings.TrimPrefix(address, "127.0.0.1:")
	d := &domain.DNS{Address: address, Corefile: w.Put(t, name+".corefile", corefile.Corefile())}
	d.Process = w.Run(t, name, place.Built(t, "coredns"), address, "-conf", d.Corefile)
	return d
}

// metric returns the value of a metric of the owner, by its name without the prefix
// federation_owner_registration_; the values of several series are added up.
func (o *owner) metric(t testing.TB, name string) float64 {
	t.Helper()
	return place.Scrape(t, o.metrics).Sum("federation_owner_registration_" + name)
}

// providers is a fleet that is a process.
type providers struct {
	fleet.Config

	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{} // closed when the process has ended

	mu    sync.Mutex
	stats fleet.Stats
	at    time.Time // when they were said
}

// launch starts a fleet as a process. It connects, and registers nothing before begin.
func (w *processes) launch(t testing.TB, c fleet.Config) *providers {
	t.Helper()
	c.Files, c.OwnerID, c.Zone = w.Files("fleet"), ownerID, zone
	if c.Addresses == nil {
		c.Addresses = w.addresses()
	}
	config := must.Get(json.Marshal(c))(t) //nolint:musttag // both sides are package fleet
	p := &providers{Config: c, cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), fleetVariable+"="+string(config))
	p.cmd.Stderr = os.Stderr
	p.stdin = must.Get(p.cmd.StdinPipe())(t)
	stdout := must.Get(p.cmd.StdoutPipe())(t)
	must.Do(t, p.cmd.Start())
	go func() { // it ends with the process, which ends with its stdin
		defer close(p.done)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			now := time.Now()
			p.mu.Lock()
			p.at = now
			_ = json.Unmarshal(lines.Bytes(), &p.stats) //nolint:musttag // as above
			p.mu.Unlock()
		}
		_ = p.cmd.Wait() // how it ended is of no interest
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.kill()
		if t.Failed() {
			stats, _ := p.now()
			t.Logf("a fleet of %d nodes: %+v", p.Nodes, stats)
		}
	})
	return p
}

// now returns what the fleet has done, and when it said so.
func (p *providers) now() (fleet.Stats, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats, p.at
}

// connected waits until all streams are open.
func (p *providers) connected(t testing.TB) {
	t.Helper()
	eventually(t, func() string {
		if s, _ := p.now(); s.Connected != max(1, p.Streams) {
			return fmt.Sprintf("%d of %d providers are connected: %s", s.Connected, p.Streams, s.Last)
		}
		return ""
	})
}

// begin has the fleet register its nodes.
func (p *providers) begin(t testing.TB) {
	t.Helper()
	_ = must.Get(io.WriteString(p.stdin, "\n"))(t)
}

// granted waits until all nodes are registered, and returns when the fleet said so.
func (p *providers) granted(t testing.TB) time.Time {
	t.Helper()
	var at time.Time
	eventually(t, func() string {
		var s fleet.Stats
		if s, at = p.now(); s.Granted != p.Nodes {
			return fmt.Sprintf("%d of %d nodes are registered: %+v", s.Granted, p.Nodes, s)
		}
		return ""
	})
	return at
}

// register is launch and what brings its nodes in.
func (w *processes) register(t testing.TB, c fleet.Config) *providers {
	t.Helper()
	p := w.launch(t, c)
	p.connected(t)
	p.begin(t)
	p.granted(t)
	return p
}

func (p *providers) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process with SIGKILL and returns when it was killed.
func (p *providers) kill() time.Time {
	at := time.Now()
	p.signal(syscall.SIGKILL)
	<-p.done
	return at
}

// answer is the answer for a service of the fleet, in the form of domain.Short.
func (p *providers) answers() map[string]string {
	c := p.Config
	c.Services = cmp.Or(c.Services, c.Nodes)
	addresses := make(map[string][]string)
	for n := c.First; n < c.First+c.Nodes; n++ {
		addresses[c.Service(n)] = append(addresses[c.Service(n)], fleet.Address(n).String())
	}
	all := make(map[string]string, len(addresses))
	for name, list := range addresses {
		all[name] = short(list)
	}
	return all
}
