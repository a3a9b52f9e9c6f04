package agent_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

const ownerAddress = simulation.OwnerAddress

// testAgent is an agent and its owners. It must be made inside a bubble.
type testAgent struct {
	*simulation.Simulation

	agent *agent.Agent
	files mtls.Files     // of the consumer
	store consumer.Store // default: files

	pausing atomic.Pointer[func()] // is called by the next import that works for a while, once

	mu      sync.Mutex
	sources []*mtls.Source // that are followed; guarded by mu
}

func newTestAgent(t *testing.T) *testAgent {
	t.Helper()
	w := &testAgent{Simulation: simulation.New(t)}
	w.files = w.issue("consumer.example")
	w.start()
	return w
}

// start makes a new agent, as the start of a process does.
func (w *testAgent) start() {
	w.agent = agent.New(agent.Config{
		Logger:   w.Logged.Logger(),
		Observer: observer{w.Simulation},
		Dial:     w.Dial,
		Follow:   w.follow,
		Store:    w.store,
		Pause: func() func(time.Duration) bool {
			return func(time.Duration) bool {
				f := w.pausing.Swap(nil)
				if f != nil {
					(*f)()
				}
				return f != nil
			}
		},
		Clock: w.Clock,
	})
}

// issue returns files with a certificate for the name.
func (w *testAgent) issue(name string) mtls.Files {
	w.Helper()
	return pki.Issue(w, w.Authority(), pki.Named(name))
}

// follow knows the source, so that rotate can have it read its files.
func (w *testAgent) follow(ctx context.Context, source *mtls.Source) error {
	w.mu.Lock()
	w.sources = append(w.sources, source)
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources = slices.DeleteFunc(w.sources, func(s *mtls.Source) bool { return s == source })
	return nil
}

// rotate replaces the consumer's certificate.
func (w *testAgent) rotate() {
	w.Helper()
	must.Do(w, must.Get(w.Authority().Issue(pki.Named("consumer.example")))(w).WriteFiles(w.files))
	w.mu.Lock()
	sources := slices.Clone(w.sources)
	w.mu.Unlock()
	for _, s := range sources {
		s.Reload()
	}
}

// attempts returns how often owners were dialed so far.
func (w *testAgent) attempts() int { return len(w.Records("dialed")) }

// owner is what a federation block says by default.
func (w *testAgent) owner(addresses ...string) agent.OwnerConfig {
	return agent.OwnerConfig{
		Identity: mtls.Origin{Files: w.files}, Subscription: consumer.Subscription{Addresses: addresses},
		Rules: catalog.Rules{Retention: 24 * time.Hour, Settle: 5 * time.Second},
	}
}

// block is a server block of fed.example with the owners.
func (w *testAgent) block(configuration any, owners ...agent.OwnerConfig) agent.BlockConfig {
	w.Helper()
	c := agent.BlockConfig{Configuration: configuration}
	for _, o := range owners {
		o.Name = cmp.Or(o.Name, o.Consumer.OwnerName(o.Subscription.Addresses))
		c.AddOwner(o, zone.Owner{Origins: []federation.FQDN{services.FQDN("fed.example")}, TTL: 60, NegativeTTL: 5})
	}
	return c
}

// attach attaches a block until the test ends.
func (w *testAgent) attach(c agent.BlockConfig) *agent.Block {
	w.Helper()
	b := must.Get(w.agent.Attach(c))(w)
	a := w.agent
	w.Cleanup(func() { a.Detach(b) })
	return b
}

// state is the state of the only owner, with its services and how many of them
// are stale, once what is under way has come to rest: the writer announces a state
// after the change that led to it.
func (w *testAgent) state() string {
	w.Helper()
	synctest.Wait()
	all := w.agent.OwnerReports(time.Now())
	if len(all) != 1 {
		w.Fatalf("%d owners, want 1", len(all))
	}
	return fmt.Sprintf("%s %d/%d", all[0].State, all[0].Services, all[0].Stale)
}

// observer records what is refused, not saved, or forgotten.
type observer struct{ *simulation.Simulation }

func (o observer) Refused(owner string, r federation.Reason) {
	o.Record("refused", owner+" "+string(r))
}
func (o observer) PersistFailed(owner string)     { o.Record("not saved", owner) }
func (o observer) Forgotten(owner string)         { o.Record("forgotten", owner) }
func (observer) Responded(string, wire.Operation) {}
func (observer) Ended(string, string)             {}
func (observer) Visible(time.Duration)            {}

// look is what the block says of the addresses of a name: the address, the TTL
// and whether it is stale, or a code.
func look(b *agent.Block, name string) string {
	name = dns.Fqdn(name)
	result := b.Zone().Lookup(name, dns.TypeA, time.Now())
	switch result.Kind {
	case zone.NameError:
		return "NXDOMAIN"
	case zone.Unsynced, zone.Unheard:
		return "SERVFAIL"
	case zone.NoData:
		return "NODATA"
	case zone.Success:
	default:
		return fmt.Sprintf("kind %d", result.Kind)
	}
	var said string
	for _, rr := range reply.AppendAnswer(nil, &result, name, 0) {
		said += fmt.Sprintf("%s %d", rr.(*dns.A).A, rr.Header().Ttl)
	}
	if result.IsStale() {
		said += " stale"
	}
	return said
}
