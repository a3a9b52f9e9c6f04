// Package consumer keeps a copy of one owner's catalog current.
//
// A [Mirror] is a subscription (package stream), the catalog that it fills
// (package catalog), the clocks by which the catalog ages, and the file that preserves
// it across restarts. It knows when an owner is synced, how long the services of a
// lost one are kept, and when to ask for the catalog once more. Package agent turns
// mirrors into DNS zones, source/relay into a catalog of one's own, federationctl watch
// shows one, and federation/consumer is its face for programs of others.
//
// # Order
//
// What the owner sends is applied to the catalog, published, acknowledged and
// announced, in this order. Published means that Config.Publish has returned, so an
// acknowledged update is visible. Announced means that Status, the log and the
// Observer have been updated; neither the owner nor the readers of the catalog wait for
// that. Status and the log may be ahead of an acknowledgement, when the clock had
// something to announce meanwhile.
//
// # Concurrency
//
// Three goroutines share the work: one of the consumer, which applies, acknowledges and
// announces what arrives; one that does what is due by the clock; and one that writes
// the file. The catalog is guarded by one mutex, which is held while Publish runs: that
// keeps the changes in order, and slows down an owner that sends faster than they can
// be published.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// Config is what a Mirror needs. Subscription and Rules may be replaced later, by
// Resubscribe and Configure.
type Config struct {
	Subscription Subscription

	// Rules say when the catalog is complete, how long the services of a lost owner
	// are kept, and what the owner may publish; default: 5 s of silence, 24 h, everything.
	Rules catalog.Rules

	// Name is what the owner is called, in logs and in Subscription.File: the catalog of
	// a file with another name is not used. Default: the addresses.
	Name string

	// Publish makes changes visible. It is called with one batch of changes after
	// the other, from several goroutines but one at a time. The owner's updates are
	// acknowledged when it and Await have returned, so it must not wait for the owner, and must
	// not call the Mirror except for Status.
	Publish func(Changes)

	// Await returns when what was published may be acknowledged: see stream.Config. Nothing is
	// locked, so that the clock goes on, and a lost stream is noticed. It may be nil.
	Await func(ctx context.Context, ended <-chan struct{})

	// Accept returns why the services of a stream are not wanted, as they have come through
	// these owners: before any of it is applied. The stream ends with that, and is not
	// tried again soon. So does one of which the path cannot be read. It must not call the
	// Mirror except for Status. It may be nil.
	Accept func(path wire.OwnerPath) error

	Observer Observer     // default: none
	Logger   *slog.Logger // default: nothing is logged

	// Clock returns the wall clock, without a monotonic reading, and a clock that
	// is never set, measured from any fixed moment; default: those of the machine.
	Clock func() (wall time.Time, elapsed time.Duration)

	// Pause is called behind each piece of work, on the goroutine that does it, with how long it
	// took: some updates, or a part of the file. It may wait, so that others get the processor,
	// and reports whether the next pieces should be small. Nothing is locked. It may be nil.
	Pause func(worked time.Duration) bool

	// Store keeps catalogs in files; default: package snapshot.
	Store Store
}

// Changes is what has changed since the last call of Config.Publish.
type Changes struct {
	// Services are the changes in order; of several for one name the last one
	// holds. Those that are Confirmed concern only who asks for generations. It is empty
	// when only the status has changed.
	Services []catalog.Change

	// Status is the state after the changes, without LastAttempt and NextAttempt. Every loss of a
	// stream, and every attempt that fails, is a change of it.
	Status Status
}

// Observer gets reports of what happens, for metrics and logs. Its methods are called from several
// goroutines, must return at once, and must not call the Mirror.
type Observer interface {
	// Responded counts a response of the owner that was accepted. The name is that of its
	// service, or empty.
	Responded(op wire.Operation, name string)
	// Refused reports a response that was answered with a NACK, and why.
	Refused(reason *federation.InvalidError)
	// Ended counts a session, or an attempt to open one, by the gRPC code that it
	// ended with.
	Ended(code codes.Code)
	// Published reports how long it took from the receipt of an update until
	// Config.Publish had returned with it.
	Published(d time.Duration)
	// FileFailed counts failures to save or restore the catalog.
	FileFailed()
}

// Status is the state of a mirror at one moment.
type Status struct {
	catalog.Summary // times by the wall clock

	Parked      bool      // the owner refuses this consumer, see stream.Sink
	Failure     error     // why there is no stream; nil while one is open, or was until a moment ago. The text is safe to show
	LastAttempt time.Time // to open a stream; zero before the first
	NextAttempt time.Time // zero while there is a stream, and where nothing is tried before something changes; past while one is under way

	// Path names the owners through which the services come, as the open or last stream has said.
	// It is empty where that is not known.
	Path string // as wire.PathHeader has it

	Since time.Time // of what StateName returns, by the wall clock

	// Damage is why the catalog could not be restored from its file, until a catalog is complete,
	// or nil. The text is safe to show.
	Damage error

	// Restored is when the owner was last up by its file, until a catalog is complete. The catalog was
	// restored from the file, unless the retention was over then or a stream was sooner. What the owner has
	// withdrawn since then is not known. It is zero without a file.
	Restored time.Time

	// Unsaved is why the catalog cannot be written to its file, or nil. The text is safe to show.
	Unsaved error

	Resumed bool   // the open or last stream has brought only what differed from what was held
	Resumes uint64 // how many streams have done so since the Mirror was made
}

// Hops returns how many owners the services come through: 1 stands for the origin itself, and 0 for
// an owner that does not say how many there are.
func (s *Status) Hops() int {
	if s.Path == "" {
		return 0
	}
	return 1 + strings.Count(s.Path, ",")
}

// StateName returns the state in one lower-case word.
func (s *Status) StateName() string {
	if s.Parked {
		return "parked"
	}
	return s.State.String()
}

// Mirror is a copy of one owner's catalog. It keeps the catalog, the status of the owner and the
// digests of what it could resume with; a snapshotKeeper keeps the same catalog in a file.
//
// Only the owner's stream, the clock, a restoration from the file, Configure and Resubscribe change
// the catalog, all of them under one mutex. The bounds are those of catalog.Rules: a mirror has no
// queue of its own, because an owner waits until Config.Publish has returned. The methods are safe
// for concurrent use.
type Mirror struct {
	// Read-only after New.
	config   Config
	logger   *slog.Logger
	wake     chan struct{}       // has room for one value: something is due before keepTime wakes up
	fileLock *semaphore.Weighted // of subscriptions that have none

	// Guarded by mu, which is held while Config.Publish runs.
	mu          sync.Mutex
	catalog     *catalog.Catalog
	clock       mirrorClock
	published   Status // the last one that Config.Publish got
	own         Status // the next one, without what the catalog and the clock say
	outdated    bool   // own has changed since published
	heldDigests heldDigests
	renewed     time.Time        // when another stream was opened last because room was freed, in the mirror's time
	next        *subscriptionRun // what Run follows after the current one; nil: none
	current     *subscriptionRun // what Run follows; nil while it does not run
	wakesAt     time.Time        // when keepTime wakes up, in the mirror's time; zero while it is awake

	// Owned by Run.
	began      time.Time       // when the work on the updates began that are not answered yet
	visible    time.Time       // when they were published
	lastKeeper *snapshotKeeper // nil before there was one

	// Guarded by announcing, which is taken before mu.
	announcing sync.Mutex
	announced  loggedState // what was logged last

	// Atomic.
	keeper      atomic.Pointer[snapshotKeeper] // nil without a file
	status      atomic.Pointer[Status]
	lastAttempt atomic.Int64 // in nanoseconds; 0 before the first
	nextAttempt atomic.Int64 // the same; 0 where there is none
}

// New returns a Mirror without services, or an error that names a field of the configuration. New
// neither connects nor reads the file: Run does.
func New(config Config) (*Mirror, error) {
	if config.Publish == nil {
		return nil, errors.New("no function to publish changes")
	}
	if config.Observer == nil {
		config.Observer = NoObserver{}
	}
	if config.Clock == nil {
		config.Clock = systemClock()
	}
	if config.Store == nil {
		config.Store = fileStore{}
	}
	if config.Pause == nil {
		config.Pause = func(time.Duration) bool { return false }
	}
	config.Name = cmp.Or(config.Name, strings.Join(config.Subscription.Addresses, ","))
	m := &Mirror{
		config: config,
		logger: loglimit.NewLogger(config.Logger).With("owner", config.Name),
		wake:   make(chan struct{}, 1), fileLock: semaphore.NewWeighted(1),
		catalog: catalog.New(config.Rules),
		clock:   mirrorClock{read: config.Clock},
	}
	first, err := m.newSubscriptionRun(config.Subscription)
	if err != nil {
		return nil, err
	}
	m.next = first
	m.published = Status{Summary: m.catalogStatus()}
	m.published.Since, _ = config.Clock()
	m.status.Store(new(m.published))
	return m, nil
}

// Run keeps the catalog current until ctx ends, and then returns nil. Before that, it closes the
// stream, which takes a second at most, and saves the catalog, for which it waits five more seconds
// for a disk that hangs. Run must be called only once.
func (m *Mirror) Run(ctx context.Context) error {
	var timekeeper sync.WaitGroup
	timekeeper.Go(func() { m.keepTime(ctx) })
	defer timekeeper.Wait()
	for ctx.Err() == nil {
		m.followSubscription(ctx, m.takeNext())
	}
	if k := m.lastKeeper; k != nil {
		k.awaitLastSave()
	}
	return nil
}

// Status returns the state of the mirror as it was last announced.
func (m *Mirror) Status() Status {
	s := *m.status.Load()
	if at := m.lastAttempt.Load(); at != 0 {
		s.LastAttempt = time.Unix(0, at)
	}
	if at := m.nextAttempt.Load(); at != 0 && s.Failure != nil {
		s.NextAttempt = time.Unix(0, at)
	}
	if k := m.keeper.Load(); k != nil {
		s.Unsaved = k.saveError()
	}
	return s
}

// Configure replaces the rules, with all consequences for the services that the mirror holds: see
// [catalog.Catalog.SetRules]. A service that was refused before and would be accepted now comes
// with the next stream. Where a limit was raised, the mirror opens that stream at once.
func (m *Mirror) Configure(rules catalog.Rules) {
	m.changeAndPublish(func(now time.Time) {
		m.catalog.SetRules(rules, now)
		m.renewed = time.Time{} // the limits may have changed
	})
	m.announceStatus()
}

// Retry tries at once to open a stream where there is none, even if the owner is parked. It returns
// at once, and Status shows the result.
func (m *Mirror) Retry() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current != nil {
		m.current.consumer.RetryNow()
	}
}

// View calls f with all services, each with its last announcement, and with the status that belongs
// to them. Nothing is published meanwhile, so that the next call of Config.Publish continues from
// exactly there. F must neither keep the sequence nor call the Mirror.
func (m *Mirror) View(f func(services iter.Seq2[packed.Service, catalog.LastAnnouncement], s catalog.Summary)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.catalog.All(), m.catalogStatus())
}

// changeAndPublish runs f, which changes the mirror, and publishes what has changed.
func (m *Mirror) changeAndPublish(f func(now time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.currentTime()
	f(now)
	m.publishChanges()
	m.rescheduleWake(now)
}

// catalogStatus returns the state of the catalog, with times by the wall clock.
func (m *Mirror) catalogStatus() catalog.Summary {
	s := m.catalog.Summary()
	for _, t := range []*time.Time{&s.Expires, &s.Soonest, &s.Lost, &s.LastSync} {
		*t = m.clock.wallTime(*t)
	}
	return s
}

// publishChanges calls Config.Publish with what has changed, if anything has. The caller holds
// m.mu.
func (m *Mirror) publishChanges() {
	services, summary := m.catalog.TakeChanges(), m.catalogStatus()
	if summary.Known {
		m.own.Damage = nil
	}
	if summary.State == catalog.Synced {
		m.own.Restored = time.Time{}
	}
	next := m.own
	next.Summary, next.Since = summary, m.published.Since
	if next.State == catalog.Synced { // within the grace nothing is lost
		next.Parked, next.Failure = false, nil
	}
	if next.StateName() != m.published.StateName() {
		next.Since = m.clock.wallAt
	}
	if len(services) > 0 {
		m.requestSave()
	} else if summary == m.published.Summary && !m.outdated {
		return
	}
	m.published, m.outdated = next, false
	m.config.Publish(Changes{services, next})
}

// keepTime does what is due by the clock, until ctx ends.
func (m *Mirror) keepTime(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-m.wake:
		case <-ctx.Done():
			return
		}
		wait := m.advanceTime()
		m.announceStatus()
		timer.Reset(wait)
	}
}

// idle is how long keepTime sleeps when nothing is due.
const idle = time.Hour

// rescheduleWake wakes keepTime if something is due earlier than keepTime would wake up by itself.
// The caller holds m.mu.
func (m *Mirror) rescheduleWake(now time.Time) {
	if m.wakesAt.IsZero() || !now.Add(m.untilDue(now)).Before(m.wakesAt) {
		return
	}
	m.wakesAt = time.Time{}
	wake.Up(m.wake)
}

// untilDue returns for how long nothing is due. The caller holds m.mu.
func (m *Mirror) untilDue(now time.Time) time.Duration {
	wait := idle
	if at, ok := m.catalog.NextDeadline(); ok {
		wait = min(maxSleep, at.Sub(now))
	}
	if settle, ok := m.catalog.SilenceNeeded(); ok {
		wait = min(wait, maxLapse(settle)/2)
	}
	if at, ok := m.renewDue(); ok {
		wait = min(wait, at.Sub(now))
	}
	return max(wait, 0)
}

// advanceTime does what is due now, and returns for how long nothing else will be.
func (m *Mirror) advanceTime() (wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.currentTime()
	if m.current != nil && m.current.consumer.HasPending() {
		// What has arrived is no silence, even if it was not applied yet.
		m.catalog.RestartSilence(now)
	}
	m.catalog.AdvanceTo(now)
	m.publishChanges()
	if at, ok := m.renewDue(); ok && !at.After(now) {
		m.renewed = now
		m.current.consumer.RenewStream()
	}
	wait = m.untilDue(now)
	m.wakesAt = now.Add(wait)
	return wait
}

// announceStatus makes the published status visible to Status, and logs those changes of the state
// that the stream.Consumer does not log itself.
func (m *Mirror) announceStatus() {
	m.announcing.Lock()
	defer m.announcing.Unlock()
	m.mu.Lock()
	s := m.published
	m.mu.Unlock()

	m.status.Store(&s)
	state := s.State
	if s.Expired {
		state = catalog.Expired // also behind a stream on which nothing comes
	}
	now := loggedState{state, s.Paused > 0}
	if now == m.announced || state == catalog.Syncing {
		return // a retry can open a stream and lose it at once, for ever
	}
	m.announced = now
	m.requestSave() // the file says until when the owner was up
	logger := m.logger.With("services", s.Services)
	switch {
	case state == catalog.Stale && s.Failure != nil:
		attributes := []any{"error", s.Failure}
		if remedy := stream.RemedyOf(s.Failure); remedy != "" {
			attributes = append(attributes, "remedy", remedy)
		}
		logger.Warn("owner is lost, trying to connect again", attributes...)
	case state == catalog.Synced && s.Paused > 0:
		logger.Warn("owner is synced, but came back without most of its services; their removal is paused, and they are stale until the retention ends", "paused", s.Paused)
	case state == catalog.Synced:
		logger.Info("owner is synced", "refused", s.Refused)
	case state == catalog.Expired:
		logger.Error("owner is expired: the retention is over and its records are gone")
	}
}

// loggedState is the state that was logged last.
type loggedState struct {
	state catalog.State
	held  bool // the guard holds services
}

// NoObserver is an Observer that does nothing, to be embedded by those that need only
// some of its methods.
type NoObserver struct{}

// Responded implements Observer.
func (NoObserver) Responded(wire.Operation, string) {}

// Refused implements Observer.
func (NoObserver) Refused(*federation.InvalidError) {}

// Ended implements Observer.
func (NoObserver) Ended(codes.Code) {}

// Published implements Observer.
func (NoObserver) Published(time.Duration) {}

// FileFailed implements Observer.
func (NoObserver) FileFailed() {}
