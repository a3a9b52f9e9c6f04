package relay_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/source/relay"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// alone runs a relay alone, and returns the part that it fills.
func (w *world) alone(config relay.Config) *part {
	w.t.Helper()
	config.Subscription = w.subscription(originAddress)
	config.Settle = 5 * time.Second
	s := must.Get(relay.New(config))(w.t)
	p := &part{}
	must.Run(w.t, func(ctx context.Context) error {
		s.Run(ctx, p)
		return nil
	})
	return p
}

func expect(t *testing.T, when string, p *part, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, p.take()); diff != "" {
		t.Errorf("%s: unexpected calls of the part (-want +got):\n%s", when, diff)
	}
}

// What belongs to the time after a loss comes after Away, and before the end of it.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.script(`announce
upsert a a.example 192.0.2.1
upsert b b.example 192.0.2.1
upsert c c.example 192.0.2.1
end
wait 1m
upsert a a.example 192.0.2.2
delete b
reset
---
announce
wait 10s
upsert a a.example 192.0.2.3
wait 10s
upsert d d.example 192.0.2.3
wait 10s
end
hang`)
		p := w.alone(relay.Config{})
		time.Sleep(30 * time.Second)
		syncing := "away: the owner has yet to say what its catalog is"
		first := slices.Compact(p.take()) // a reason may be given twice
		if diff := cmp.Diff([]string{syncing, "through", syncing, "back", "replace [a b c]"}, first); diff != "" {
			t.Errorf("first catalog: unexpected calls (-want +got):\n%s", diff)
		}
		time.Sleep(31 * time.Second)
		expect(t, "updates", p, "update [a] []", "update [] [b]")
		time.Sleep(time.Minute)
		later := slices.Compact(p.take())
		if diff := cmp.Diff([]string{syncing, "through", syncing, "update [a] []", syncing, "update [d] []", "update [] [c]", "back"}, later); diff != "" {
			t.Errorf("second catalog: unexpected calls (-want +got):\n%s", diff)
		}
	})
}

// Services come to consumers of the relay as they are, with every change of them, and with
// the path.
func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		registry, _ := w.origin(services.At("web.example", "192.0.2.1"), services.At("db.example", "gw.example"))
		w.relay("relay.example:1", relay.Config{}, originAddress)
		w.relay("relay.example:2", relay.Config{}, "relay.example:1")
		c := w.consumer("relay.example:2")
		await(t, "consumer", c.shown, "synced: db=gw.example. web=192.0.2.1")
		status := c.Status()
		if got := status.Hops(); got != 3 {
			t.Errorf("%d hops", got)
		}
		must.Get(registry.Upsert(services.At("web.example", "192.0.2.2")))(t)
		registry.Delete("db")
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.2"); took > 0 {
			t.Errorf("a change takes %v", took)
		}
	})
}

// A loss of the origin is one of all tiers, and nothing is available before the origin is
// back and has said everything.
func TestOriginIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.origin(services.At("web.example", "192.0.2.1"), services.At("old.example", "192.0.2.1"))
		first := w.relay("relay.example:1", relay.Config{}, originAddress)
		second := w.relay("relay.example:2", relay.Config{}, "relay.example:1")
		c := w.consumer("relay.example:2")
		await(t, "consumer", c.shown, "synced: old=192.0.2.1 web=192.0.2.1")
		stop()
		if took := await(t, "consumer", c.shown, "stale: old=192.0.2.1 web=192.0.2.1"); took > catalog.Grace+time.Second {
			t.Errorf("the loss takes %v", took)
		}
		lost := c.Status()
		for _, of := range []*tier{first, second} {
			if got := of.state(); !strings.Contains(got, " is away: Unavailable: ") && !strings.Contains(got, "refused") {
				t.Errorf("the state of a relay is %q", got)
			}
		}
		time.Sleep(30 * time.Minute)
		w.origin(services.At("web.example", "192.0.2.2"))
		await(t, "consumer", c.shown, "synced: web=192.0.2.2")
		time.Sleep(time.Minute)
		synced := slices.DeleteFunc(slices.Clone(c.states), func(state string) bool { return state != "synced" })
		if len(synced) != 2 { // nothing between the two
			t.Errorf("states of the consumer are %q", c.states)
		}
		if s := c.Status(); s.LastSync.Sub(lost.Lost) < 30*time.Minute {
			t.Errorf("the consumer was synced at %v", s.LastSync)
		}
	})
}

// Retention counts from the loss of the origin, whatever relays are between.
func TestRetentionCountsFromTheOrigin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.origin(services.At("web.example", "192.0.2.1"))
		w.relay("relay.example:1", relay.Config{}, originAddress)
		w.relay("relay.example:2", relay.Config{}, "relay.example:1")
		c := w.consumer("relay.example:2")
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		stop()
		if took := await(t, "consumer", c.shown, "expired: "); took < time.Hour || took > time.Hour+2*time.Second {
			t.Errorf("the service is gone %v after the origin", took)
		}
	})
}

// The last relay of a chain tells since when the origin is lost, as the first one does.
func TestLossIsPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.origin(services.At("web.example", "192.0.2.1"))
		_, c := w.chain(3)
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		stop()
		lost := time.Now()
		for range 3 {
			time.Sleep(10 * time.Minute)
			since := time.Since(lost)
			for _, at := range []string{"relay.example:1", "relay.example:2", "relay.example:3"} {
				if told := w.toldLoss(at); told > since || told < since-5*time.Second {
					t.Errorf("%s says that the origin is lost for %v, and it is for %v", at, told, since)
				}
			}
		}
	})
}

// A relay that begins with a file has no catalog before the origin has one.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stopOrigin := w.origin(services.At("web.example", "192.0.2.1"), services.At("old.example", "192.0.2.1"))
		config := relay.Config{}
		config.Subscription.File = filepath.Join(t.TempDir(), "kept")
		of := w.relay("relay.example:1", config, originAddress)
		c := w.consumer("relay.example:1")
		await(t, "consumer", c.shown, "synced: old=192.0.2.1 web=192.0.2.1")
		stopOrigin()
		of.stop()
		time.Sleep(time.Minute)
		of = w.relay("relay.example:1", config, originAddress)
		time.Sleep(10 * time.Minute)
		if got, want := of.state(), "waiting for the first state of relay:"+originAddress; !strings.HasPrefix(got, want) {
			t.Errorf("state is %q, expected %q", got, want)
		}
		if s := of.Status(); s.Services != 2 {
			t.Errorf("%d services are restored", s.Services)
		}
		if got := c.shown(); got != "stale: old=192.0.2.1 web=192.0.2.1" {
			t.Errorf("consumer is %q", got)
		}
		w.origin(services.At("web.example", "192.0.2.2"))
		await(t, "consumer", c.shown, "synced: web=192.0.2.2")
	})
}

// A mirror that replaces a stream by another one on purpose has lost nothing.
func TestRenewalIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		registry, _ := w.origin(services.At("a.example", "192.0.2.1"), services.At("b.example", "192.0.2.1"))
		of := w.relay("relay.example:1", relay.Config{MaxCatalog: 1000}, originAddress)
		c := w.consumer("relay.example:1")
		await(t, "consumer", c.shown, "synced: a=192.0.2.1")
		c.mu.Lock()
		c.states = nil
		c.mu.Unlock()
		registry.Delete("a")
		await(t, "consumer", c.shown, "synced: b=192.0.2.1")
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(c.states, []string{"synced"}) {
			t.Errorf("states of the consumer are %q", c.states)
		}
		if s := of.Status(); s.Generation < 2 {
			t.Errorf("the stream is the first one")
		}
	})
}

// Where services come by another way, streams end, and the next ones say so.
func TestAnotherWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		registry, _ := w.origin(services.At("a.example", "192.0.2.1"))
		w.relay("relay.example:1", relay.Config{}, originAddress)
		c := w.consumer("relay.example:1")
		await(t, "consumer", c.shown, "synced: a=192.0.2.1")
		must.Do(t, registry.SetPath(wire.Path{"elsewhere"}))
		must.Get(registry.Upsert(services.At("a.example", "192.0.2.2")))(t)
		await(t, "consumer", c.shown, "synced: a=192.0.2.2")
		if status := c.Status(); status.Hops() != 3 {
			t.Errorf("the consumer knows of %d owners", status.Hops())
		}
	})
}

// What the owner may not publish is counted.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		registry, _ := w.origin(services.At("a.in.example", "192.0.2.1"), services.At("b.example", "192.0.2.1"), services.At("c.in.example", "127.0.0.1"))
		zone := must.Get(federation.ParseOrigin("in.example"))(t)
		of := w.relay("relay.example:1", relay.Config{Zones: []federation.FQDN{zone}}, originAddress)
		c := w.consumer("relay.example:1")
		await(t, "consumer", c.shown, "synced: a=192.0.2.1")
		refused := func() string { return fmt.Sprint(of.catalog.Status().Sources[0].Refused) }
		if got := refused(); got != "map[address:1 out_of_zone:1]" {
			t.Errorf("refused are %s", got)
		}
		must.Get(registry.Upsert(services.At("c.in.example", "192.0.2.3")))(t)
		registry.Delete("b")
		await(t, "consumer", c.shown, "synced: a=192.0.2.1 c=192.0.2.3")
		if got := refused(); got != "map[out_of_zone:1]" {
			t.Errorf("refused are %s", got) // a deletion of what is not kept changes nothing
		}
	})
}

// Relays that have nobody but each other have no catalog, and say why.
func TestRelaysOfEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one := w.relay("relay.example:1", relay.Config{}, "relay.example:2")
		two := w.relay("relay.example:2", relay.Config{}, "relay.example:1")
		for range 100 {
			time.Sleep(time.Minute)
			for _, of := range []*tier{one, two} {
				synctest.Wait()
				if s := of.catalog.Status(); s.Unavailable == "" || !strings.Contains(s.Sources[0].Away, "the catalog is not available just now") {
					t.Fatalf("state is %q, expected that the other one has no catalog", of.state())
				}
			}
		}
	})
}

// A relay does not take from its own consumer what came from itself.
func TestDownstreamIsNoUpstream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.origin(services.At("web.example", "192.0.2.1"))
		one := w.relay("relay.example:1", relay.Config{}, originAddress, "relay.example:2")
		w.relay("relay.example:2", relay.Config{}, "relay.example:1")
		c := w.consumer("relay.example:2")
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		stop()
		if took := await(t, "consumer", c.shown, "expired: "); took > time.Hour+2*time.Second {
			t.Errorf("the service is gone %v after the origin", took)
		}
		w.origin(services.At("web.example", "192.0.2.2"))
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.2"); took > 7*time.Minute {
			t.Errorf("the consumer is synced %v after the origin is back, the relay is %q", took, one.state())
		}
	})
}

// An owner that does not mark the end of its catalog, and comes back without most of it,
// is waited for, and not for ever.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.script("services 0 20 example\nhang")
		of := w.relay("relay.example:1", relay.Config{}, originAddress)
		await(t, "relay", of.state, "20 services")
		stop()
		w.script("services 0 3 example\nhang")
		held := "relay:" + originAddress + " is away: the owner has come back without most of its services"
		await(t, "relay", of.state, held)
		if took := await(t, "relay", of.state, "3 services"); took > time.Hour || took < 50*time.Minute {
			t.Errorf("the others are gone after %v", took)
		}
		time.Sleep(time.Minute)
		stop()
	})
}
