package consumer_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

const ownerAddress = simulation.OwnerAddress

// testMirror is what mirrors publish to, in a simulation with one owner.
type testMirror struct {
	*simulation.Simulation

	publish func(consumer.Changes) // what Publish does besides; may be nil

	mu        sync.Mutex                     // guards the fields below
	services  map[string]*federation.Service // as the changes say
	published []consumer.Changes
}

func newTestMirror(t *testing.T) *testMirror {
	t.Helper()
	return &testMirror{Simulation: simulation.New(t), services: make(map[string]*federation.Service)}
}

// config returns what most tests use.
func (sim *testMirror) config() consumer.Config {
	return consumer.Config{
		Subscription: consumer.Subscription{Addresses: []string{ownerAddress}, Identity: pki.NewIdentity(sim.Source("consumer.example")), Dial: sim.Dial},
		Rules:        catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour},
		Publish:      sim.apply,
		Observer:     observer{sim},
		Logger:       sim.Logged.Logger(),
		Clock:        sim.Clock,
	}
}

// run runs a mirror until the test ends, or the returned function is called.
func (sim *testMirror) run(config consumer.Config) (m *consumer.Mirror, stop func()) {
	sim.Helper()
	m = must.Get(consumer.New(config))(sim)
	return m, must.Run(sim, m.Run)
}

func (sim *testMirror) apply(c consumer.Changes) {
	if sim.publish != nil {
		sim.publish(c)
	}
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.published = append(sim.published, c)
	for _, change := range c.Services {
		if change.Kind() == catalog.Gone {
			delete(sim.services, change.Name)
		} else {
			sim.services[change.Name] = change.Packed.Unpack()
		}
	}
}

// names returns the names of the services that were published, sorted, once what is
// under way has come to rest.
func (sim *testMirror) names() string {
	synctest.Wait()
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(sim.services)), " ")
}

// state returns the state of the mirror with its services and how many of them are
// stale, once what is under way has come to rest.
func state(m *consumer.Mirror) string {
	synctest.Wait()
	s := m.Status()
	return fmt.Sprintf("%s %d/%d", s.StateName(), s.Services, s.Stale)
}

// await waits until the mirror has the state, and returns for how long.
func (sim *testMirror) await(m *consumer.Mirror, want string) time.Duration {
	sim.Helper()
	return sim.Await(func() string { return state(m) }, want)
}

// take returns the changes that were published since the last call, once what is
// under way has come to rest.
func (sim *testMirror) take() []consumer.Changes {
	synctest.Wait()
	sim.mu.Lock()
	defer sim.mu.Unlock()
	changes := sim.published
	sim.published = nil
	return changes
}

// forget drops what was recorded and published.
func (sim *testMirror) forget() {
	sim.Reset()
	sim.take()
}

// attempts returns how often the owner was dialed.
func (sim *testMirror) attempts() int { return len(sim.Records("dialed")) }

// counted returns how often the observer was told so.
func (sim *testMirror) counted(what string) (n int) {
	for _, told := range sim.Details("told") {
		if told == what {
			n++
		}
	}
	return n
}

// logged returns what was logged, once what is under way has come to rest.
func (sim *testMirror) logged() string {
	synctest.Wait()
	return sim.Logged.String()
}

// wantLog compares what was logged since the last call with lines that begin as
// the wanted ones do, except for the owner, which all of them name.
func (sim *testMirror) wantLog(want ...string) {
	sim.Helper()
	text := sim.logged()
	sim.Logged.Reset()
	lines := slices.Collect(strings.Lines(text))
	if len(lines) != len(want) {
		sim.Errorf("%d lines, want %d:\n%s", len(lines), len(want), text)
		return
	}
	for i, line := range lines {
		if line = strings.Replace(line, " owner="+ownerAddress, "", 1); !strings.HasPrefix(line, "level="+want[i]) {
			sim.Errorf("line %d is\n%swant\nlevel=%s", i, line, want[i])
		}
	}
}

// wall is the wall clock.
func (sim *testMirror) wall() time.Time {
	wall, _ := sim.Clock()
	return wall
}

// serve runs a good owner.
func (sim *testMirror) serve(services ...*federation.Service) (published *registry.Registry, stop func()) {
	sim.Helper()
	return sim.Owner(ownerAddress, services...)
}

// misbehave runs an owner that follows the script.
func (sim *testMirror) misbehave(script string) (stop func()) {
	sim.Helper()
	_, stop = sim.Misbehave(ownerAddress, script)
	return stop
}

type observer struct{ *testMirror }

func (o observer) Responded(op wire.Operation, _ string) {
	o.Record("told", "responded "+op.String())
}

func (o observer) Refused(r *federation.InvalidError) { o.Record("told", "refused "+string(r.Reason)) }
func (o observer) Ended(code codes.Code)              { o.Record("told", "ended "+code.String()) }
func (o observer) FileFailed()                        { o.Record("told", "file failed") }
func (o observer) Published(time.Duration)            { o.Record("told", "published") }
