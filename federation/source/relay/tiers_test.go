package relay_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source/relay"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// chain returns a consumer behind so many relays of the origin, and the first of them.
func (w *world) chain(relays int) (first *tier, last *follower) {
	w.t.Helper()
	from := originAddress
	for i := range relays {
		at := fmt.Sprint("relay.example:", i+1)
		of := w.relay(at, relay.Config{}, from)
		if i == 0 {
			first = of
		}
		from = at
	}
	return first, w.consumer(from)
}

// mostBackoff is how long a tier may wait to ask its owner again.
const mostBackoff = 90 * time.Second

// Whatever takes the catalog away from the first of many tiers, and for however long: when
// that has it again, all tiers have it, each after its backoff at most.
func TestTiersComeBack(t *testing.T) {
	t.Parallel()
	for _, tiers := range []int{1, 3} {
		for _, away := range []time.Duration{0, time.Second, 90 * time.Second, 11 * time.Minute} {
			t.Run(fmt.Sprintf("%d relays, %v", tiers, away), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					web, old := services.At("web.example", "192.0.2.1"), services.At("old.example", "192.0.2.1")
					registry, stop := w.origin(web, old)
					first, c := w.chain(tiers)
					await(t, "consumer", c.shown, "synced: old=192.0.2.1 web=192.0.2.1")

					registry.SetUnavailable("its source is away", time.Time{})
					time.Sleep(away)
					registry.Delete(old.Name)
					registry.SetUnavailable("", time.Time{})
					most := time.Duration(tiers+1) * mostBackoff
					if took := await(t, "consumer", c.shown, "synced: web=192.0.2.1"); took > most {
						t.Errorf("the consumer is synced %v after the origin is available", took)
					}

					stop()
					await(t, "consumer", c.shown, "stale: web=192.0.2.1")
					time.Sleep(away)
					w.origin(web)
					await(t, "first relay", first.state, "1 services")
					if took := await(t, "consumer", c.shown, "synced: web=192.0.2.1"); took > most {
						t.Errorf("the consumer is synced %v after the first relay", took)
					}
				})
			})
		}
	}
}

// A consumer with two relays of one origin tries both while they are unavailable.
func TestReplicasComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		web := services.At("web.example", "192.0.2.1")
		registry, _ := w.origin(web)
		w.relay("relay.example:1", relay.Config{}, originAddress)
		w.relay("relay.example:2", relay.Config{}, originAddress)
		w.relay("relay.example:3", relay.Config{}, "relay.example:1", "relay.example:2")
		w.relay("relay.example:4", relay.Config{}, "relay.example:2", "relay.example:1")
		c := w.consumer("relay.example:3", "relay.example:4")
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		for _, away := range []time.Duration{4 * time.Second, time.Minute, 20 * time.Minute} {
			registry.SetUnavailable("its source is away", time.Time{})
			await(t, "consumer", c.shown, "stale: web=192.0.2.1")
			time.Sleep(away)
			registry.SetUnavailable("", time.Time{})
			if took := await(t, "consumer", c.shown, "synced: web=192.0.2.1"); took > 3*mostBackoff {
				t.Errorf("after %v the consumer is synced %v after the origin is available", away, took)
			}
		}
	})
}

// A consumer with two owners turns to the other one when one of them is unavailable, before that is
// a loss.
func TestReplicaIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		web := services.At("web.example", "192.0.2.1")
		first, _ := w.origin(web)
		second := registry.New()
		must.Get(second.Upsert(web))(t)
		w.publish("other.example:8008", second)
		c := w.consumer(originAddress, "other.example:8008")
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		first.SetUnavailable("its source is away", time.Time{})
		time.Sleep(time.Minute)
		if c.shown(); slices.Contains(c.states, "stale") {
			t.Errorf("the states of the consumer are %q", c.states)
		}
		second.SetUnavailable("its source is away", time.Time{}) // and for a while the first one is
		await(t, "consumer", c.shown, "stale: web=192.0.2.1")
		time.Sleep(time.Hour)
		first.SetUnavailable("", time.Time{})
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.1"); took > 2*time.Minute {
			t.Errorf("it takes %v", took)
		}
	})
}
