package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// world is a program and its owners, which are scripted, on a network in memory. It must
// be made inside a bubble.
type world struct {
	*testing.T

	start time.Time

	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	records   []record // what owners were told, dials, and changes of status
	log       bytes.Buffer
	identity  chan struct{}
}

// record is something that has happened.
type record struct {
	at   time.Duration // since the start of the world
	what string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{T: t, start: time.Now(), listeners: make(map[string]*bufconn.Listener), identity: make(chan struct{})}
}

func (w *world) recordf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, record{time.Since(w.start), fmt.Sprintf(format, args...)})
}

// times returns when something has happened since the last call that begins with what,
// and forgets everything else.
func (w *world) times(what string) (found []time.Duration) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if strings.HasPrefix(r.what, what) {
			found = append(found, r.at)
		}
	}
	w.records = nil
	return found
}

// happened returns what has happened since the last call that contains one of the words.
func (w *world) happened(words ...string) string {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []string
	for _, r := range w.records {
		for _, word := range words {
			if strings.Contains(r.what, word) {
				found = append(found, r.what)
				break
			}
		}
	}
	w.records = nil
	return strings.Join(found, "\n")
}

// expect fails the test unless what has happened since the last call, as far as it
// contains one of the words, is as wanted.
func (w *world) expect(want string, words ...string) {
	w.Helper()
	if got := w.happened(words...); got != want {
		w.Errorf("after %v has happened:\n%s\nwant:\n%s", time.Since(w.start), got, want)
	}
}

// Credentials implements Identity.
func (*world) Credentials(string) credentials.TransportCredentials { return insecure.NewCredentials() }

// Changed implements Identity.
func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.identity
}

// Run implements Identity.
func (*world) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// renew changes the credentials.
func (w *world) renew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.identity)
	w.identity = make(chan struct{})
}

func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	w.recordf("dial %s", address)
	w.mu.Lock()
	listener := w.listeners[address]
	w.mu.Unlock()
	switch {
	case address == "hangs:1":
		<-ctx.Done()
		return nil, ctx.Err()
	case listener == nil:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return listener.DialContext(ctx)
}

// conversation is a stream as an owner sees it.
type conversation struct {
	grpc.BidiStreamingServer[registrationv1.RegisterRequest, registrationv1.RegisterResponse]

	world *world
	name  string
}

// script is what an owner does with a stream that is open on both sides.
type script func(c conversation) error

type scripted struct {
	registrationv1.UnimplementedRegistrationServiceServer

	register func(registrationv1.RegistrationService_RegisterServer) error
}

func (s scripted) Register(stream registrationv1.RegistrationService_RegisterServer) error {
	return s.register(stream)
}

// owner serves an address with a script until the test ends, or the returned function is
// called.
func (w *world) owner(address string, do script) (stop func()) {
	return w.serve(address, func(c conversation) error {
		if err := c.Send(opened(version)); err != nil {
			return err
		}
		if m, err := c.Recv(); err != nil || m.GetOpen().GetVersion() != version {
			return fmt.Errorf("begins with %v, %w", m, err)
		}
		return do(c)
	})
}

// serve is like owner for a script that opens the stream itself.
func (w *world) serve(address string, do script) (stop func()) {
	name, _, _ := strings.Cut(address, ":")
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	registrationv1.RegisterRegistrationServiceServer(server, scripted{register: func(s registrationv1.RegistrationService_RegisterServer) error {
		return do(conversation{s, w, name})
	}})
	w.mu.Lock()
	w.listeners[address] = listener
	w.mu.Unlock()
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() {
		w.mu.Lock()
		if w.listeners[address] == listener {
			delete(w.listeners, address)
		}
		w.mu.Unlock()
		server.Stop()
		serving.Wait()
	})
	w.Cleanup(stop)
	return stop
}

// next receives a message and records it.
func (c conversation) next() (*registrationv1.RegisterRequest, error) {
	m, err := c.Recv()
	if err != nil {
		return nil, err
	}
	switch {
	case m.GetActive() != nil:
		c.world.recordf("%s: active %s", c.name, m.GetActive().GetNode())
	case m.GetClear() != nil:
		c.world.recordf("%s: clear %s", c.name, m.GetClear().GetNode())
	case m.GetClose() != nil:
		c.world.recordf("%s: close %v %s", c.name, m.GetClose().GetReason(), m.GetClose().GetText())
	}
	return m, nil
}

// grants is the script of an owner in order, which grants a ttl for everything.
func grants(ttl time.Duration) script {
	return func(c conversation) error {
		for {
			m, err := c.next()
			switch {
			case err != nil:
				return err
			case m.GetClose() != nil:
				return nil
			case m.GetActive() != nil:
				if err := c.Send(granted(m, ttl)); err != nil {
					return err
				}
			}
		}
	}
}

func opened(version uint32) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Open{Open: &registrationv1.Open{Version: version}}}
}

func granted(m *registrationv1.RegisterRequest, ttl time.Duration) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Granted{Granted: &registrationv1.Granted{
		Service: m.GetActive().GetService(), Node: m.GetActive().GetNode(), Ttl: durationpb.New(ttl), Uri: "https://192.0.2.1:443",
	}}}
}

func refused(m *registrationv1.RegisterRequest, rule string) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Refused{Refused: &registrationv1.Refused{
		Service: m.GetActive().GetService(), Node: m.GetActive().GetNode(), Rule: rule, Reason: "it is " + rule,
	}}}
}

func closed(reason registrationv1.Close_Reason, after time.Duration) *registrationv1.RegisterResponse {
	return &registrationv1.RegisterResponse{Message: &registrationv1.RegisterResponse_Close{Close: &registrationv1.Close{
		Reason: reason, Text: "going", RetryAfter: durationpb.New(after),
	}}}
}

// provider returns one that registers with owners in the given order, and a node.
func (w *world) provider(addresses ...string) *Provider {
	w.Helper()
	p, err := New(Config{
		Addresses: addresses, Identity: w, Dial: w.dial,
		OnChange: func(s Status) {
			text := fmt.Sprintf("status %s %v", s.Node.URI, s.State)
			switch {
			case s.State == Refused:
				text += " " + s.Rule + ": " + s.Reason
			case s.State == Registered:
				text += " " + s.Owner + " " + s.URI
			case s.Err != nil:
				text += ": " + s.Err.Error()
			}
			w.recordf("%s", text)
		},
		Logger: slog.New(slog.NewTextHandler(&lockedWriter{w}, nil)),
	})
	if err != nil {
		w.Fatal(err)
	}
	p.next = 0
	return p
}

type lockedWriter struct{ w *world }

func (l lockedWriter) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(b)
}

// set sets nodes of a service.
func (w *world) set(p *Provider, uris ...string) {
	w.Helper()
	for _, uri := range uris {
		if err := p.Set(Node{Service: "shop.fed.example", URI: uri}); err != nil {
			w.Fatal(err)
		}
	}
}

// run runs a provider until the returned function is called, or the test ends. The function
// returns how long the end has taken.
func (w *world) run(p *Provider) (stop func() time.Duration) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceValue(func() time.Duration {
		begun := time.Now()
		cancel()
		if err := <-done; err != nil {
			w.Errorf("Run: %v", err)
		}
		return time.Since(begun)
	})
	w.Cleanup(func() { stop() })
	return stop
}

// bubble runs a test in one.
func bubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newWorld(t)) })
}

var errGone = errors.New("gone")
