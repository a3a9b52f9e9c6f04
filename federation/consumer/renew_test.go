package consumer_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// neverStale fails the test when a service is stale, or the owner lost, in what was
// published since the last call.
func (w *world) neverStale() {
	w.t.Helper()
	for _, c := range w.take() {
		if c.Status.Stale > 0 || c.Status.State == catalog.Stale || c.Status.Failure != nil {
			w.t.Errorf("published is %+v", c)
		}
	}
}

// Other rules fetch what was refused on a new stream, at once. Nothing is stale meanwhile.
func TestOtherRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2"))
		config := w.config()
		refuse := true
		config.Rules.Admit = func(s *federation.Service) *federation.InvalidError {
			if refuse && s.Name == "api" {
				return &federation.InvalidError{Reason: federation.ReasonOutOfZone}
			}
			return nil
		}
		m, _ := w.run(config)
		w.await(m, "synced 1/0")
		time.Sleep(30 * time.Minute)
		w.wantLog(`WARN msg="message of owner refused"`, `INFO msg="connected to owner"`, `INFO msg="owner is synced" services=1 refused=1`)
		w.take()
		refuse = false
		must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		time.Sleep(time.Millisecond)
		if got := state(m); got != "synced 2/0" || w.names() != "api web" || w.attempts() != 2 {
			t.Errorf("after %d attempts the owner is %s with %s", w.attempts(), got, w.names())
		}
		w.neverStale()
		time.Sleep(time.Hour)
		if got := w.attempts(); got != 2 {
			t.Errorf("%d attempts an hour after that", got)
		}
		w.wantLog(`INFO msg="connected to owner"`)
	})
}

// limited runs a mirror that has room for two services, with an owner that offers
// three, until the catalog is complete.
func limited(t *testing.T, w *world) (m *consumer.Mirror, registry *registry.Registry, rules catalog.Rules) {
	t.Helper()
	config := w.config()
	config.Rules.MaxCatalog = 2 * catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
	registry, _ = w.serve(services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"), services.At("c.fed.example", "192.0.2.3"))
	m, _ = w.run(config)
	w.await(m, "synced 2/0")
	time.Sleep(10 * time.Minute)
	w.take()
	if got := w.names(); got != "a b" || w.attempts() != 1 {
		t.Fatalf("after %d attempts the services are %s", w.attempts(), got)
	}
	return m, registry, config.Rules
}

// Room that was freed under a limit is for what was refused, at once for the first
// time, and then once a minute.
func TestFreedRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		config := w.config()
		config.Rules.MaxCatalog = 2 * catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
		registry, _ := w.serve(services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"),
			services.At("c.fed.example", "192.0.2.3"), services.At("d.fed.example", "192.0.2.4"))
		m, _ := w.run(config)
		w.await(m, "synced 2/0")
		time.Sleep(10 * time.Minute)
		if got := w.names(); got != "a b" || w.attempts() != 1 {
			t.Fatalf("after %d attempts the services are %s", w.attempts(), got)
		}
		w.take()
		registry.Delete("b")
		if got := w.names(); got != "a c" || w.attempts() != 2 {
			t.Errorf("after %d attempts the services are %s", w.attempts(), got)
		}
		time.Sleep(10 * time.Second)
		registry.Delete("c")
		time.Sleep(50*time.Second - 1)
		if got := w.names(); got != "a" || w.attempts() != 2 {
			t.Errorf("a minute after the renewal the services are %s after %d attempts", got, w.attempts())
		}
		time.Sleep(time.Nanosecond)
		if got := w.names(); got != "a d" || w.attempts() != 3 {
			t.Errorf("a minute after the renewal the services are %s after %d attempts", got, w.attempts())
		}
		w.neverStale()
		if got := state(m); got != "synced 2/0" {
			t.Errorf("owner is %s", got)
		}
		time.Sleep(time.Hour)
		if got := w.attempts(); got != 3 {
			t.Errorf("%d attempts in the end", got)
		}
	})
}

// One service too many of an fqdn is refused with the rule, and comes when another one has gone.
func TestTooManyServicesOfAnFQDN(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		script := "announce\n"
		for i := range packed.MaxServicesPerFQDN + 1 {
			script += fmt.Sprintf("upsert s%d web.fed.example 192.0.2.1\n", i)
		}
		w.misbehave(script + "end\nwait 1m\ndelete s0\nhang\n---\nannounce\nupsert s64 web.fed.example 192.0.2.1\nend\nhang")
		m, _ := w.run(w.config())
		w.await(m, "synced 64/0")
		var refusals []string
		for _, answer := range w.heard() {
			if strings.HasPrefix(answer, "nack ") {
				refusals = append(refusals, answer)
			}
		}
		want := `one service more than the 64 that are taken of one owner at one fqdn; give it another fqdn`
		if len(refusals) != 1 || !strings.Contains(refusals[0], want) || w.counted("refused limit") != 1 {
			t.Errorf("refused with %q", refusals)
		}
		w.await(m, "synced 1/0")
		if got := w.names(); got != "s64" {
			t.Errorf("the services are %s", got)
		}
	})
}

// New limits are tried at once, even right after another renewal.
func TestConfigureMakesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, registry, rules := limited(t, w)
		registry.Delete("b")
		if got := w.names(); got != "a c" || w.attempts() != 2 {
			t.Errorf("after %d attempts the services are %s", w.attempts(), got)
		}
		time.Sleep(time.Second)
		rules.MaxCatalog = catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
		m.Configure(rules)
		rules.MaxCatalog = 3 * catalog.Size(services.At("a.fed.example", "192.0.2.1"), false)
		m.Configure(rules)
		time.Sleep(time.Millisecond)
		if got := state(m); got != "synced 2/0" || w.attempts() != 3 {
			t.Errorf("after %d attempts the owner is %s", w.attempts(), got)
		}
	})
}

// A stream that cannot be had is a loss from when the one before was given up.
func TestRenewalFails(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]string{
		"refused at once":  "status Unavailable",
		"says nothing":     "hang",
		"breaks off early": "upsert a a.fed.example 192.0.2.1\nreset\n---\nstatus Unavailable",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.misbehave("announce\nservices 0 3 fed.example\nend\nhang\n---\n" + then)
				config := w.config()
				config.Rules.Retention = 5 * time.Minute
				m, _ := w.run(config)
				w.await(m, "synced 3/0")
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
