package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

const ownerAddress = "owner.example:8008"

// world is a mirror and its owners on a network in memory. It must be made inside a
// bubble.
type world struct {
	network.Network

	t         *testing.T
	authority *mtls.Authority // nil without TLS
	identity  *pki.Identity
	log       testlog.Buffer

	// Read by the mirror while it runs.
	publish func(consumer.Changes)  // what Publish does besides; may be nil
	wrap    func(net.Conn) net.Conn // around each connection of the mirror; may be nil

	mu        sync.Mutex // guards the fields below
	dialed    []time.Time
	set       time.Duration                  // by which the wall clock is set forward, or back
	stopped   time.Duration                  // for which the process was stopped: both clocks went on
	readings  int                            // of the clocks
	services  map[string]*federation.Service // as the changes say
	published []consumer.Changes
	observed  []string // what the observer was told, in order
	answers   []string // of the mirror, as the scripted owner heard them
}

func newWorld(t *testing.T) *world {
	t.Helper()
	authority := pki.New(t)
	return &world{
		t: t, authority: authority, identity: pki.NewIdentity(pki.Source(t, authority, pki.Named("consumer.example"))),
		services: make(map[string]*federation.Service),
	}
}

// config returns what most tests use.
func (w *world) config() consumer.Config {
	start := time.Now()
	return consumer.Config{
		Subscription: consumer.Subscription{Addresses: []string{ownerAddress}, Identity: w.identity, Dial: w.dial},
		Rules:        catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour},
		Publish:      w.apply,
		Observer:     observer{w},
		Logger:       w.log.Logger(),
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
	return m, must.Run(w.t, m.Run)
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
			w.services[change.Name] = change.Packed.Unpack()
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
	return w.log.String()
}

// wantLog compares what was logged since the last call with lines that begin as
// the wanted ones do, except for the owner, which all of them name.
func (w *world) wantLog(want ...string) {
	w.t.Helper()
	text := w.logged()
	w.log.Reset()
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
	w.mu.Unlock()
	conn, err := w.Dial(ctx, address)
	if err != nil || w.wrap == nil {
		return conn, err
	}
	return w.wrap(conn), nil
}

// serve runs a good owner.
func (w *world) serve(services ...*federation.Service) (published *registry.Registry, stop func()) {
	w.t.Helper()
	published = registry.New()
	must.Get(published.Set(services))(w.t)
	server := must.Get(owner.New(owner.Config{
		Registry: published, Credentials: pki.Source(w.t, w.authority, pki.Named("owner.example")).Server(), Logger: slog.New(slog.DiscardHandler),
	}))(w.t)
	return published, w.Serve(w.t, ownerAddress, server.Serve)
}

// misbehave runs an owner that follows the script.
func (w *world) misbehave(script string) (stop func()) {
	w.t.Helper()
	parsed := must.Get(faultowner.Parse(script))(w.t)
	scripted := faultowner.New(faultowner.Config{
		Script: parsed, Credentials: pki.Source(w.t, w.authority, pki.Named("owner.example")).Server(),
		Event: func(what string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if strings.HasPrefix(what, "ack ") || strings.HasPrefix(what, "nack ") {
				w.answers = append(w.answers, what)
			}
		},
	})
	return w.Serve(w.t, ownerAddress, scripted.Serve)
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

// nothing is an owner that does not answer.
func nothing(ctx context.Context, _ net.Listener) error {
	<-ctx.Done()
	return nil
}
