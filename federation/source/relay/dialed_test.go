package relay_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/dialer"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/relay"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

var dialedSchedules = flag.Int("dialed-schedules", 20, "`number` of schedules of TestDialedSchedules")

const (
	relayAddress = "relay.example:8008"
	relayName    = "relay.example"
)

// dialedWorld is owners that dial a relay, which they also consume a catalog of, and a consumer of
// what they publish.
type dialedWorld struct {
	*world

	authority *mtls.Authority
	relayID   *pki.Party

	mu    sync.Mutex // guards the fields below
	conns []net.Conn // that the owners have dialed
	down  bool       // whether nothing that is dialed arrives
}

// inside is an owner that cannot be reached: nothing listens for it.
type inside struct {
	id       *pki.Party
	registry *registry.Registry
	dialer   *dialer.Dialer
	mirror   *follower // of what the relay publishes beside
	stop     func()
}

// outside is the relay that the owners dial.
type outside struct {
	source   *relay.Source
	registry *registry.Registry // of what has come
	own      *registry.Registry // of another catalog
	catalog  *source.Catalog
	stop     func()
}

func newDialedWorld(t *testing.T) *dialedWorld {
	t.Helper()
	authority := pki.New(t)
	w := &dialedWorld{world: &world{t: t}, authority: authority}
	w.everyID = pki.Source(t, authority, pki.Named("consumer.example"))
	w.relayID = w.party(relayName)
	return w
}

func (w *dialedWorld) party(name string) *pki.Party {
	return pki.NewParty(w.t, w.authority, pki.Named(name), 10*365*24*time.Hour)
}

// dial is how the owners reach the relay: the only way that there is.
func (w *dialedWorld) dial(ctx context.Context, address string) (net.Conn, error) {
	w.mu.Lock()
	down := w.down
	w.mu.Unlock()
	if down {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := w.Dial(ctx, address)
	if err == nil {
		w.mu.Lock()
		w.conns = append(w.conns, conn)
		w.mu.Unlock()
	}
	return conn, err
}

// cut ends all connections that the owners have dialed.
func (w *dialedWorld) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.conns {
		conn.Close()
	}
	w.conns = nil
}

func (w *dialedWorld) block(down bool) {
	w.mu.Lock()
	w.down = down
	w.mu.Unlock()
	w.cut()
}

// relayOf runs a relay that these owners may dial.
func (w *dialedWorld) relayOf(names ...string) *outside {
	w.t.Helper()
	var ids []federation.ID
	for _, name := range names {
		ids = append(ids, must.Value(federation.ParseID(name)))
	}
	logger := slog.New(slog.DiscardHandler)
	in := relay.NewInbound(w.relayID.Source, ids, nil, logger)
	o := &outside{registry: registry.New(), own: registry.New()}
	o.source = must.Get(relay.New(relay.Config{Subscription: in.Subscription(), Inbound: in, Name: "inside", Settle: 5 * time.Second, Logger: logger}))(w.t)
	o.catalog = source.NewCatalog(source.Config{Registry: o.registry, Logger: logger})
	o.catalog.Set([]source.Entry{{Key: "1", Name: "relay:inside", Source: o.source, Lifetime: source.NoLifetime}})
	must.Get(o.own.Upsert(services.At("own.example", "192.0.2.9")))(w.t)
	may := func(_ string, ids []federation.ID) error {
		if !in.May(ids) {
			return fmt.Errorf("%v may not", ids)
		}
		return nil
	}
	server := must.Get(owner.New(owner.Config{
		Catalogs:    map[string]*registry.Registry{"": o.registry, "own.example": o.own},
		Credentials: w.relayID.ServerFor(may, in.Take), Logger: logger,
	}))(w.t)
	end := must.Run(w.t, o.catalog.Run)
	unserve := w.Serve(w.t, relayAddress, server.Serve)
	o.stop = func() { unserve(); end() }
	return o
}

// nowhere is a listener to which nobody connects.
type nowhere struct{ closed chan struct{} }

func (n nowhere) Accept() (net.Conn, error) { <-n.closed; return nil, net.ErrClosed }
func (n nowhere) Close() error              { close(n.closed); return nil }
func (nowhere) Addr() net.Addr              { return &net.TCPAddr{} }

// owner runs an owner that dials the relay with the services, and consumes a catalog of it.
func (w *dialedWorld) owner(id *pki.Party, published *registry.Registry) *inside {
	w.t.Helper()
	in := &inside{id: id, registry: published}
	server := must.Get(owner.New(owner.Config{Registry: published, Credentials: id.Server(), Logger: slog.New(slog.DiscardHandler)}))(w.t)
	listener := dialer.Join(nowhere{make(chan struct{})})
	relays := []federation.ID{must.Value(federation.ParseID(relayName))}
	in.dialer = dialer.New(dialer.Config{
		Addresses: []string{relayAddress}, Identity: mtls.Consumer{Source: id.Source, IDs: relays}, Logger: slog.New(slog.DiscardHandler), Dial: w.dial,
	})
	of := w.everyID
	defer func() { w.everyID = of }()
	w.everyID = id.Source
	subscription := w.subscription(relayAddress)
	subscription.Identity, subscription.Dial = id.As(mtls.Consumer{ServerName: "own.example", IDs: relays}), w.dial
	in.mirror = w.follow(subscription)
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() { in.dialer.Run(ctx, listener) })
	running.Go(func() { _ = server.Serve(ctx, listener) })
	running.Go(func() { _ = in.mirror.Run(ctx) })
	in.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	w.t.Cleanup(in.stop)
	return in
}

// TestDialed has the services of an owner that nobody can reach behind a relay that it dials.
func TestDialed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDialedWorld(t)
		first := registry.New()
		must.Get(first.Upsert(services.At("web.example", "192.0.2.1")))(t)
		out := w.relayOf("a.example", "b.example")
		c := w.consumer(relayAddress)
		a := w.owner(w.party("a.example"), first)
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.1"); took > 5*time.Second {
			t.Errorf("the first catalog takes %v", took)
		}
		await(t, "owner", a.mirror.shown, "synced: own=192.0.2.9")
		if s := a.dialer.Status(); s.Used != 1 || !s.Waits {
			t.Errorf("the owner has dialed %+v", s)
		}

		w.cut()
		await(t, "consumer", c.shown, "stale: web=192.0.2.1")
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.1"); took > 5*time.Second {
			t.Errorf("after a cut it takes %v", took)
		}

		// Another owner of the catalog waits until the first one is gone.
		second := registry.New()
		must.Get(second.Upsert(services.At("web.example", "192.0.2.2")))(t)
		b := w.owner(w.party("b.example"), second)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := b.dialer.Status(); s.Used != 0 || !s.Waits || c.shown() != "synced: web=192.0.2.1" {
			t.Errorf("the second owner has dialed %+v, and the consumer has %s", s, c.shown())
		}
		a.stop()
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.2"); took > 10*time.Second {
			t.Errorf("the second owner takes %v", took)
		}

		// One that is not named is refused, and told so.
		stranger := w.owner(w.party("c.example"), registry.New())
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := stranger.dialer.Status(); s.Err == nil || !strings.Contains(s.Err.Error(), "relay.accept") {
			t.Errorf("the stranger has dialed %+v", s)
		}

		out.stop()
		await(t, "consumer", c.shown, "stale: web=192.0.2.2")
		w.relayOf("b.example")
		if took := await(t, "consumer", c.shown, "synced: web=192.0.2.2"); took > 2*time.Minute {
			t.Errorf("after a restart of the relay it takes %v", took)
		}
	})
}

// Certificates are renewed before they expire, and nobody loses anything.
func TestDialedCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDialedWorld(t)
		const short = time.Hour
		published := registry.New()
		must.Get(published.Upsert(services.At("web.example", "192.0.2.1")))(t)
		w.relayOf("a.example")
		c := w.consumer(relayAddress)
		id := w.party("a.example")
		id.Replace(short)
		a := w.owner(id, published)
		await(t, "consumer", c.shown, "synced: web=192.0.2.1")
		for range 8 {
			time.Sleep(short / 2)
			id.Replace(short)
			w.relayID.Replace(3 * short)
		}
		time.Sleep(short / 2)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if slices.Contains(c.states, "stale") {
			t.Errorf("the consumer was %v", c.states)
		}
		if s := a.dialer.Status(); s.Used != 1 || !s.Waits {
			t.Errorf("the owner has dialed %+v", s)
		}
	})
}

// TestDialedSchedules cuts, blocks and restarts both sides at random. When all is well again, both
// directions are complete soon.
func TestDialedSchedules(t *testing.T) {
	for seed := range uint64(*dialedSchedules) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 0))
				w := newDialedWorld(t)
				published, id := registry.New(), w.party("a.example")
				out, a, c := w.relayOf("a.example"), w.owner(id, published), w.consumer(relayAddress)
				for range 12 {
					n := r.IntN(250)
					must.Get(published.Upsert(services.At("web.example", fmt.Sprint("192.0.2.", n))))(t)
					switch r.IntN(5) {
					case 0:
						w.cut()
					case 1:
						w.block(true)
						time.Sleep(time.Duration(r.IntN(120)) * time.Second)
						w.block(false)
					case 2:
						a.stop()
						time.Sleep(time.Duration(r.IntN(20)) * time.Second)
						a = w.owner(id, published)
					case 3:
						out.stop()
						time.Sleep(time.Duration(r.IntN(20)) * time.Second)
						out = w.relayOf("a.example")
					}
					time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
					const bound = 2 * time.Minute // a minute is the longest delay of a consumer
					took := await(t, "consumer", c.shown, fmt.Sprint("synced: web=192.0.2.", n))
					took += await(t, "owner", a.mirror.shown, "synced: own=192.0.2.9")
					if took > bound {
						t.Errorf("it takes %v until both are complete", took)
					}
				}
			})
		})
	}
}

// follow is a consumer with the subscription, which does not run yet.
func (w *world) follow(s consumer.Subscription) *follower {
	w.t.Helper()
	c := &follower{services: make(map[string]*federation.Service)}
	c.Mirror = must.Get(consumer.New(consumer.Config{Subscription: s, Rules: followed, Publish: c.publish}))(w.t)
	return c
}
