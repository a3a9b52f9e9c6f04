package duplex_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	westID = "spiffe://west.example/peer" // which listens
	eastID = "spiffe://east.example/peer" // which dials
)

// world is two peers on a network in memory, with mutual TLS.
type world struct {
	t          *testing.T
	authority  *mtls.Authority
	west       *peer
	east       *peer
	publishing func() // called when either publishes what it got

	mu       sync.Mutex
	listener *bufconn.Listener // nil: nobody listens
	conn     net.Conn          // the last one that was dialed
}

// peer is one side: what it publishes, and what it has of the other side.
type peer struct {
	source   *mtls.Source
	registry *owner.Registry
	server   *owner.Server
	mirror   *consumer.Mirror
}

// newWorld makes two peers that do not run yet.
func newWorld(t *testing.T, window int, rules catalog.Rules) *world {
	t.Helper()
	authority, err := mtls.NewAuthority("test", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, authority: authority, publishing: func() {}}
	acceptor := stream.NewAcceptor()
	w.west, w.east = &peer{source: w.source(westID)}, &peer{source: w.source(eastID)}
	for _, p := range []*peer{w.west, w.east} {
		p.registry = owner.NewRegistry()
		c := owner.Config{Registry: p.registry, Credentials: p.source.Server(), Window: window, Logger: slog.New(slog.DiscardHandler)}
		subscription := consumer.Subscription{Accept: acceptor}
		if p == w.west {
			c.Consume = func(ids []federation.ID) owner.Subscriber {
				if slices.Contains(ids, id(t, eastID)) {
					return acceptor
				}
				return nil
			}
		}
		if p.server, err = owner.New(c); err != nil {
			t.Fatal(err)
		}
		if p == w.east {
			subscription = consumer.Subscription{Addresses: []string{"west.example:8443"}, Identity: identity{w}, Publisher: p.server, Dial: w.dial}
		}
		if p.mirror, err = consumer.New(consumer.Config{Name: "other", Subscription: subscription, Rules: rules, Publish: func(consumer.Changes) { w.publishing() }}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func id(t *testing.T, text string) federation.ID {
	t.Helper()
	return must.Get(federation.ParseID(text))(t)
}

func (w *world) source(id string) *mtls.Source {
	w.t.Helper()
	issued := must.Get(w.authority.Issue(mtls.Leaf{Name: "peer", URIs: []string{id}}))(w.t)
	dir := w.t.TempDir()
	files := mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	must.Do(w.t, issued.WriteFiles(files))
	return must.Get(mtls.Load(files, nil))(w.t)
}

// identity is that of east. An mtls.Consumer waits for the file system, which no bubble
// knows.
type identity struct{ *world }

func (i identity) Credentials(string) credentials.TransportCredentials {
	return i.east.source.Client("", []federation.ID{id(i.t, westID)})
}
func (identity) Changed() <-chan struct{} { return nil }

func (identity) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (w *world) dial(ctx context.Context, _ string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := w.listener.DialContext(ctx)
	w.conn = conn
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
	listener := bufconn.Listen(256 << 10)
	w.mu.Lock()
	w.listener = listener
	w.mu.Unlock()
	return w.run(func(ctx context.Context) error {
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.listener = nil
		}()
		return w.west.server.Serve(ctx, listener)
	})
}

// run runs f until the test ends or stop is called.
func (w *world) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// connect opens a connection to west with the identity.
func (w *world) connect(identity string) rdpb.DiscoveryServiceClient {
	w.t.Helper()
	conn := must.Get(grpc.NewClient("passthrough:///west",
		grpc.WithTransportCredentials(w.source(identity).Client("", []federation.ID{id(w.t, westID)})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx, "") })))(w.t)
	w.t.Cleanup(func() { conn.Close() })
	return rdpb.NewDiscoveryServiceClient(conn)
}

// service returns a service that takes about so many octets.
func service(t *testing.T, name string, port uint16, octets int) *federation.Service {
	t.Helper()
	fqdn, err1 := federation.ParseFQDN(name + ".fed.example")
	address, err2 := federation.ParseAddress("192.0.2.1")
	must.Do(t, errors.Join(err1, err2))
	return &federation.Service{
		Name: name, FQDN: fqdn,
		Endpoints: []federation.Endpoint{{Address: address, Port: port}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS, Metadata: pairs(octets)}},
	}
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
		must.Get(p.registry.Upsert(service(t, fmt.Sprintf("%s%d", prefix, i), 443, octets)))(t)
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
