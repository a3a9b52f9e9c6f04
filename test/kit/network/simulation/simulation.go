// Package simulation has what tests share whose owners and consumers live on a network in
// memory, in the time of a bubble of testing/synctest.
package simulation

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// OwnerAddress is that of the owner where a test has one.
const OwnerAddress = "owner.example:8008"

// Simulation is a network in memory, the authority of those who are on it, their clocks, and a
// record of what has happened. Fixtures of packages embed it. It must be made inside a bubble.
// What returns something of it first waits until what is under way has come to rest, except for
// the clocks and certificates.
type Simulation struct {
	*testing.T
	network.Network

	Logged testlog.Buffer
	Wrap   func(net.Conn) net.Conn // around each connection that Dial makes; may be nil

	Start time.Time

	mu        sync.Mutex // guards the fields below
	authority *mtls.Authority
	sources   map[string]*mtls.Source // by name
	records   []Record
	set       time.Duration // by which the wall clock is set forward, or back
	stopped   time.Duration // for which the process was stopped: both clocks went on
}

// Record is something that has happened.
type Record struct {
	At     time.Duration // since the start of the simulation
	What   string
	Detail string
}

// New returns a simulation in which nothing has happened.
func New(t *testing.T) *Simulation {
	return &Simulation{T: t, Start: time.Now(), sources: make(map[string]*mtls.Source)}
}

// Run runs a test with its fixture in a bubble.
func Run[F any](t *testing.T, fixture func(*testing.T) F, test func(*testing.T, F)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, fixture(t)) })
}

// Authority returns the one that has signed the certificates of Source.
func (s *Simulation) Authority() *mtls.Authority {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.authority == nil {
		s.authority = pki.New(s)
	}
	return s.authority
}

// Source returns the certificate of who has the name: always the same.
func (s *Simulation) Source(name string) *mtls.Source {
	s.Helper()
	authority := s.Authority()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources[name] == nil {
		s.sources[name] = pki.Source(s, authority, pki.Named(name))
	}
	return s.sources[name]
}

// Party makes who has the name show certificates of that lifetime, each until the test replaces it.
func (s *Simulation) Party(name string, lifetime time.Duration) *pki.Party {
	s.Helper()
	party := pki.NewParty(s, s.Authority(), pki.Named(name), lifetime)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources[name] = party.Source
	return party
}

// at returns the certificate of who listens at the address.
func (s *Simulation) at(address string) *mtls.Source {
	s.Helper()
	host, _, _ := strings.Cut(address, ":")
	return s.Source(host)
}

// Publish serves the registry at the address until the test ends or the returned function is
// called.
func (s *Simulation) Publish(address string, published *registry.Registry) (server *owner.Server, stop func()) {
	s.Helper()
	server = must.Get(owner.New(owner.Config{
		Catalogs: map[string]*registry.Registry{"": published}, Credentials: s.at(address).Server(), Logger: slog.New(slog.DiscardHandler),
	}))(s)
	return server, s.Serve(s, address, server.Serve)
}

// Owner is Publish for these services.
func (s *Simulation) Owner(address string, services ...*federation.Service) (published *registry.Registry, stop func()) {
	s.Helper()
	published = registry.New()
	must.Get(published.Set(services))(s)
	_, stop = s.Publish(address, published)
	return published, stop
}

// Misbehave runs an owner at the address that follows the script. What it hears is recorded as
// "ack" and "nack", and what it should not hear fails the test.
func (s *Simulation) Misbehave(address, script string) (scripted *faultowner.Owner, stop func()) {
	s.Helper()
	scripted = faultowner.New(faultowner.Config{
		Script: must.Get(faultowner.Parse(script))(s), Credentials: s.at(address).Server(),
		Event: func(event string) {
			switch what, detail, _ := strings.Cut(event, " "); what {
			case "ack", "nack":
				s.Record(what, detail)
			case "wrong":
				s.Error(event)
			}
		},
	})
	return scripted, s.Serve(s, address, scripted.Serve)
}

// Dial connects to who listens at the address, and is recorded as "dialed".
func (s *Simulation) Dial(ctx context.Context, address string) (net.Conn, error) {
	s.Record("dialed", address)
	conn, err := s.Network.Dial(ctx, address)
	if err != nil || s.Wrap == nil {
		return conn, err
	}
	return s.Wrap(conn), nil
}

// Record records something that happens now.
func (s *Simulation) Record(what, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, Record{time.Since(s.Start), what, detail})
}

// Records returns what was recorded under one of the names, in order; without a name everything.
func (s *Simulation) Records(names ...string) (found []Record) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if len(names) == 0 || slices.Contains(names, r.What) {
			found = append(found, r)
		}
	}
	return found
}

// Details returns the details of what was recorded under one of the names.
func (s *Simulation) Details(names ...string) (found []string) {
	for _, r := range s.Records(names...) {
		found = append(found, r.Detail)
	}
	return found
}

// Reset drops what was recorded.
func (s *Simulation) Reset() {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = nil
}

// Await waits until f returns a text, and returns for how long.
func (s *Simulation) Await(f func() string, want string) time.Duration {
	s.Helper()
	start := time.Now()
	for {
		synctest.Wait()
		got, took := f(), time.Since(start)
		if got == want {
			return took
		}
		if took > 3*time.Hour {
			s.Fatalf("after %v it is %q, expected %q", took, got, want)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// SetClock sets the wall clock forward, or back.
func (s *Simulation) SetClock(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set += by
}

// Suspend lets time pass in which the process does not run, and its timers stand still.
func (s *Simulation) Suspend(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped += d
}

// Clock returns the wall clock, and one that is never set.
func (s *Simulation) Clock() (wall time.Time, elapsed time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Round(0).Add(s.set + s.stopped), time.Since(s.Start) + s.stopped
}
