package source

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	servicekit "github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// encoded returns a service of that name with the fqdn <host>.example.org, encoded anew
// in each call. Its description is its version.
func encoded(name, host string, version int) *wire.EncodedService {
	s := servicekit.At(host+".example.org", "192.0.2.1")
	s.Name, s.Description = name, strconv.Itoa(version)
	return must.Value(wire.NewEncoded(s))
}

// services returns one service for each text such as "a x 1": name, host and version.
func services(texts ...string) []*wire.EncodedService {
	var list []*wire.EncodedService
	for _, text := range texts {
		var name, host string
		var version int
		if _, err := fmt.Sscan(text, &name, &host, &version); err != nil {
			panic(err)
		}
		list = append(list, encoded(name, host, version))
	}
	return list
}

// render is the inverse of services, for one.
func render(s *federation.Service) string {
	host, _, _ := strings.Cut(s.FQDN.String(), ".")
	return s.Name + " " + host + " " + s.Description
}

// puppet is a source that does what a test tells its part.
type puppet struct {
	part  chan Part     // gives the part once it runs
	ended chan struct{} // closed when Run returns

	claims  func(name string, fqdn federation.FQDN) bool // nil: whatever it is; set before the catalog runs
	mu      sync.Mutex                                   // guards the fields below
	hidden  map[string]string
	refused []registry.Refusal
}

func newPuppet() *puppet {
	return &puppet{part: make(chan Part, 1), ended: make(chan struct{}), hidden: make(map[string]string)}
}

// Run implements Source.
func (p *puppet) Run(ctx context.Context, part Part) {
	defer close(p.ended)
	p.part <- part
	<-ctx.Done()
}

// MayClaim implements NameClaimer.
func (p *puppet) MayClaim(name string, fqdn federation.FQDN) bool {
	return p.claims == nil || p.claims(name, fqdn)
}

// HiddenBy implements OutcomeListener.
func (p *puppet) HiddenBy(service, by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if by == "" {
		delete(p.hidden, service)
	} else {
		p.hidden[service] = by
	}
}

// RefusedBy implements OutcomeListener.
func (p *puppet) RefusedBy(r registry.Refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = append(p.refused, r)
}

// told returns what the puppet was told to be hidden.
func (p *puppet) told() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.hidden)
}

// hasEnded reports whether the source has ended.
func (p *puppet) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stage is a catalog that runs in a bubble of testing/synctest.
type stage struct {
	*testing.T
	*Catalog

	registry *registry.Registry
	logged   *strings.Builder // read when everything is blocked
	puppets  map[string]*puppet
	parts    map[string]Part
	running  sync.WaitGroup
	ctx      context.Context //nolint:containedctx // of the catalog
}

// play is called in a bubble, with a stage whose catalog set makes and lets run meanwhile.
func play(t *testing.T, do func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &stage{T: t, registry: registry.New(), logged: &strings.Builder{}, puppets: make(map[string]*puppet), parts: make(map[string]Part), ctx: ctx}
		defer s.running.Wait()
		defer cancel()
		do(s)
		synctest.Wait()
	})
}

// list has a catalog run of puppets of these names.
func (s *stage) list(names ...string) {
	s.Helper()
	var entries []Entry
	for _, name := range names {
		entries = append(entries, s.entry(name))
	}
	s.set(entries...)
}

// entry returns that of a new puppet.
func (s *stage) entry(name string) Entry {
	s.puppets[name] = newPuppet()
	return Entry{Name: "source " + name, Source: s.puppets[name]}
}

// set has a catalog of these sources run, and returns when they do.
func (s *stage) set(entries ...Entry) {
	s.Helper()
	s.Catalog = NewCatalog(Config{Registry: s.registry, Logger: slog.New(slog.NewTextHandler(s.logged, nil)), Name: "test", Sources: entries})
	s.running.Go(func() {
		if err := s.Catalog.Run(s.ctx); err != nil {
			s.Errorf("Run failed with %v", err)
		}
		for name, p := range s.puppets {
			if !p.hasEnded() {
				s.Errorf("Run has ended before %s", name)
			}
		}
	})
	synctest.Wait()
	for name, p := range s.puppets {
		s.parts[name] = <-p.part
	}
}

// expect fails unless these are the services that are published.
func (s *stage) expect(when string, want ...string) {
	s.Helper()
	synctest.Wait()
	if got := published(s.T, s.registry); !slices.Equal(got, want) {
		s.Errorf("%s: %q is published, expected %q", when, got, want)
	}
}

// expectUnavailable fails unless the registry is unavailable for a reason with the
// text.
func (s *stage) expectUnavailable(when, text string) {
	s.Helper()
	synctest.Wait()
	subscription := registrytest.Listen(s.registry)
	defer subscription.Close()
	if event, err := subscription.NextEvent(s.Context()); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), text) {
		s.Errorf("%s: a subscriber gets %v, %v, expected Unavailable without the reason %s", when, event.Operation, err, text)
	}
	if got := s.Status().Unavailable; !strings.Contains(got, text) {
		s.Errorf("%s: the status says that the catalog is unavailable for the reason %q, expected %q", when, got, text)
	}
}

// expectOpen fails unless these are the services that are published, and the catalog has no end.
func (s *stage) expectOpen(when string, want ...string) {
	s.Helper()
	synctest.Wait()
	subscription := registrytest.Subscribe(s.registry)
	defer subscription.Close()
	var got []string
	for _, u := range subscription.TakeUpdates(nil, 1000) {
		if u.Operation != wire.Upsert {
			s.Errorf("%s: a subscriber is told %v", when, u.Operation)
			continue
		}
		got = append(got, render(u.DecodedEvent().Service))
	}
	if !slices.Equal(got, want) {
		s.Errorf("%s: %q is published, expected %q", when, got, want)
	}
	foreign := registrytest.ListenAs(s.registry, registry.Consumer{})
	defer foreign.Close()
	if _, err := foreign.NextEvent(s.Context()); status.Code(err) != codes.Unavailable {
		s.Errorf("%s: a subscriber that does not await the end gets %v, expected Unavailable", when, err)
	}
}

// published returns the catalog of a registry, in order, or the error of it. The catalog has an
// end.
func published(t *testing.T, r *registry.Registry) []string {
	t.Helper()
	subscription := registrytest.Listen(r)
	defer subscription.Close()
	var list []string
	for {
		event, err := subscription.NextEvent(t.Context())
		switch {
		case err != nil:
			return []string{err.Error()}
		case event.Operation == wire.End:
			return list
		}
		list = append(list, render(event.Service))
	}
}
