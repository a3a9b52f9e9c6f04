package consumer_test

import (
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// neverStale fails the test when a service is stale, or the owner lost, in what was
// published since the last call.
func (sim *testMirror) neverStale() {
	sim.Helper()
	for _, c := range sim.take() {
		if c.Status.Stale > 0 || c.Status.State == catalog.Stale || c.Status.Failure != nil {
			sim.Errorf("published is %+v", c)
		}
	}
}

// Other rules fetch what was refused on a new stream, at once. Nothing is stale meanwhile.
func TestOtherRules(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		sim.serve(services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2"))
		config := sim.config()
		refuse := true
		config.Rules.Admit = func(s *federation.Service) *federation.InvalidError {
			if refuse && s.Name == "api" {
				return &federation.InvalidError{Reason: federation.ReasonOutOfZone}
			}
			return nil
		}
		m, _ := sim.run(config)
		sim.await(m, "synced 1/0")
		time.Sleep(30 * time.Minute)
		sim.wantLog(`WARN msg="message of owner refused"`, `INFO msg="connected to owner"`, `INFO msg="owner is synced" services=1 refused=1`)
		sim.take()
		refuse = false
		must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		time.Sleep(time.Millisecond)
		if got := state(m); got != "synced 2/0" || sim.names() != "api web" || sim.attempts() != 2 {
			t.Errorf("after %d attempts the owner is %s with %s", sim.attempts(), got, sim.names())
		}
		sim.neverStale()
		time.Sleep(time.Hour)
		if got := sim.attempts(); got != 2 {
			t.Errorf("%d attempts an hour after that", got)
		}
		sim.wantLog(`INFO msg="connected to owner"`)
	})
}

// limited runs a mirror that has room for two services, with an owner that offers
// three, until the catalog is complete.
func limited(t *testing.T, sim *testMirror) (m *consumer.Mirror, registry *registry.Registry, rules catalog.Rules) {
	t.Helper()
	config := sim.config()
	config.Rules.MaxCatalog = 2 * catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
	registry, _ = sim.serve(services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"), services.At("c.fed.example", "192.0.2.3"))
	m, _ = sim.run(config)
	sim.await(m, "synced 2/0")
	time.Sleep(10 * time.Minute)
	sim.take()
	if got := sim.names(); got != "a b" || sim.attempts() != 1 {
		t.Fatalf("after %d attempts the services are %s", sim.attempts(), got)
	}
	return m, registry, config.Rules
}

// Room that was freed under a limit is for what was refused, at once for the first
// time, and then once a minute.
func TestFreedRoom(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		config := sim.config()
		config.Rules.MaxCatalog = 2 * catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
		registry, _ := sim.serve(services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"),
			services.At("c.fed.example", "192.0.2.3"), services.At("d.fed.example", "192.0.2.4"))
		m, _ := sim.run(config)
		sim.await(m, "synced 2/0")
		time.Sleep(10 * time.Minute)
		if got := sim.names(); got != "a b" || sim.attempts() != 1 {
			t.Fatalf("after %d attempts the services are %s", sim.attempts(), got)
		}
		sim.take()
		registry.Delete("b")
		if got := sim.names(); got != "a c" || sim.attempts() != 2 {
			t.Errorf("after %d attempts the services are %s", sim.attempts(), got)
		}
		time.Sleep(10 * time.Second)
		registry.Delete("c")
		time.Sleep(50*time.Second - 1)
		if got := sim.names(); got != "a" || sim.attempts() != 2 {
			t.Errorf("a minute after the renewal the services are %s after %d attempts", got, sim.attempts())
		}
		time.Sleep(time.Nanosecond)
		if got := sim.names(); got != "a d" || sim.attempts() != 3 {
			t.Errorf("a minute after the renewal the services are %s after %d attempts", got, sim.attempts())
		}
		sim.neverStale()
		if got := state(m); got != "synced 2/0" {
			t.Errorf("owner is %s", got)
		}
		time.Sleep(time.Hour)
		if got := sim.attempts(); got != 3 {
			t.Errorf("%d attempts in the end", got)
		}
	})
}

// New limits are tried at once, even right after another renewal.
func TestConfigureMakesRoom(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		m, registry, rules := limited(t, sim)
		registry.Delete("b")
		if got := sim.names(); got != "a c" || sim.attempts() != 2 {
			t.Errorf("after %d attempts the services are %s", sim.attempts(), got)
		}
		time.Sleep(time.Second)
		rules.MaxCatalog = catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
		m.Configure(rules)
		rules.MaxCatalog = 3 * catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
		m.Configure(rules)
		time.Sleep(time.Millisecond)
		if got := state(m); got != "synced 2/0" || sim.attempts() != 3 {
			t.Errorf("after %d attempts the owner is %s", sim.attempts(), got)
		}
	})
}

// A stream that cannot be had is a loss from when the one before was given up.
func TestRenewalFails(t *testing.T) {
	for name, then := range map[string]string{
		"refused at once":  "status Unavailable",
		"says nothing":     "hang",
		"breaks off early": "upsert a a.fed.example 192.0.2.1\nreset\n---\nstatus Unavailable",
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				sim.misbehave("announce\nservices 0 3 fed.example\nend\nhang\n---\n" + then)
				config := sim.config()
				config.Rules.Retention = 5 * time.Minute
				m, _ := sim.run(config)
				sim.await(m, "synced 3/0")
				time.Sleep(10 * time.Minute)
				start := time.Now()
				must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
				time.Sleep(time.Minute)
				s := m.Status()
				if s.State == catalog.Synced || s.Stale != s.Services || s.Lost.Sub(start) > time.Second {
					t.Errorf("owner is %s, lost at %v", state(m), s.Lost.Sub(start))
				}
				time.Sleep(5 * time.Minute)
				if s := m.Status(); !s.Expired {
					t.Errorf("after the retention the owner is %s", state(m))
				}
			})
		})
	}
}
