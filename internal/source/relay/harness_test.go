package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/relay"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

const originAddress = "origin.example:8008"

// testNetwork is owners, relays and consumers in memory. It must be made inside a bubble.
type testNetwork struct {
	network.Network

	t       *testing.T
	everyID *mtls.Source // of all of them
}

func newNetwork(t *testing.T) *testNetwork {
	t.Helper()
	return &testNetwork{t: t, everyID: pki.Source(t, pki.New(t), pki.Named("*.example"))}
}

// publish serves a registry.
func (n *testNetwork) publish(address string, published *registry.Registry) (stop func()) {
	n.t.Helper()
	server := must.Get(owner.New(owner.Config{Catalogs: map[string]*registry.Registry{"": published}, Credentials: n.everyID.Server(), Logger: slog.New(slog.DiscardHandler)}))(n.t)
	return n.Serve(n.t, address, server.Serve)
}

// origin runs an owner with the services.
func (n *testNetwork) origin(services ...*federation.Service) (published *registry.Registry, stop func()) {
	n.t.Helper()
	published = registry.New()
	must.Get(published.Set(services))(n.t)
	return published, n.publish(originAddress, published)
}

// script runs an owner that follows a script.
func (n *testNetwork) script(text string) (stop func()) {
	n.t.Helper()
	script := must.Get(faultowner.Parse(text))(n.t)
	return n.Serve(n.t, originAddress, faultowner.New(faultowner.Config{Script: script, Credentials: n.everyID.Server()}).Serve)
}

// testRelay is a relay with the catalog that it fills, which is served.
type testRelay struct {
	*relay.Source

	catalog  *source.Catalog
	registry *registry.Registry
	stop     func()
}

// subscription is one to the addresses.
func (n *testNetwork) subscription(addresses ...string) consumer.Subscription {
	return consumer.Subscription{Addresses: addresses, Identity: pki.NewIdentity(n.everyID), Dial: n.Dial}
}

// relay runs a relay of the owners at the addresses.
func (n *testNetwork) relay(at string, config relay.Config, from ...string) *testRelay {
	n.t.Helper()
	subscription := n.subscription(from...)
	subscription.File, subscription.Version = config.Subscription.File, config.Subscription.Version
	config.Subscription = subscription
	config.Logger = slog.New(slog.DiscardHandler)
	config.Settle = 5 * time.Second
	relayed := must.Get(relay.New(config))(n.t)
	published := registry.New()
	of := &testRelay{Source: relayed, registry: published, catalog: source.NewCatalog(source.Config{
		Registry: published, Logger: slog.New(slog.DiscardHandler),
		Sources: []source.Entry{{Name: "relay:" + from[0], Source: relayed, Lifetime: source.NoLifetime}},
	})}
	end := must.Run(n.t, of.catalog.Run)
	unserve := n.publish(at, published)
	of.stop = func() { unserve(); end() }
	return of
}

// state returns why consumers cannot have the catalog, or how many services it has.
func (of *testRelay) state() string {
	synctest.Wait()
	s := of.catalog.Status()
	if s.Unavailable != "" {
		return s.Unavailable + ": " + s.Sources[0].Away
	}
	return fmt.Sprint(s.Sources[0].Services, " services")
}

// follower is a copy of the catalog at an address, as a CoreDNS would have it.
type follower struct {
	*consumer.Mirror

	mu       sync.Mutex // guards the fields below
	services map[string]*federation.Service
	states   []string // one after the other
}

// retention is short: every lost tier tries again once a second.
const retention = time.Minute

func (n *testNetwork) consumer(from ...string) *follower {
	n.t.Helper()
	c := &follower{services: make(map[string]*federation.Service)}
	c.Mirror = must.Get(consumer.New(consumer.Config{Subscription: n.subscription(from...), Rules: catalog.Rules{Settle: 5 * time.Second, Retention: retention}, Publish: c.publish}))(n.t)
	must.Run(n.t, c.Run)
	return c
}

func (c *follower) publish(changes consumer.Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes.Services {
		if change.Kind() == catalog.Gone {
			delete(c.services, change.Name)
		} else {
			c.services[change.Name] = change.Packed.Unpack()
		}
	}
	if state := changes.Status.StateName(); len(c.states) == 0 || c.states[len(c.states)-1] != state {
		c.states = append(c.states, state)
	}
}

// forget forgets which states there were.
func (c *follower) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states = nil
}

// shown returns the state and the services with the address of each.
func (c *follower) shown() string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	var services []string
	for name, s := range c.services {
		services = append(services, name+"="+s.Endpoints[0].Address.String())
	}
	slices.Sort(services)
	status := c.Status()
	return status.StateName() + ": " + strings.Join(services, " ")
}

// chain runs so many relays of the origin, one behind the other, and a consumer of the last one.
func (n *testNetwork) chain(relays int) (all []*testRelay, last *follower) {
	n.t.Helper()
	from := originAddress
	for i := range relays {
		at := relayAddress(i + 1)
		all = append(all, n.relay(at, relay.Config{}, from))
		from = at
	}
	return all, n.consumer(from)
}

func relayAddress(i int) string { return fmt.Sprint("relay.example:", i) }

// toldLoss returns for how long the origin has been lost, as the end of a stream of the owner at
// that address says.
func (n *testNetwork) toldLoss(at string) time.Duration {
	n.t.Helper()
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return n.Dial(ctx, at) }
	conn := must.Get(grpc.NewClient("passthrough:///"+at, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(n.everyID.Client("relay.example", nil))))(n.t)
	defer conn.Close()
	stream := must.Get(rdpb.NewDiscoveryServiceClient(conn).EstablishStream(n.t.Context()))(n.t)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		n.t.Errorf("a stream of %s ends with %v", at, err)
	}
	return wire.ParseLost(stream.Trailer())
}

// await waits until f returns a text, and returns for how long.
func await(t *testing.T, what string, f func() string, want string) time.Duration {
	t.Helper()
	start := time.Now()
	for got := f(); got != want; got = f() {
		if time.Since(start) > 3*time.Hour {
			t.Fatalf("%s: after %v it is %q, expected %q", what, time.Since(start), got, want)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(start)
}

// part is a source.Part that notes what it is told.
type part struct {
	mu   sync.Mutex
	said []string
	loop error // what SetPath returns

	// Of the last calls; one at a time.
	away    bool
	refused map[string]int
}

func (p *part) notef(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, fmt.Sprintf(format, args...))
}

func (p *part) Replace(services []*wire.EncodedService) {
	var names []string
	for _, s := range services {
		names = append(names, s.Name())
	}
	p.notef("replace %v", names)
}

func (p *part) Update(changed []*wire.EncodedService, gone []string) {
	var names []string
	for _, s := range changed {
		names = append(names, s.Name())
	}
	slices.Sort(names)
	slices.Sort(gone)
	p.notef("update %v %v", names, gone)
}

func (p *part) SetAway(reason error) {
	was := p.away
	p.away = reason != nil
	switch {
	case p.away:
		p.notef("away: %v", reason)
	case was:
		p.notef("back")
	}
}

func (p *part) SetPath(wire.OwnerPath) error {
	p.notef("through")
	return p.loop
}

func (p *part) SetRefused(entries map[string]int) {
	if !maps.Equal(entries, p.refused) {
		p.refused = maps.Clone(entries)
		p.notef("refused %v", entries)
	}
}

// take returns what was said since the last call.
func (p *part) take() []string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	said := p.said
	p.said = nil
	return said
}
