package agent_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

const ownerAddress = "owner.example:8008"

// testAgent is an agent and its owners on a network in memory. It must be made
// inside a bubble.
type testAgent struct {
	network.Network

	t         *testing.T
	authority *mtls.Authority
	agent     *agent.Agent
	files     mtls.Files     // of the consumer
	store     consumer.Store // default: files
	set       time.Duration  // by which the wall-clock is set forward, or back
	began     time.Time

	pausing atomic.Pointer[func()] // is called by the next import that works for a while, once

	log testlog.Buffer

	mu        sync.Mutex
	dialed    int
	counts    map[string]int // what the observer was told
	forgotten []string
	sources   []*mtls.Source // that are followed
}

func newTestAgent(t *testing.T) *testAgent {
	t.Helper()
	w := &testAgent{t: t, authority: pki.New(t), counts: make(map[string]int), began: time.Now()}
	w.files = w.issue("consumer.example")
	w.start()
	return w
}

// start makes a new agent, as the start of a process does.
func (w *testAgent) start() {
	w.agent = agent.New(agent.Config{
		Logger:   w.log.Logger(),
		Observer: observer{w},
		Dial:     w.dial,
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
		Clock: func() (time.Time, time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.wall(), time.Since(w.began)
		},
	})
}

// wall is the wall-clock.
func (w *testAgent) wall() time.Time { return time.Now().Round(0).Add(w.set) }

// setClock sets the wall-clock forward, or back. As the other clock stands still,
// it is a suspension as well.
func (w *testAgent) setClock(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set += by
}

// issue returns files with a certificate for the name.
func (w *testAgent) issue(name string) mtls.Files {
	w.t.Helper()
	return pki.Issue(w.t, w.authority, pki.Named(name))
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
	w.t.Helper()
	must.Do(w.t, must.Get(w.authority.Issue(pki.Named("consumer.example")))(w.t).WriteFiles(w.files))
	w.mu.Lock()
	sources := slices.Clone(w.sources)
	w.mu.Unlock()
	for _, s := range sources {
		s.Reload()
	}
}

func (w *testAgent) dial(ctx context.Context, address string) (net.Conn, error) {
	w.mu.Lock()
	w.dialed++
	w.mu.Unlock()
	return w.Dial(ctx, address)
}

// attempts returns how often owners were dialed so far.
func (w *testAgent) attempts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dialed
}

// source is the certificate of the owner at the address.
func (w *testAgent) source(address string) *mtls.Source {
	w.t.Helper()
	host, _, _ := net.SplitHostPort(address)
	return must.Get(mtls.Load(w.issue(host), nil))(w.t)
}

// server is what both kinds of owners are.
type server interface {
	Serve(ctx context.Context, listener net.Listener) error
}

// run runs an owner until the test ends or the returned function is called.
func (w *testAgent) run(address string, s server) (stop func()) {
	return w.Serve(w.t, address, s.Serve)
}

// serve runs a good owner.
func (w *testAgent) serve(address string, services ...*federation.Service) (published *registry.Registry, stop func()) {
	w.t.Helper()
	published = registry.New()
	must.Get(published.Set(services))(w.t)
	s := must.Get(owner.New(owner.Config{
		Registry: published, Credentials: w.source(address).Server(), Logger: slog.New(slog.DiscardHandler),
	}))(w.t)
	return published, w.run(address, s)
}

// misbehave runs an owner that follows the script.
func (w *testAgent) misbehave(address, script string) (stop func()) {
	w.t.Helper()
	return w.run(address, faultowner.New(faultowner.Config{
		Script: must.Get(faultowner.Parse(script))(w.t), Credentials: w.source(address).Server(),
		Event: func(what string) {
			if strings.HasPrefix(what, "wrong ") {
				w.t.Error(what)
			}
		},
	}))
}

// owner is what a federation block says by default.
func (w *testAgent) owner(addresses ...string) agent.OwnerConfig {
	return agent.OwnerConfig{
		Identity: mtls.Origin{Files: w.files}, Subscription: consumer.Subscription{Addresses: addresses},
		Rules: catalog.Rules{Retention: 24 * time.Hour, Settle: 5 * time.Second},
	}
}

// block is a server block of fed.example with the owners.
func (w *testAgent) block(configuration any, owners ...agent.OwnerConfig) agent.BlockConfig {
	w.t.Helper()
	c := agent.BlockConfig{Configuration: configuration}
	for _, o := range owners {
		o.Name = cmp.Or(o.Name, o.Consumer.OwnerName(o.Subscription.Addresses))
		c.Add(o, zone.Owner{Origins: []federation.FQDN{services.FQDN("fed.example")}, TTL: 60, NegativeTTL: 5})
	}
	return c
}

// attach attaches a block until the test ends.
func (w *testAgent) attach(c agent.BlockConfig) *agent.Block {
	w.t.Helper()
	b := must.Get(w.agent.Attach(c))(w.t)
	a := w.agent
	w.t.Cleanup(func() { a.Detach(b) })
	return b
}

// state is the state of the only owner, with its services and how many of them
// are stale, once what is under way has come to rest: the writer announces a state
// after the change that led to it.
func (w *testAgent) state() string {
	w.t.Helper()
	synctest.Wait()
	all := w.agent.Owners(time.Now())
	if len(all) != 1 {
		w.t.Fatalf("%d owners, want 1", len(all))
	}
	return fmt.Sprintf("%s %d/%d", all[0].State, all[0].Services, all[0].Stale)
}

// counted returns what the observer was told under the name.
func (w *testAgent) counted(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[what]
}

type observer struct{ w *testAgent }

func (o observer) count(what ...string) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.w.counts[strings.Join(what, " ")]++
}

func (o observer) Responded(owner string, op federation.Operation) {
	o.count("responded", owner, op.String())
}

func (o observer) Refused(owner string, r federation.Reason) { o.count("refused", owner, string(r)) }
func (o observer) Ended(owner, code string)                  { o.count("ended", owner, code) }
func (o observer) PersistFailed(owner string)                { o.count("persist", owner) }
func (o observer) Visible(time.Duration)                     {}

func (o observer) Forgotten(owner string) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.w.forgotten = append(o.w.forgotten, owner)
}

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
	for _, rr := range reply.Answer(nil, &result, name, 0) {
		said += fmt.Sprintf("%s %d", rr.(*dns.A).A, rr.Header().Ttl)
	}
	if result.Stale() {
		said += " stale"
	}
	return said
}
