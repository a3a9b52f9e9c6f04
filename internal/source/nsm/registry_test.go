package nsm

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/networkservicemesh/api/pkg/api/registry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/sourcetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// fakeRegistry answers as the registry in memory does, and misbehaves where a test says
// so. It expires nothing by itself.
type fakeRegistry struct {
	registry.UnimplementedNetworkServiceEndpointRegistryServer

	mu        sync.Mutex
	listener  *bufconn.Listener // nil while it is down
	server    *grpc.Server
	serving   sync.WaitGroup
	endpoints map[string]*registry.NetworkServiceEndpoint
	watches   map[chan *registry.NetworkServiceEndpointResponse]struct{}
	services  *networkServices // nil: it does not tell of network services
	lists     int              // that were answered

	beforeWatch func()      // is called before a watch begins
	afterList   func()      // is called before the end of each list
	silent      bool        // a watch begins with nothing
	deaf        bool        // watches are told nothing
	stalled     atomic.Bool // connections carry nothing any more, in either direction
}

func newFakeRegistry(t *testing.T) *fakeRegistry {
	t.Helper()
	f := &fakeRegistry{
		endpoints: make(map[string]*registry.NetworkServiceEndpoint),
		watches:   make(map[chan *registry.NetworkServiceEndpointResponse]struct{}),
	}
	f.start()
	t.Cleanup(f.stop)
	return f
}

// start starts the registry. If it runs, it takes connections all the time, and those that
// there are end.
func (f *fakeRegistry) start() {
	listener, server := bufconn.Listen(1<<16), grpc.NewServer()
	registry.RegisterNetworkServiceEndpointRegistryServer(server, f)
	if f.services != nil {
		registry.RegisterNetworkServiceRegistryServer(server, f.services)
	}
	f.serving.Go(func() { _ = server.Serve(listener) })
	f.mu.Lock()
	former := f.server
	f.listener, f.server = listener, server
	f.mu.Unlock()
	if former != nil {
		former.Stop()
	}
}

func (f *fakeRegistry) stop() {
	f.mu.Lock()
	server := f.server
	f.listener, f.server = nil, nil
	f.mu.Unlock()
	if server != nil {
		server.Stop()
		f.serving.Wait()
	}
}

// lose makes the registry forget everything, as a restart does.
func (f *fakeRegistry) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.endpoints)
}

func (f *fakeRegistry) dial(ctx context.Context) (net.Conn, error) {
	f.mu.Lock()
	listener := f.listener
	f.mu.Unlock()
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	conn, err := listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return &stallingConn{Conn: conn, stalled: &f.stalled, closed: make(chan struct{})}, nil
}

// stallingConn carries nothing when it is stalled, as when the other machine is gone.
type stallingConn struct {
	net.Conn

	stalled *atomic.Bool
	once    sync.Once
	closed  chan struct{}
}

func (c *stallingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.stalled.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *stallingConn) Write(p []byte) (int, error) {
	if c.stalled.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *stallingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// put registers or refreshes an endpoint.
func (f *fakeRegistry) put(endpoint *registry.NetworkServiceEndpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endpoints[endpoint.GetName()] = endpoint
	f.tell(&registry.NetworkServiceEndpointResponse{NetworkServiceEndpoint: endpoint})
}

// remove unregisters an endpoint.
func (f *fakeRegistry) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	endpoint := f.endpoints[name]
	delete(f.endpoints, name)
	f.tell(&registry.NetworkServiceEndpointResponse{NetworkServiceEndpoint: endpoint, Deleted: true})
}

func (f *fakeRegistry) tell(r *registry.NetworkServiceEndpointResponse) {
	for watch := range f.watches {
		if !f.deaf {
			watch <- proto.CloneOf(r)
		}
	}
}

func (f *fakeRegistry) all() []*registry.NetworkServiceEndpointResponse {
	var all []*registry.NetworkServiceEndpointResponse
	for _, endpoint := range f.endpoints { // in any order
		all = append(all, &registry.NetworkServiceEndpointResponse{NetworkServiceEndpoint: proto.CloneOf(endpoint)})
	}
	return all
}

// Find implements registry.NetworkServiceEndpointRegistryServer.
func (f *fakeRegistry) Find(query *registry.NetworkServiceEndpointQuery, stream registry.NetworkServiceEndpointRegistry_FindServer) error {
	if !query.GetWatch() {
		return f.list(stream)
	}
	if f.beforeWatch != nil {
		f.beforeWatch()
	}
	watch := make(chan *registry.NetworkServiceEndpointResponse, 1<<16)
	f.mu.Lock()
	if !f.silent {
		for _, r := range f.all() {
			watch <- r
		}
	}
	f.watches[watch] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watches, watch)
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case r := <-watch:
			if err := stream.Send(r); err != nil {
				return err
			}
		}
	}
}

func (f *fakeRegistry) list(stream registry.NetworkServiceEndpointRegistry_FindServer) error {
	f.mu.Lock()
	all := f.all()
	f.lists++
	f.mu.Unlock()
	for _, r := range all {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	if f.afterList != nil {
		f.afterList()
	}
	return nil
}

// stand is a source that follows a registry, in a bubble.
type stand struct {
	*fakeRegistry
	*sourcetest.Stand
}

// showInstances shows the IDs of the instances of a service.
func showInstances(s *federation.Service) string {
	var all []string
	for _, in := range s.Instances {
		all = append(all, in.ID)
	}
	return strings.Join(all, " ")
}

// runStand runs test in a bubble, with a source that follows a registry from the moment
// at which prepare has returned.
func runStand(t *testing.T, prepare func(*fakeRegistry), test func(*testing.T, *stand)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stand{newFakeRegistry(t), sourcetest.NewStand(showInstances)}
		if prepare != nil {
			prepare(s.fakeRegistry)
		}
		src := newSource(t)
		src.dial = s.dial
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { src.Run(ctx, s.Part) })
		synctest.Wait()
		test(t, s)
	})
}

func newSource(t testing.TB) *Source {
	t.Helper()
	return New(Config{Registry: "tcp://127.0.0.1:5002", Name: "nsm", Zone: services.FQDN("nsm.example"), Logger: slog.New(slog.DiscardHandler)})
}

// networkServices is the registry of network services, with one.
type networkServices struct {
	registry.UnimplementedNetworkServiceRegistryServer

	payload atomic.Value // of web
}

// Find implements registry.NetworkServiceRegistryServer.
func (n *networkServices) Find(_ *registry.NetworkServiceQuery, stream registry.NetworkServiceRegistry_FindServer) error {
	payload, ok := n.payload.Load().(string)
	if !ok {
		return status.Error(codes.Internal, "not now")
	}
	return stream.Send(&registry.NetworkServiceResponse{NetworkService: &registry.NetworkService{Name: "web", Payload: payload}})
}

// nse returns an endpoint of network services that never expires.
func nse(name string, services ...string) *registry.NetworkServiceEndpoint {
	return &registry.NetworkServiceEndpoint{Name: name, NetworkServiceNames: services, Url: "tcp://192.0.2.1:5000"}
}

// expiring is nse with an expiration_time, from now on.
func expiring(d time.Duration, name string, services ...string) *registry.NetworkServiceEndpoint {
	e := nse(name, services...)
	e.ExpirationTime = timestamppb.New(time.Now().Add(d))
	return e
}

// wantAway checks whether the registry is said to be away.
func (s *stand) wantAway(t *testing.T, want bool) {
	t.Helper()
	synctest.Wait()
	if away := s.Part.AwayReason(); (away != nil) != want {
		t.Errorf("away: %v, want it: %t", away, want)
	}
}
