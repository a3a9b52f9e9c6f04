package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

const ownerAddress = simulation.OwnerAddress

// testConsumer is one consumer, and the sink of what its owners say, in a simulation. They speak
// plain text unless the test calls secure.
type testConsumer struct {
	*simulation.Simulation

	owner    *mtls.Source // for owner.example; nil speaks plain text
	identity *pki.Identity
	apply    func(wire.Event) *federation.InvalidError // what the sink says, where it is not nil

	incomplete atomic.Bool // what the sink says of the catalog
}

func newTestConsumer(t *testing.T) *testConsumer {
	t.Helper()
	return &testConsumer{Simulation: simulation.New(t), identity: &pki.Identity{
		Of: func(string) credentials.TransportCredentials { return insecure.NewCredentials() },
	}}
}

// secure has both sides speak TLS.
func (sim *testConsumer) secure() {
	sim.owner = sim.Source("owner.example")
	sim.as(sim.Source("consumer.example"))
}

// as has the consumer show the certificate.
func (sim *testConsumer) as(consumer *mtls.Source, owners ...federation.ID) {
	sim.identity.Of = func(string) credentials.TransportCredentials { return consumer.Client("owner.example", owners) }
}

// unknown returns a certificate signed by another authority, for someone who trusts that of the
// simulation.
func (sim *testConsumer) unknown(name string) *mtls.Source {
	sim.Helper()
	authority := must.Get(mtls.NewAuthority("foreign", 10*365*24*time.Hour))(sim.T)
	issued := must.Get(authority.Issue(pki.Named(name)))(sim.T)
	issued.CA = sim.Authority().PEM()
	files := pki.Files(sim.TempDir())
	must.Do(sim.T, issued.WriteFiles(files))
	return must.Get(mtls.Load(files, nil))(sim.T)
}

// config returns what most tests use.
func (sim *testConsumer) config() Config {
	return Config{
		Addresses: []string{ownerAddress},
		Identity:  sim.identity,
		Sink:      sim,
		Logger:    sim.Logged.Logger(),
		Dial:      sim.Dial,
	}
}

// run runs a consumer until the test ends, or the returned function is called.
func (sim *testConsumer) run(config Config) (c *Consumer, stop func()) {
	sim.Helper()
	c = must.Get(New(config))(sim.T)
	return c, must.Run(sim.T, c.Run)
}

type handler func(rdpb.DiscoveryService_EstablishStreamServer) error

type script struct {
	rdpb.UnimplementedDiscoveryServiceServer
	handler handler
}

func (s script) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	return s.handler(stream)
}

// serve starts an owner that follows the handler, until the test ends or the
// returned function is called.
func (sim *testConsumer) serve(address string, handler handler, options ...grpc.ServerOption) (stop func()) {
	return sim.listenAndServe(address, func(server *grpc.Server) {
		rdpb.RegisterDiscoveryServiceServer(server, script{handler: handler})
	}, options...)
}

// listenAndServe starts an owner that has what the function registers, as serve does.
func (sim *testConsumer) listenAndServe(address string, register func(*grpc.Server), options ...grpc.ServerOption) (stop func()) {
	owner := insecure.NewCredentials()
	if sim.owner != nil {
		owner = sim.owner.Server()
	}
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(owner),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: firstKeepalive}),
	}, options...)...)
	register(server)
	return sim.Serve(sim.T, address, network.GRPC(server))
}

// accept gives every connection to the function, in a goroutine of its own.
func (sim *testConsumer) accept(address string, talk func(net.Conn)) {
	listener := sim.Listen(address)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				talk(conn)
			})
		}
	})
	sim.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
}

func (sim *testConsumer) AttemptStarted() { sim.Record("attempted", "") }
func (sim *testConsumer) StreamOpened()   { sim.Record("opened", "") }

func (sim *testConsumer) HeldDigests(context.Context) resume.Digests { return nil }

func (sim *testConsumer) AcceptHeader(_ context.Context, a Announcement) error {
	if a.Marked {
		sim.Record("marked", "")
	}
	return nil
}

func (sim *testConsumer) ApplyUpdates(updates []Update) {
	for i := range updates {
		u := &updates[i]
		if u.Invalid != nil {
			sim.Record("passed over", u.Name)
			continue
		}
		sim.Record("applied", strings.TrimSpace(u.Operation.String()+" "+u.Name))
		if sim.apply != nil {
			u.Invalid = sim.apply(u.Event)
		}
	}
}

func (sim *testConsumer) UpdatesAnswered(updates []Update) {
	for i := range updates {
		if u := &updates[i]; u.Invalid != nil {
			sim.Record("refused", string(u.Invalid.Reason))
		} else {
			sim.Record("responded", u.Operation.String())
		}
	}
}

func (sim *testConsumer) IsComplete() bool { return !sim.incomplete.Load() }

func (sim *testConsumer) StreamLost(l Loss) {
	sim.Record("ended", l.Code.String())
	if e, ok := errors.AsType[sessionError](l.Err); ok {
		sim.Record("verdict", fmt.Sprint(e.verdict))
	}
	if l.Already > 0 {
		sim.Record("already", l.Already.String())
	}
	if l.Parked {
		sim.Record("parked", l.Err.Error())
		return
	}
	sim.Record("lost", l.Err.Error())
}

func (sim *testConsumer) AttemptScheduled(until time.Time) {
	if until.IsZero() {
		sim.Record("waiting", "")
		return
	}
	sim.Record("waiting", time.Until(until).String())
}

// subscription receives the initial request and returns the session's context.
func subscription(stream rdpb.DiscoveryService_EstablishStreamServer) (string, error) {
	message, err := stream.Recv()
	if err != nil {
		return "", err
	}
	request, err := wire.ParseRequest(message.GetRequest())
	if err != nil {
		return "", err
	}
	if !request.Initial || request.Context == "" || message.GetRequest().GetResourceUrl() != wire.ResourceURL {
		return "", fmt.Errorf("the first request is %v", message)
	}
	return request.Context, nil
}

// exchange sends a response and returns the request that answers it.
func exchange(stream rdpb.DiscoveryService_EstablishStreamServer, response *rdpb.StreamResponse) (*rdpb.StreamRequest, error) {
	if err := stream.Send(&rdpb.BidirectionalStream{Response: response}); err != nil {
		return nil, err
	}
	message, err := stream.Recv()
	return message.GetRequest(), err
}

// publish sends one event and insists on its acknowledgement.
func publish(stream rdpb.DiscoveryService_EstablishStreamServer, session string, event wire.Event) error {
	response, err := wiretest.Response(event, "n", session)
	if err != nil {
		return err
	}
	request, err := exchange(stream, response)
	if err != nil {
		return err
	}
	if request.GetStatus() == nil || request.GetStatus().GetCode() != 0 {
		return fmt.Errorf("not acknowledged: %v", request)
	}
	return nil
}

// good publishes one service, the end of the catalog, and then stays silent.
func good(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	session, err := subscription(stream)
	if err != nil {
		return err
	}
	if err := publish(stream, session, upsert("a")); err != nil {
		return err
	}
	return silent(stream)
}

// silent waits for the consumer to end the stream.
func silent(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

func upsert(name string) wire.Event {
	return wire.Event{Operation: wire.Upsert, Name: name, Service: services.At(name+".example", "192.0.2.1")}
}
