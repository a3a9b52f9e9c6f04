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
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/source/relay"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// alone runs a relay alone, and returns the part that it fills.
func (n *testNetwork) alone(config relay.Config) *part {
	n.t.Helper()
	config.Subscription = n.subscription(originAddress)
	config.Settle = 5 * time.Second
	s := must.Get(relay.New(config))(n.t)
	p := &part{}
	must.Run(n.t, func(ctx context.Context) error {
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

// What belongs to the time after a loss comes after SetAway, and before the end of it.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.script(`announce
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
		p := n.alone(relay.Config{})
		time.Sleep(30 * time.Second)
		syncing := "away: the owner has not yet sent its whole catalog"
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
		n := newNetwork(t)
		registry, _ := n.origin(services.At("web.example", "192.0.2.1"), services.At("db.example", "gw.example"))
		n.relay(relayAddress(1), relay.Config{}, originAddress)
		n.relay(relayAddress(2), relay.Config{}, relayAddress(1))
		c := n.consumer(relayAddress(2))
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

// A loss of the origin is one of all tiers, and for each of them from its moment on. Nothing is available
// before the origin is back and has said everything. Then it is so behind all tiers, each after its
// backoff at most. That the origin is away for less than the grace nobody notices.
func TestOriginIsLost(t *testing.T) {
	t.Parallel()
	const tiers = 3
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		web, old := services.At("web.example", "192.0.2.1"), services.At("old.example", "192.0.2.1")
		_, stop := n.origin(web, old)
		relays, c := n.chain(tiers)
		await(t, "consumer", c.shown, "synced: old=192.0.2.1 web=192.0.2.1")
		c.forget()
		stop()
		_, stop = n.origin(web, old)
		time.Sleep(retention)
		if got := c.shown(); got != "synced: old=192.0.2.1 web=192.0.2.1" || len(c.states) > 1 {
			t.Errorf("the consumer is %s, after %q", got, c.states)
		}

		stop()
		lost := time.Now()
		if took := await(t, "consumer", c.shown, "stale: old=192.0.2.1 web=192.0.2.1"); took < catalog.Grace || took > catalog.Grace+time.Second {
			t.Errorf("the loss takes %v", took)
		}
		time.Sleep(retention / 2)
		for i, of := range relays {
			if got := of.state(); !strings.Contains(got, " is away: Unavailable: ") && !strings.Contains(got, "refused") {
				t.Errorf("the state of relay %d is %q", i+1, got)
			}
			if told, since := n.toldLoss(relayAddress(i+1)), time.Since(lost); told > since || told < since-catalog.Grace {
				t.Errorf("relay %d says that the origin is lost for %v, and it is for %v", i+1, told, since)
			}
		}
		await(t, "consumer", c.shown, "expired: ")
		if took := time.Since(lost); took < retention || took > retention+2*time.Second {
			t.Errorf("the services are gone %v after the origin", took)
		}
		c.forget()
		published, _ := n.origin(services.At("web.example", "192.0.2.2"), old)
		if took := await(t, "consumer", c.shown, "synced: old=192.0.2.1 web=192.0.2.2"); took > (tiers+1)*mostBackoff {
			t.Errorf("the consumer is synced %v after the origin is back", took)
		}
		if slices.Contains(c.states[:len(c.states)-1], "synced") {
			t.Errorf("the states of the consumer are %q", c.states)
		}

		published.SetUnavailable("its source is away", time.Time{})
		await(t, "consumer", c.shown, "stale: old=192.0.2.1 web=192.0.2.2")
		published.Delete(old.Name)
		published.SetUnavailable("", time.Time{})
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.2"); took > (tiers+1)*mostBackoff {
			t.Errorf("the consumer is synced %v after the origin is available", took)
		}
	})
}

// mostBackoff is how long a tier may wait to ask its owner again after such a short time.
const mostBackoff = 5 * time.Second

// A consumer with two relays of one origin, and they with two of their own, try both while they are
// unavailable.
func TestReplicasComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		published, _ := n.origin(services.At("web.example", "192.0.2.1"))
		n.relay(relayAddress(1), relay.Config{}, originAddress)
		n.relay(relayAddress(2), relay.Config{}, originAddress)
		n.relay(relayAddress(3), relay.Config{}, relayAddress(1), relayAddress(2))
		n.relay(relayAddress(4), relay.Config{}, relayAddress(2), relayAddress(1))
		c := n.consumer(relayAddress(3), relayAddress(4))
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		published.SetUnavailable("its source is away", time.Time{})
		await(t, "consumer", c.shown, "stale: web=192.0.2.1")
		published.SetUnavailable("", time.Time{})
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.1"); took > 3*mostBackoff {
			t.Errorf("the consumer is synced %v after the origin is available", took)
		}
	})
}

// A relay of an older version of the API cannot be told of each service. It vouches for a catalog only
// while it was told of all.
func TestOlderVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		told := func(fqdn string) *federation.Service {
			s := services.At(fqdn, "192.0.2.1")
			s.SANs = []string{"spiffe://" + fqdn + "/sa"}
			return s
		}
		published, _ := n.origin(told("web.example"))
		config := relay.Config{}
		config.Subscription.Version = wire.V1Alpha1
		of := n.relay(relayAddress(1), config, originAddress)
		c := n.consumer(relayAddress(1))
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		must.Get(published.Upsert(services.At("unsaid.example", "192.0.2.1")))(t)
		await(t, "consumer", c.shown, "stale: web=192.0.2.1")
		if got := of.state(); !strings.Contains(got, " is away: ") {
			t.Errorf("the state of the relay is %q", got)
		}
		must.Get(published.Upsert(told("unsaid.example")))(t)
		await(t, "consumer", c.shown, "synced: unsaid=192.0.2.1 web=192.0.2.1")
	})
}

// A relay that begins with a file has no catalog before the origin has one.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		_, stopOrigin := n.origin(services.At("web.example", "192.0.2.1"), services.At("old.example", "192.0.2.1"))
		config := relay.Config{}
		config.Subscription.File = filepath.Join(t.TempDir(), "kept")
		of := n.relay(relayAddress(1), config, originAddress)
		c := n.consumer(relayAddress(1))
		await(t, "consumer", c.shown, "synced: old=192.0.2.1 web=192.0.2.1")
		stopOrigin()
		of.stop()
		of = n.relay(relayAddress(1), config, originAddress)
		time.Sleep(retention / 2)
		if got, want := of.state(), "waiting for the first state of relay:"+originAddress; !strings.HasPrefix(got, want) {
			t.Errorf("state is %q, expected %q", got, want)
		}
		if s := of.Status(); s.Services != 2 {
			t.Errorf("%d services are restored", s.Services)
		}
		if got := c.shown(); got != "stale: old=192.0.2.1 web=192.0.2.1" {
			t.Errorf("consumer is %q", got)
		}
		n.origin(services.At("web.example", "192.0.2.2"))
		await(t, "consumer", c.shown, "synced: web=192.0.2.2")
	})
}

// A mirror that replaces a stream by another one on purpose has lost nothing.
func TestRenewalIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		registry, _ := n.origin(services.At("a.example", "192.0.2.1"), services.At("b.example", "192.0.2.1"))
		of := n.relay(relayAddress(1), relay.Config{MaxCatalog: 1000}, originAddress)
		c := n.consumer(relayAddress(1))
		await(t, "consumer", c.shown, "synced: a=192.0.2.1")
		c.forget()
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
		n := newNetwork(t)
		registry, _ := n.origin(services.At("a.example", "192.0.2.1"))
		n.relay(relayAddress(1), relay.Config{}, originAddress)
		c := n.consumer(relayAddress(1))
		await(t, "consumer", c.shown, "synced: a=192.0.2.1")
		must.Do(t, registry.SetPath(wire.OwnerPath{"elsewhere"}))
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
		n := newNetwork(t)
		registry, _ := n.origin(services.At("a.in.example", "192.0.2.1"), services.At("b.example", "192.0.2.1"), services.At("c.in.example", "127.0.0.1"))
		zone := must.Get(federation.ParseOrigin("in.example"))(t)
		of := n.relay(relayAddress(1), relay.Config{Zones: []federation.FQDN{zone}}, originAddress)
		c := n.consumer(relayAddress(1))
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

// A relay does not take from its own consumer what came from itself.
func TestDownstreamIsNoUpstream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		_, stop := n.origin(services.At("web.example", "192.0.2.1"))
		one := n.relay(relayAddress(1), relay.Config{}, originAddress, relayAddress(2))
		n.relay(relayAddress(2), relay.Config{}, relayAddress(1))
		c := n.consumer(relayAddress(2))
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		stop()
		if took := await(t, "consumer", c.shown, "expired: "); took > retention+2*time.Second {
			t.Errorf("the service is gone %v after the origin", took)
		}
		n.origin(services.At("web.example", "192.0.2.2"))
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.2"); took > time.Minute {
			t.Errorf("the consumer is synced %v after the origin is back, the relay is %q", took, one.state())
		}
	})
}

// An owner that does not mark the end of its catalog, and comes back without most of it,
// is waited for, and not for ever.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		stop := n.script("services 0 20 example\nhang")
		of := n.relay(relayAddress(1), relay.Config{}, originAddress)
		await(t, "relay", of.state, "20 services")
		stop()
		n.script("services 0 3 example\nhang")
		held := "relay:" + originAddress + " is away: the owner has come back without most of its services"
		await(t, "relay", of.state, held)
		if took := await(t, "relay", of.state, "3 services"); took > time.Hour || took < 50*time.Minute {
			t.Errorf("the others are gone after %v", took)
		}
		time.Sleep(time.Minute)
		stop()
	})
}
