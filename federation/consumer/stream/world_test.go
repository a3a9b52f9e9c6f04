package stream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

const ownerAddress = "owner.example:8008"

// world is one consumer and its owners on a network in memory. It must be made
// inside a bubble.
type world struct {
	network.Network

	t         *testing.T
	authority *mtls.Authority
	owner     *mtls.Source // for owner.example
	consumer  *mtls.Source
	keyPair   *tls.Certificate // the owner's
	identity  *pki.Identity
	log       testlog.Buffer
	start     time.Time
	apply     func(federation.Event) *federation.InvalidError // what the sink says, where it is not nil

	incomplete atomic.Bool // what the sink says of the catalog

	mu      sync.Mutex
	records []record // guarded by mu
}

// record is one call of the sink or the observer, or one dial.
type record struct {
	at     time.Duration // since the start of the world
	what   string        // dialed, opened, applied, lost, parked, ended, responded, refused, attempted
	detail string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, authority: pki.New(t), start: time.Now()}
	w.owner = pki.Source(t, w.authority, pki.Named("owner.example"))
	w.consumer = pki.Source(t, w.authority, pki.Named("consumer.example"))
	w.identity = &pki.Identity{Of: func(string) credentials.TransportCredentials { return w.consumer.Client("owner.example", nil) }}
	issued := must.Get(w.authority.Issue(pki.Named("owner.example")))(t)
	keyPair := must.Get(tls.X509KeyPair(issued.Cert, issued.Key))(t)
	w.keyPair = &keyPair
	return w
}

// unknown returns a certificate signed by another authority, for someone who trusts the
// world's authority.
func (w *world) unknown(name string) *mtls.Source {
	w.t.Helper()
	authority := must.Get(mtls.NewAuthority("foreign", 10*365*24*time.Hour))(w.t)
	issued := must.Get(authority.Issue(pki.Named(name)))(w.t)
	issued.CA = w.authority.PEM()
	files := pki.Files(w.t.TempDir())
	must.Do(w.t, issued.WriteFiles(files))
	return must.Get(mtls.Load(files, nil))(w.t)
}

// config returns what most tests use.
func (w *world) config() Config {
	return Config{
		Addresses: []string{ownerAddress},
		Identity:  w.identity,
		Sink:      w,
		Logger:    w.log.Logger(),
		Dial:      w.dial,
	}
}

// run runs a consumer until the test ends, or the returned function is called.
func (w *world) run(config Config) (c *Consumer, stop func()) {
	w.t.Helper()
	c = must.Get(New(config))(w.t)
	return c, must.Run(w.t, c.Run)
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
func (w *world) serve(address string, handler handler, options ...grpc.ServerOption) (stop func()) {
	return w.listenAndServe(address, func(server *grpc.Server) {
		rdpb.RegisterDiscoveryServiceServer(server, script{handler: handler})
	}, options...)
}

// listenAndServe starts an owner that has what the function registers, as serve does.
func (w *world) listenAndServe(address string, register func(*grpc.Server), options ...grpc.ServerOption) (stop func()) {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(w.owner.Server()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: firstKeepalive}),
	}, options...)...)
	register(server)
	return w.Serve(w.t, address, network.GRPC(server))
}

// accept gives every connection to the function, in a goroutine of its own.
func (w *world) accept(address string, talk func(net.Conn)) {
	listener := w.Listen(address)
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
	w.t.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
}

func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	w.record("dialed", address)
	return w.Dial(ctx, address)
}

func (w *world) record(what, detail string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, record{time.Since(w.start), what, detail})
}

// seen returns the records of that kind.
func (w *world) seen(what string) (found []record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if r.what == what {
			found = append(found, r)
		}
	}
	return found
}

// details returns the details of the records of that kind.
func (w *world) details(what string) (found []string) {
	for _, r := range w.seen(what) {
		found = append(found, r.detail)
	}
	return found
}

func (w *world) Attempted() { w.record("attempted", "") }
func (w *world) Opened()    { w.record("opened", "") }

func (w *world) Holds(context.Context) resume.Digests { return nil }

func (w *world) Announced(_ context.Context, a Announcement) error {
	if a.Marked {
		w.record("marked", "")
	}
	return nil
}

func (w *world) Apply(updates []Update) {
	for i := range updates {
		u := &updates[i]
		if u.Invalid != nil {
			w.record("passed over", u.Name)
			continue
		}
		w.record("applied", strings.TrimSpace(u.Operation.String()+" "+u.Name))
		if w.apply != nil {
			u.Invalid = w.apply(u.Event)
		}
	}
}

func (w *world) Answered(updates []Update) {
	for i := range updates {
		if u := &updates[i]; u.Invalid != nil {
			w.record("refused", string(u.Invalid.Reason))
		} else {
			w.record("responded", u.Operation.String())
		}
	}
}

func (w *world) Complete() bool { return !w.incomplete.Load() }

func (w *world) Lost(l Loss) {
	w.record("ended", l.Code.String())
	if l.Already > 0 {
		w.record("already", l.Already.String())
	}
	if l.Parked {
		w.record("parked", l.Err.Error())
		return
	}
	w.record("lost", l.Err.Error())
}

func (w *world) Waiting(until time.Time) {
	if until.IsZero() {
		w.record("waiting", "")
		return
	}
	w.record("waiting", time.Until(until).String())
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
func publish(stream rdpb.DiscoveryService_EstablishStreamServer, session string, event federation.Event) error {
	response, err := wire.Encode(event, "n", session)
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

func upsert(name string) federation.Event {
	return federation.Event{Operation: federation.Upsert, Name: name, Service: services.At(name+".example", "192.0.2.1")}
}
