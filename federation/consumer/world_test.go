package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

const ownerAddress = "owner.example:8008"

// world is a mirror and its owners on a network in memory. It must be made inside a
// bubble.
type world struct {
	t         *testing.T
	authority *mtls.Authority // nil without TLS, as the next
	consumer  *mtls.Source

	// Read by the mirror while it runs.
	publish func(consumer.Changes)  // what Publish does besides; may be nil
	wrap    func(net.Conn) net.Conn // around each connection of the mirror; may be nil

	mu        sync.Mutex // guards the fields below
	listeners map[string]*bufconn.Listener
	changed   chan struct{} // closed when the identity changes
	dialed    []time.Time
	set       time.Duration                  // by which the wall clock is set forward, or back
	stopped   time.Duration                  // for which the process was stopped: both clocks went on
	readings  int                            // of the clocks
	services  map[string]*federation.Service // as the changes say
	published []consumer.Changes
	observed  []string // what the observer was told, in order
	answers   []string // of the mirror, as the scripted owner heard them
	log       bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := newPlainWorld(t)
	var err error
	if w.authority, err = mtls.NewAuthority("test", 100*365*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	w.consumer = w.source("consumer.example")
	return w
}

// newPlainWorld returns a world without TLS: the owners have to serve without as well.
// Fuzzing counts what it covers in package crypto too, which takes nearly all of the time
// and is another with each handshake.
func newPlainWorld(t *testing.T) *world {
	t.Helper()
	return &world{
		t: t, listeners: make(map[string]*bufconn.Listener), changed: make(chan struct{}),
		services: make(map[string]*federation.Service),
	}
}

func (w *world) source(name string) *mtls.Source {
	w.t.Helper()
	dir := w.t.TempDir()
	files := mtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	issued := must.Get(w.authority.Issue(mtls.Leaf{Name: name, DNSNames: []string{name}}))(w.t)
	must.Do(w.t, issued.WriteFiles(files))
	return must.Get(mtls.Load(files, nil))(w.t)
}

// identity is a stream.Identity that changes when the test says so. That of
// package mtls waits for the file system, which no bubble knows.
type identity struct{ *world }

func (i identity) Credentials(address string) credentials.TransportCredentials {
	if i.consumer == nil {
		return insecure.NewCredentials()
	}
	return mtls.Consumer{Source: i.consumer}.Credentials(address)
}

func (i identity) Changed() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.changed
}

func (identity) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// config returns what most tests use.
func (w *world) config() consumer.Config {
	start := time.Now()
	return consumer.Config{
		Subscription: consumer.Subscription{Addresses: []string{ownerAddress}, Identity: identity{w}, Dial: w.dial},
		Rules:        catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour},
		Publish:      w.apply,
		Observer:     observer{w},
		Logger:       slog.New(slog.NewTextHandler(lockedWriter{w}, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
		Clock: func() (time.Time, time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.readings++
			return time.Now().Round(0).Add(w.set + w.stopped), time.Since(start) + w.stopped
		},
	}
}

// run runs a mirror until the test ends, or the returned function is called.
func (w *world) run(config consumer.Config) (m *consumer.Mirror, stop func()) {
	w.t.Helper()
	m = must.Get(consumer.New(config))(w.t)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run returns %v", err)
		}
	})
	w.t.Cleanup(stop)
	return m, stop
}

// apply is what the mirrors of a world publish to.
func (w *world) apply(c consumer.Changes) {
	if w.publish != nil {
		w.publish(c)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published = append(w.published, c)
	for _, change := range c.Services {
		if change.Op() == catalog.Gone {
			delete(w.services, change.Name)
		} else {
			w.services[change.Name] = change.Service()
		}
	}
}

// names returns the names of the services that were published, sorted, once what is
// under way has come to rest.
func (w *world) names() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for name := range w.services {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// state returns the state of the mirror with its services and how many of them are
// stale, once what is under way has come to rest.
func state(m *consumer.Mirror) string {
	synctest.Wait()
	s := m.Status()
	return fmt.Sprintf("%s %d/%d", s.StateName(), s.Services, s.Stale)
}

// await waits until the mirror has the state, and returns for how long.
func (w *world) await(m *consumer.Mirror, want string) time.Duration {
	w.t.Helper()
	start := time.Now()
	for state(m) != want {
		if time.Since(start) > 3*time.Hour {
			w.t.Fatalf("after %v the owner is %s and not %s", time.Since(start), state(m), want)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(start)
}

// take returns the changes that were published since the last call, once what is
// under way has come to rest.
func (w *world) take() []consumer.Changes {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	changes := w.published
	w.published = nil
	return changes
}

// attempts returns how often the owner was dialed.
func (w *world) attempts() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dialed)
}

// reads returns how often the clocks were read.
func (w *world) reads() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readings
}

// counted returns what the observer was told under the name, once what is under way
// has come to rest.
func (w *world) counted(what string) int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, told := range w.observed {
		if told == what {
			n++
		}
	}
	return n
}

// told returns what the observer was told, in order, once what is under way has come
// to rest.
func (w *world) told() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.observed)
}

// logged returns what was logged, once what is under way has come to rest.
func (w *world) logged() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// wantLog compares what was logged since the last call with lines that begin as
// the wanted ones do, except for the owner, which all of them name.
func (w *world) wantLog(want ...string) {
	w.t.Helper()
	text := w.logged()
	w.mu.Lock()
	w.log.Reset()
	w.mu.Unlock()
	lines := slices.Collect(strings.Lines(text))
	if len(lines) != len(want) {
		w.t.Errorf("%d lines, want %d:\n%s", len(lines), len(want), text)
		return
	}
	for i, line := range lines {
		if line = strings.Replace(line, " owner="+ownerAddress, "", 1); !strings.HasPrefix(line, "level="+want[i]) {
			w.t.Errorf("line %d is\n%swant\nlevel=%s", i, line, want[i])
		}
	}
}

// setClock sets the wall clock forward, or back.
func (w *world) setClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set += by
}

// stop lets time pass in which the process does not run.
func (w *world) stop(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped += d
}

// wall is the wall clock.
func (w *world) wall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Round(0).Add(w.set + w.stopped)
}

// heard returns the answers that scripted owners have had, once what is under way
// has come to rest.
func (w *world) heard() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.answers)
}

func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	w.mu.Lock()
	w.dialed = append(w.dialed, time.Now())
	listener := w.listeners[address]
	w.mu.Unlock()
	if listener == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := listener.DialContext(ctx)
	if err != nil || w.wrap == nil {
		return conn, err
	}
	return w.wrap(conn), nil
}

// serveOn runs an owner until the test ends, or the returned function is called.
func (w *world) serveOn(address string, serve func(ctx context.Context, listener net.Listener) error) (stop func()) {
	listener := bufconn.Listen(256 << 10)
	w.mu.Lock()
	w.listeners[address] = listener
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener) }()
	stop = sync.OnceFunc(func() {
		w.mu.Lock()
		if w.listeners[address] == listener {
			delete(w.listeners, address)
		}
		w.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("owner failed: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// serve runs a good owner.
func (w *world) serve(services ...*federation.Service) (registry *owner.Registry, stop func()) {
	w.t.Helper()
	registry = owner.NewRegistry()
	must.Get(registry.Set(services))(w.t)
	server := must.Get(owner.New(owner.Config{
		Registry: registry, Credentials: w.source("owner.example").Server(), Logger: slog.New(slog.DiscardHandler),
	}))(w.t)
	return registry, w.serveOn(ownerAddress, server.Serve)
}

// rotate tells the mirror that the identity has changed.
func (w *world) rotate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// misbehave runs an owner that follows the script.
func (w *world) misbehave(script string) (stop func()) {
	w.t.Helper()
	parsed := must.Get(faultowner.Parse(script))(w.t)
	scripted := faultowner.New(faultowner.Config{
		Script: parsed, Credentials: w.source("owner.example").Server(),
		Event: func(what string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if strings.HasPrefix(what, "ack ") || strings.HasPrefix(what, "nack ") {
				w.answers = append(w.answers, what)
			}
		},
	})
	return w.serveOn(ownerAddress, scripted.Serve)
}

type lockedWriter struct{ w *world }

func (l lockedWriter) Write(p []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(p)
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

type observer struct{ *world }

func (o observer) count(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.observed = append(o.observed, what)
}

func (o observer) Responded(op federation.Operation, _ string) { o.count("responded " + op.String()) }

func (o observer) Refused(reason *federation.InvalidError) {
	o.count("refused " + string(reason.Reason))
}
func (o observer) Ended(code codes.Code) { o.count("ended " + code.String()) }
func (o observer) FileFailed()           { o.count("file failed") }

func (o observer) Published(time.Duration) { o.count("published") }

// service is a service with one endpoint, named after the first label of its fqdn.
func service(t *testing.T, name, address string) *federation.Service {
	t.Helper()
	fqdn := must.Get(federation.ParseFQDN(name))(t)
	a := must.Get(federation.ParseAddress(address))(t)
	label, _, _ := strings.Cut(name, ".")
	return &federation.Service{
		Name: label, FQDN: fqdn,
		Endpoints: []federation.Endpoint{{Address: a, Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}
}

// nothing is an owner that does not answer.
func nothing(ctx context.Context, _ net.Listener) error {
	<-ctx.Done()
	return nil
}
