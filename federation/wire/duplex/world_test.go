package duplex_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

const (
	westID = "spiffe://west.example/peer" // which listens
	eastID = "spiffe://east.example/peer" // which dials

	westAddress = "west.example:8443"
)

// world is two peers on a network in memory, with mutual TLS.
type world struct {
	network.Network

	t          *testing.T
	authority  *mtls.Authority
	west       *peer
	east       *peer
	publishing func(consumer.Changes) // called when either publishes what it got

	mu   sync.Mutex
	conn net.Conn // the last one that was dialed
}

// peer is one side: what it publishes, and what it has of the other side.
type peer struct {
	source   *pki.Party
	registry *registry.Registry
	server   *owner.Server
	mirror   *consumer.Mirror
}

// newWorld makes two peers that do not run yet.
func newWorld(t *testing.T, window int, rules catalog.Rules) *world {
	t.Helper()
	w := &world{t: t, authority: pki.New(t), publishing: func(consumer.Changes) {}}
	acceptor := stream.NewAcceptor()
	w.west, w.east = &peer{source: w.source(westID)}, &peer{source: w.source(eastID)}
	for _, p := range []*peer{w.west, w.east} {
		p.registry = registry.New()
		c := owner.Config{Registry: p.registry, Credentials: p.source.Server(), Window: window, Logger: slog.New(slog.DiscardHandler)}
		subscription := consumer.Subscription{Accept: acceptor}
		if p == w.west {
			c.Consume = func(ids []federation.ID) owner.Subscriber {
				if slices.Contains(ids, must.Value(federation.ParseID(eastID))) {
					return acceptor
				}
				return nil
			}
		}
		p.server = must.Get(owner.New(c))(t)
		if p == w.east {
			identity := p.source.As(mtls.Consumer{IDs: []federation.ID{must.Value(federation.ParseID(westID))}})
			subscription = consumer.Subscription{Addresses: []string{westAddress}, Identity: identity, Publisher: p.server, Dial: w.dial}
		}
		p.mirror = must.Get(consumer.New(consumer.Config{
			Name: "other", Subscription: subscription, Rules: rules, Publish: func(c consumer.Changes) { w.publishing(c) },
		}))(t)
	}
	return w
}

func (w *world) source(id string) *pki.Party {
	w.t.Helper()
	return pki.NewParty(w.t, w.authority, mtls.Leaf{Name: "peer", URIs: []string{id}}, 10*365*24*time.Hour)
}

func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := w.Dial(ctx, address)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.conn = conn
	}
	return conn, err
}

// cut cuts the connection.
func (w *world) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn.Close()
}

// listen runs the server of west until the test ends or stop is called.
func (w *world) listen() (stop func()) {
	return w.Serve(w.t, westAddress, w.west.server.Serve)
}

// connect opens a connection to west with the identity.
func (w *world) connect(identity string) rdpb.DiscoveryServiceClient {
	w.t.Helper()
	conn := must.Get(grpc.NewClient("passthrough:///"+westAddress,
		grpc.WithTransportCredentials(w.source(identity).Client("", []federation.ID{must.Value(federation.ParseID(westID))})),
		grpc.WithContextDialer(w.dial)))(w.t)
	w.t.Cleanup(func() { conn.Close() })
	return rdpb.NewDiscoveryServiceClient(conn)
}

// service returns a service that takes about so many octets.
func service(name string, port uint16, octets int) *federation.Service {
	s := services.At(name+".fed.example", "192.0.2.1")
	s.Endpoints[0].Port = port
	s.Instances[0].Metadata = pairs(octets)
	return s
}

// pairs returns metadata that take about so many octets.
func pairs(octets int) []federation.Pair {
	const each = 1000
	m := make(map[string]string)
	for i := range octets / each {
		m[fmt.Sprint("k", i)] = strings.Repeat("x", each)
	}
	return federation.Pairs(m)
}

// publish adds services to what the peer publishes.
func (p *peer) publish(t *testing.T, prefix string, n, octets int) {
	t.Helper()
	for i := range n {
		must.Get(p.registry.Upsert(service(fmt.Sprintf("%s%d", prefix, i), 443, octets)))(t)
	}
}

// has returns what the peer has of the other one: name to state, which ends in "stale" for
// what is.
func (p *peer) has() map[string]string {
	has := make(map[string]string)
	p.mirror.View(func(services iter.Seq2[packed.Service, catalog.Announced], _ catalog.Summary) {
		for s := range services {
			u := s.Unpack()
			has[u.Name] = fmt.Sprint(u.Endpoints[0].Port)
		}
	})
	return has
}

// shows reports what the peer has, in one line with the state of its mirror.
func (p *peer) shows() string {
	status := p.mirror.Status()
	var words []string
	has := p.has()
	for _, name := range slices.Sorted(maps.Keys(has)) {
		words = append(words, name+":"+has[name])
	}
	return status.StateName() + " " + strings.Join(words, " ")
}
