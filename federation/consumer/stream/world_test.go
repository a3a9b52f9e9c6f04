package stream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const ownerAddress = "owner.example:8008"

// world is one consumer and its owners on a network in memory. It must be made
// inside a bubble.
type world struct {
	t         *testing.T
	authority *mtls.Authority
	owner     *mtls.Source // for owner.example
	consumer  *mtls.Source
	keyPair   *tls.Certificate // the owner's
	start     time.Time

	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	changed   chan struct{}
	records   []record
	log       bytes.Buffer
	apply     func(federation.Event) error // what the sink says, where it is not nil
}

// record is one call of the sink or the observer, or one dial.
type record struct {
	at     time.Duration // since the start of the world
	what   string        // dialed, opened, applied, lost, parked, ended, responded, refused, attempted
	detail string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	authority := must.Get(mtls.NewAuthority("test", 10*365*24*time.Hour))(t)
	w := &world{
		t:         t,
		authority: authority,
		start:     time.Now(),
		listeners: make(map[string]*bufconn.Listener),
		changed:   make(chan struct{}),
	}
	w.owner = w.source(authority, "owner.example")
	issued := must.Get(authority.Issue(mtls.Leaf{DNSNames: []string{"owner.example"}}))(t)
	keyPair := must.Get(tls.X509KeyPair(issued.Cert, issued.Key))(t)
	w.keyPair = &keyPair
	w.consumer = w.source(authority, "consumer.example")
	return w
}

// source returns a certificate signed by the authority for someone who trusts
// the world's authority.
func (w *world) source(authority *mtls.Authority, name string) *mtls.Source {
	w.t.Helper()
	issued := must.Get(authority.Issue(mtls.Leaf{Name: name, DNSNames: []string{name}}))(w.t)
	issued.CA = w.authority.PEM()
	dir := w.t.TempDir()
	files := mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	must.Do(w.t, issued.WriteFiles(files))
	return must.Get(mtls.Load(files, nil))(w.t)
}

// config returns what most tests use.
func (w *world) config() Config {
	return Config{
		Addresses: []string{ownerAddress},
		Identity:  w.identity(func() credentials.TransportCredentials { return w.consumer.Client("owner.example", nil) }),
		Sink:      w,
		Observer:  observer{w},
		Logger:    slog.New(slog.NewTextHandler(lockedWriter{w}, nil)),
		Dial:      w.dial,
	}
}

// identity is an Identity that changes when the test says so: see change. An
// mtls.Consumer waits for the file system, which no bubble knows.
type identity struct {
	credentials func() credentials.TransportCredentials
	changed     func() <-chan struct{}
}

func (i identity) Credentials(string) credentials.TransportCredentials { return i.credentials() }
func (i identity) Changed() <-chan struct{}                            { return i.changed() }

func (identity) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// identity returns one with the credentials.
func (w *world) identity(credentials func() credentials.TransportCredentials) Identity {
	return identity{credentials, w.currentChange}
}

// run runs a consumer until the test ends, or the returned function is called.
func (w *world) run(config Config) (stop func()) {
	w.t.Helper()
	c := must.Get(New(config))(w.t)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run returns %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
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
	listener := w.listen(address)
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(w.owner.Server()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minKeepalive}),
	}, options...)...)
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		w.unlisten(address)
		server.Stop()
		<-done
	})
	w.t.Cleanup(stop)
	return stop
}

// accept gives every connection to the function, in a goroutine of its own.
func (w *world) accept(address string, talk func(net.Conn)) {
	listener := w.listen(address)
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

func (w *world) listen(address string) *bufconn.Listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners[address] = bufconn.Listen(256 << 10)
	return w.listeners[address]
}

// timesOut has connections to the address time out, until something listens there.
func (w *world) timesOut(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners[address] = nil
}

func (w *world) unlisten(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.listeners, address)
}

func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	w.record("dialed", address)
	w.mu.Lock()
	listener, away := w.listeners[address]
	w.mu.Unlock()
	if listener == nil && away {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	if listener == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return listener.DialContext(ctx)
}

func (w *world) currentChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// change does what a change of the certificate files does.
func (w *world) change() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
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

// lines returns what was logged.
func (w *world) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(strings.Lines(w.log.String()))
}

func (w *world) Opened(context.Context) error {
	w.record("opened", "")
	return nil
}

func (w *world) Holds(context.Context) resume.Digests { return nil }

func (w *world) Announced(_ context.Context, a Announcement) error {
	if a.Marked {
		w.record("marked", "")
	}
	return nil
}

func (w *world) Apply(_ context.Context, updates []Update) ([]*federation.InvalidError, error) {
	refusals := make([]*federation.InvalidError, len(updates))
	for i := range updates {
		u := &updates[i]
		if u.Invalid != nil {
			w.record("passed over", u.Name)
			continue
		}
		w.record("applied", strings.TrimSpace(u.Operation.String()+" "+u.Name))
		if w.apply == nil {
			continue
		}
		err := w.apply(u.Event)
		if err != nil && !errors.As(err, &refusals[i]) {
			return nil, err
		}
	}
	return refusals, nil
}

func (*world) Answered(context.Context) {}

func (w *world) Lost(_ context.Context, err error, parked bool) {
	if parked {
		w.record("parked", err.Error())
		return
	}
	w.record("lost", err.Error())
}

type observer struct{ w *world }

func (o observer) Attempted()                                  { o.w.record("attempted", "") }
func (o observer) Responded(op federation.Operation, _ string) { o.w.record("responded", op.String()) }

func (o observer) Refused(err *federation.InvalidError) { o.w.record("refused", string(err.Reason)) }

func (o observer) Waiting(until time.Time) {
	if until.IsZero() {
		o.w.record("waiting", "")
		return
	}
	o.w.record("waiting", time.Until(until).String())
}

func (o observer) Ended(code codes.Code) { o.w.record("ended", code.String()) }

type lockedWriter struct{ w *world }

func (l lockedWriter) Write(p []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(p)
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
	fqdn, err := federation.ParseFQDN(name + ".example")
	address, err2 := federation.ParseAddress("192.0.2.1")
	if err := errors.Join(err, err2); err != nil {
		panic(err)
	}
	return federation.Event{Operation: federation.Upsert, Name: name, Service: &federation.Service{
		Name:      name,
		FQDN:      fqdn,
		Endpoints: []federation.Endpoint{{Address: address, Port: 80}},
		Instances: []federation.Instance{{ID: "i", Protocol: federation.HTTP}},
	}}
}
