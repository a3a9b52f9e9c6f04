// Package registrytest is for tests of a registry and of what serves one: services, policies
// and consumers that come back, and a model in which a registry is compared with a naive
// evaluation of the same rules.
package registrytest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// Service returns a service in the given version. Equal arguments make equal
// services.
func Service(name string, version int) *federation.Service {
	s := services.At(name+".example.org", "192.0.2.1")
	s.Name, s.Description = name, fmt.Sprintf("version %d", version)
	return s
}

// Expressible returns a service that v1alpha1 can express, at that version.
func Expressible(name string, version int) *federation.Service {
	s := Service(name, version)
	s.SANs = []string{"spiffe://owner.example/" + name}
	return s
}

// Expressibles returns the services of that many names, at version 1, which both versions
// of the API can express.
func Expressibles(n int) map[string]*federation.Service {
	all := make(map[string]*federation.Service)
	for i := range n {
		name := fmt.Sprintf("s%03d", i)
		all[name] = Expressible(name, 1)
	}
	return all
}

// Catalog returns that many services.
func Catalog(n int) []*federation.Service {
	var all []*federation.Service
	for i := range n {
		all = append(all, Service(fmt.Sprintf("s%05d", i), 1))
	}
	return all
}

// Set makes services the catalog of a registry, which must accept them.
func Set(tb testing.TB, r *registry.Registry, services []*federation.Service) {
	tb.Helper()
	if _, err := r.Set(services); err != nil {
		tb.Error(err)
	}
}

// Upsert adds a service to a registry, which must accept it.
func Upsert(tb testing.TB, r *registry.Registry, s *federation.Service) {
	tb.Helper()
	if _, err := r.Upsert(s); err != nil {
		tb.Error(err)
	}
}

// Encoded returns a service, which must be valid, in the form of a registry.
func Encoded(tb testing.TB, s *federation.Service) *wire.EncodedService {
	tb.Helper()
	return must.Get(wire.NewEncoded(s))(tb)
}

// ID returns an identity, which must be valid.
func ID(tb testing.TB, text string) federation.ID {
	tb.Helper()
	return must.Get(federation.ParseID(text))(tb)
}

// Policy returns the policy of the rules, which must be without mistakes.
func Policy(tb testing.TB, rules ...policy.Rule) *policy.Policy {
	tb.Helper()
	p, mistakes := policy.New(rules)
	if len(mistakes) > 0 {
		tb.Fatalf("the policy has mistakes: %v", mistakes)
	}
	return p
}

// Of returns a rule that tells the identities of the services with these names, as
// Service makes them.
func Of(names string, ids ...string) policy.Rule {
	r := policy.Rule{To: ids}
	for name := range strings.FieldsSeq(names) {
		r.FQDNs = append(r.FQDNs, name+".example.org")
	}
	return r
}

// Stripped returns the rule without descriptions. Show renders an upsert by it as
// "upsert a".
func Stripped(r policy.Rule) policy.Rule {
	r.Strip = []string{"description"}
	return r
}

// Show renders an event as "upsert web 2", "upsert web" without a description, "delete
// web" or "end".
func Show(e wire.Event) string {
	text := e.Operation.String()
	if e.Name != "" {
		text += " " + e.Name
	}
	if e.Service != nil {
		text += strings.TrimPrefix(e.Service.Description, "version")
	}
	return text
}

// Drain takes all events that a subscription has now.
func Drain(s *registry.Subscription) []string {
	var got []string
	for {
		updates := s.TakeUpdates(nil, 1)
		if len(updates) == 0 {
			return got
		}
		got = append(got, Show(updates[0].DecodedEvent()))
	}
}

// Subscribe subscribes to a registry that has no policy.
func Subscribe(r *registry.Registry) *registry.Subscription {
	return r.SubscribeAs(registry.Consumer{Awaits: true})
}

// Listener is a subscriber that waits for events.
type Listener struct {
	*registry.Subscription
	over chan struct{} // closed when it ends because the registry is unavailable
}

// Listen subscribes to a registry, as Subscribe does.
func Listen(r *registry.Registry) *Listener {
	return ListenAs(r, registry.Consumer{Awaits: true})
}

// ListenAs subscribes to a registry as a consumer.
func ListenAs(r *registry.Registry, c registry.Consumer) *Listener {
	l, stop := &Listener{over: make(chan struct{})}, c.Stop
	c.Stop = func(lost time.Time) {
		if stop != nil {
			stop(lost)
		}
		close(l.over)
	}
	l.Subscription = r.SubscribeAs(c)
	return l
}

// NextEvent waits for the next event and returns it. It fails when ctx ends, with its cause, and
// once the registry has become unavailable, with a status of the code Unavailable. Only one
// goroutine may call NextEvent at a time.
func (l *Listener) NextEvent(ctx context.Context) (wire.Event, error) {
	for ctx.Err() == nil {
		if updates := l.TakeUpdates(nil, 1); len(updates) > 0 {
			return updates[0].DecodedEvent(), nil
		}
		select {
		case <-l.over:
			return wire.Event{}, registry.ErrUnavailable
		default:
		}
		select {
		case <-l.Wake():
		case <-l.over:
		case <-ctx.Done():
		}
	}
	return wire.Event{}, context.Cause(ctx)
}

// IsOver reports whether the subscription has ended because the registry is unavailable.
func (l *Listener) IsOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// Subscribers returns how many subscribers a registry has.
func Subscribers(r *registry.Registry) int {
	n := 0
	for _, class := range r.AudiencesOf("") {
		n += class.Consumers
	}
	return n
}

// MaxMessage has room for every service of most tests.
const MaxMessage = 16 << 20

// SumOf returns the digests of those of the services for which a message of that size has room.
func SumOf(tb testing.TB, maxMessage int, services map[string]*federation.Service) resume.Digests {
	tb.Helper()
	var sum resume.CatalogSum
	for name, s := range services {
		if value := Encoded(tb, s).Resource().GetValue(); registry.FitsMessage(len(value), maxMessage) {
			sum.Add(name, value)
		}
	}
	return sum.Digests()
}

// Resumed is a subscription that does not begin with the whole catalog.
type Resumed struct {
	*Listener
	*registry.Resumption
}

// ResumeAs subscribes as a consumer that holds what has these digests. It returns nil where
// that has to be told everything.
func ResumeAs(r *registry.Registry, ids []federation.ID, maxMessage int, theirs resume.Digests) *Resumed {
	s := ListenAs(r, registry.Consumer{IDs: ids, Awaits: true})
	if held := s.Resume(maxMessage, theirs); held != nil {
		return &Resumed{s, held}
	}
	s.Close()
	return nil
}
