// Package registration is the source of a catalog that programs fill themselves: they
// register, keep alive, and expire.
//
// What is published is what the store holds. A node is stored first, then published, and
// then granted; it is deleted from the store first, and then withdrawn. So while a store is away,
// nothing is withdrawn and nothing new is registered.
//
//	provider ──▶ Register ─▶ table ─▶ part
//	                         │  ▲
//	            committer ◀──┘  └── watcher
//	                 └────▶ store ────┘
//
// A [table.Table] behind one mutex has all the state. Four goroutines change it: the stream of a
// provider, the clock that ends nodes and, where there is a store, its watcher and the committer,
// which commits all changes at once that have come meanwhile. Each of them publishes the consequences
// and answers the providers before it does anything else. Without a store, a change counts as stored at
// once.
package registration

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/internal/table"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// Config says how a source works. Whoever reads a configuration has checked it.
type Config struct {
	Name   string             // before the names of its services
	Owner  string             // name of this owner, different from others that share the store
	Rules  *rules.Rules       // who may register what
	Store  store.Store        // nil: memory
	Policy wire.AddressPolicy // which addresses nodes may have

	Convergence time.Duration // how long after a start nodes wait for their providers
	Linger      time.Duration // how long the last node of a service stays that has expired; 0: not at all
	Nodes       int           // that may be registered; 0: any number

	// Published reports whether consumers can have a service, by its name.
	Published func(service string) bool

	Logger *slog.Logger
}

// Source is what programs register. It implements [source.Source] and the service of
// registrationv1, which serves providers while Run runs. Config.Nodes bounds the nodes, and each
// rule has a quota. A source does not queue messages of providers: each is applied to the table
// before the next one is read.
type Source struct {
	registrationv1.UnimplementedRegistrationServiceServer

	// read-only after New
	config   Config
	log      *slog.Logger
	commits  chan struct{} // holds one value when the committer has something to do
	clock    chan struct{} // the same for the clock
	began    chan struct{} // closed when Run begins
	closing  chan struct{} // closed when streams of providers are to end
	sessions sync.WaitGroup
	rules    atomic.Pointer[rules.Rules]

	publisher partPublisher

	mu          sync.Mutex    // guards the fields below; locked after that of the publisher
	table       *table.Table  // nil before Run
	due         time.Time     // when the clock looks next
	closed      bool          // whether closing is closed
	moving      chan struct{} // closed when providers are to go to other owners, and made anew then
	awaySince   time.Time     // since when the store says that it is away
	storeError  error         // why the store says that it is away
	commitError error         // why the last Commit failed
}

var (
	_ source.Source                            = (*Source)(nil)
	_ source.NameClaimer                       = (*Source)(nil)
	_ registrationv1.RegistrationServiceServer = (*Source)(nil)
	_ store.Watcher                            = storeWatcher{}
)

// New returns a source that does not run yet.
func New(config Config) *Source {
	s := &Source{
		config: config, log: loglimit.NewLogger(config.Logger),
		commits: make(chan struct{}, 1), clock: make(chan struct{}, 1),
		began: make(chan struct{}), closing: make(chan struct{}), moving: make(chan struct{}),
		publisher: partPublisher{over: make(map[federation.FQDN]int)},
	}
	s.rules.Store(config.Rules)
	return s
}

// errAgain is the panic value of a second Run.
var errAgain = errors.New("the source runs already, or has ended")

// Run implements [source.Source]. When ctx ends, providers are sent Close. What they have
// registered stays in the store.
func (s *Source) Run(ctx context.Context, part source.Part) {
	s.startTable(part)
	// The store and the committer work until the providers are gone.
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer group.Wait()
	defer end()
	if s.config.Store != nil {
		group.Go(func() { s.config.Store.Run(work, storeWatcher{s}) })
		group.Go(func() { s.commitAll(work) })
	}
	s.watchClock(ctx)
	s.closeSessions()
	s.waitPending()
}

// startTable makes the table.
func (s *Source) startTable(part source.Part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table != nil {
		panic(errAgain)
	}
	now := time.Now()
	s.publisher.part = part
	s.table = table.New(table.Config{
		Owner: s.config.Owner, Epoch: rand.Uint32(), //nolint:gosec // no secret
		Convergence: s.config.Convergence, Linger: s.config.Linger,
		Nodes: s.config.Nodes, Rules: s.rules.Load(), Policy: s.config.Policy, Expired: s.logExpired,
	}, now)
	if s.config.Store == nil {
		s.table.SetState(nil, false, now) // a store that is new is not complete
	}
	close(s.began)
}

// unlockAndPublish releases the lock and publishes what has changed under it. Where there is no
// store that owners share, it stores the changes first.
func (s *Source) unlockAndPublish() {
	begun := s.table != nil
	if begun {
		if s.config.Store == nil {
			s.table.StoreLocally(time.Now())
		} else if s.table.HasChanges() {
			wake.Up(s.commits)
		}
		if next, ok := s.table.NextExpiry(); ok && next.Before(s.due) {
			wake.Up(s.clock) // it would look later
		}
	}
	s.mu.Unlock()
	if begun {
		s.publishAndAnswer()
	}
}

// closeSessions sends Close to all providers, and waits until their streams have ended.
func (s *Source) closeSessions() {
	s.mu.Lock()
	s.closed = true
	close(s.closing)
	s.mu.Unlock()
	s.sessions.Wait()
}

// flush is how long the store has for the last changes of providers.
const flush = 2 * time.Second

// waitPending waits until no change is pending, for flush at most, so that nodes that providers
// have cleared do not come back with the next start.
func (s *Source) waitPending() {
	const pause = 10 * time.Millisecond
	for began := time.Now(); time.Since(began) < flush; {
		s.mu.Lock()
		pending := s.table.Numbers().Pending
		s.mu.Unlock()
		if pending == 0 {
			return
		}
		timer := time.NewTimer(pause)
		<-timer.C
	}
}

// SetRules replaces the rules. A registered node that the new rules do not allow is deleted, and
// its provider is told. Such a node is no longer published when SetRules returns, even while the
// store is away.
func (s *Source) SetRules(r *rules.Rules) {
	s.mu.Lock()
	defer s.unlockAndPublish()
	s.rules.Store(r)
	if s.table == nil {
		return
	}
	s.table.SetRules(r, func(n *node.Node, refusal *rules.Refusal) {
		s.log.Warn("the rules do not allow a node any more", "provider", n.Provider, "service", n.Service, "node", n.URI,
			"rule", refusal.Rule, "reason", refusal.FullReason())
	})
}

// MayClaim implements [source.NameClaimer].
func (s *Source) MayClaim(name string, fqdn federation.FQDN) bool {
	return strings.HasPrefix(name, s.config.Name+"/") || s.rules.Load().MayName(fqdn)
}

// Stats is the state of a source, for metrics.
type Stats struct {
	Numbers

	Convergence time.Duration // how long nodes may still be old
	StoreAway   bool
}

// Numbers count what is registered, and what has happened to it.
type Numbers = table.Numbers

// Stats returns the state of the source now.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return Stats{}
	}
	n := s.table.Numbers()
	n.Expired, n.Refused = maps.Clone(n.Expired), maps.Clone(n.Refused)
	return Stats{n, s.table.ConvergenceLeft(time.Now()), s.awayReason() != nil}
}

// awayReason returns why the store cannot be asked, or nil. The caller holds mu.
func (s *Source) awayReason() error { return cmp.Or(s.storeError, s.commitError) }

func (s *Source) logExpired(n *node.Node, cause string) {
	s.log.Info("node expired", "provider", n.Provider, "service", n.Service, "node", n.URI, "cause", cause)
}

// storeWatcher implements [store.Watcher].
type storeWatcher struct{ *Source }

// SetState implements [store.Watcher].
func (w storeWatcher) SetState(nodes []store.VersionedNode, complete bool) {
	w.changeTable(func(now time.Time) { w.table.SetState(nodes, complete, now) })
}

// ApplyChanges implements [store.Watcher].
func (w storeWatcher) ApplyChanges(nodes []store.VersionedNode, gone []store.DeletedKey) {
	w.changeTable(func(now time.Time) { w.table.ApplyChanges(nodes, gone, now) })
}

// SetAway implements [store.Watcher].
func (w storeWatcher) SetAway(reason error) {
	w.changeTable(func(now time.Time) {
		if w.storeError == nil {
			w.awaySince = now
		}
		w.storeError = reason
		w.table.SetAway(reason != nil, now)
	})
}

func (w storeWatcher) changeTable(change func(now time.Time)) {
	w.mu.Lock()
	defer w.unlockAndPublish()
	change(time.Now())
}

// Once in a tick the clock checks whether the program has run all the time. If something was due longer
// ago than late, the program has not.
const (
	tick = time.Second
	late = 2 * time.Second
)

// watchClock expires what is due, until ctx ends.
func (s *Source) watchClock(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.clock:
		}
		now := time.Now()
		next := s.expireDue(now, now.Sub(due) > late)
		// Waiting for the mutex is no suspension.
		now = time.Now()
		due = now.Add(max(next.Sub(now), 0))
		timer.Reset(due.Sub(now))
	}
}

// expireDue expires what is due, unless the program was stopped for a while. It returns when it is
// to be called again.
func (s *Source) expireDue(now time.Time, stopped bool) time.Time {
	s.mu.Lock()
	defer s.unlockAndPublish() // which publishes in time a state that is not complete
	if stopped {
		s.table.NoteSuspension(now)
		s.log.Warn("the process was suspended; nothing expires until providers have had time to report",
			"convergence", s.config.Convergence)
	}
	s.sendAway(now)
	s.table.ExpireDue(now)
	s.due = now.Add(tick)
	if next, ok := s.table.NextExpiry(); ok && next.Before(s.due) {
		s.due = next
	}
	return s.due
}

// sendAway sends the providers to other owners when the shared store has been away for a third of
// the convergence period, for which leases last. If only this owner cannot reach the store, the
// other owners withdraw its nodes when the leases end. The caller holds mu.
func (s *Source) sendAway(now time.Time) {
	if s.storeError == nil || s.table.HasSentAway() || now.Sub(s.awaySince) < max(s.config.Convergence/3-store.Patience, tick) {
		return
	}
	s.table.SendAway()
	close(s.moving)
	s.moving = make(chan struct{})
}
