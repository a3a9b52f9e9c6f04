package consumer_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// A mirror needs no more than a subscription and a function that publishes.
func TestDefaults(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		registry, _ := sim.serve(services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "127.0.0.1"))
		path := filepath.Join(t.TempDir(), "catalog")
		full := sim.config()
		m, stop := sim.run(consumer.Config{
			Subscription: consumer.Subscription{Addresses: []string{ownerAddress}, Identity: full.Subscription.Identity, Dial: sim.Dial, File: path},
			Rules:        full.Rules, Publish: full.Publish,
		})
		if got := state(m); got != "synced 2/0" {
			t.Errorf("owner is %s", got)
		}
		if s := m.Status(); !s.LastSync.Equal(time.Now()) {
			t.Errorf("synced at %v", s.LastSync)
		}
		registry.Delete("api")
		if got := sim.names(); got != "web" {
			t.Errorf("the services are %s", got)
		}
		stop()
		if s, err := snapshot.Load(path, snapshot.ReadOptions{Owner: ownerAddress}); err != nil || len(s.Services) != 1 || !s.LastUp.Equal(time.Now()) {
			t.Errorf("saved is %+v, %v", s, err)
		}
	})
}

// Errors of a configuration name the field.
func TestErrors(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		for want, change := range map[string]func(*consumer.Config){
			"no function to publish changes": func(c *consumer.Config) { c.Publish = nil },
			"no address":                     func(c *consumer.Config) { c.Subscription.Addresses = nil },
		} {
			config := sim.config()
			change(&config)
			m, err := consumer.New(config)
			if m != nil || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("New returns %v, %v; want %s", m, err, want)
			}
		}
	})
}

// Each attempt has its time, and each that fails is one change of the status.
func TestFailure(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		m, _ := sim.run(sim.config())
		if got := state(m); got != "connecting 0/0" || m.Status().Failure == nil {
			t.Errorf("after the first attempt the owner is %s: %v", got, m.Status().Failure)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		dialed := sim.Records("dialed")
		last := sim.Start.Add(dialed[len(dialed)-1].At)
		s := m.Status()
		if s.StateName() != "connecting" || s.Parked || s.Failure == nil || s.Failure.Error() != "dial tcp: connection refused" || !s.LastAttempt.Equal(last) {
			t.Errorf("status is %+v", s)
		}
		changes := sim.take()
		if len(changes) != sim.attempts() || sim.counted("ended Unavailable") != len(changes) {
			t.Errorf("%d changes after %d attempts", len(changes), sim.attempts())
		}
		for _, c := range changes {
			if c.Status.Failure == nil || len(c.Services) > 0 || !c.Status.LastAttempt.IsZero() {
				t.Errorf("published is %+v", c)
			}
		}
		sim.serve(services.At("web.fed.example", "192.0.2.1"))
		sim.await(m, "synced 1/0")
		if s := m.Status(); s.Failure != nil {
			t.Errorf("failure is %v while a stream is open", s.Failure)
		}
		sim.take()
		time.Sleep(10 * time.Hour)
		if changes := sim.take(); len(changes) > 0 {
			t.Errorf("although nothing has changed, %+v is published", changes)
		}
	})
}

// A subscription before Run takes the place of the first one, and one that is wrong
// changes nothing.
func TestResubscribe(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		sim.serve(services.At("web.fed.example", "192.0.2.1"))
		config := sim.config()
		config.Subscription.Addresses = []string{"other.example:8008"}
		m := must.Get(consumer.New(config))(t)
		must.Do(t, m.Resubscribe(sim.config().Subscription, config.Rules))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		if got := state(m); got != "synced 1/0" || sim.attempts() != 1 {
			t.Errorf("after %d attempts the owner is %s", sim.attempts(), got)
		}
		if err := m.Resubscribe(consumer.Subscription{}, config.Rules); err == nil {
			t.Error("a wrong subscription is taken")
		}
		time.Sleep(time.Minute)
		if got := state(m); got != "synced 1/0" || sim.attempts() != 1 {
			t.Errorf("after a wrong subscription, and %d attempts, the owner is %s", sim.attempts(), got)
		}

		// Another one makes stale what the one before has brought.
		sim.take()
		must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		time.Sleep(catalog.Grace - time.Second)
		if got := state(m); got != "synced 1/0" {
			t.Errorf("within the grace the owner is %s", got)
		}
		sim.take()
		time.Sleep(2 * time.Second)
		if changes := sim.take(); len(changes) == 0 || changes[len(changes)-1].Status.State != catalog.Stale {
			t.Errorf("published is %+v", changes)
		}
		if got := state(m); got != "stale 1/1" || sim.names() != "web" {
			t.Errorf("owner is %s with %s", got, sim.names())
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returns %v", err)
		}
		if s := m.Status(); s.Failure != nil || s.Parked || s.StateName() != "stale" {
			t.Errorf("in the end the status is %+v", s)
		}
	})
}
