package registry

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// Consumer is a subscriber that gets what the policy lets it have.
type Consumer struct {
	// IDs are its identities. The caller has checked that one of them may subscribe.
	IDs []federation.ID

	// Stop, where it is set, is called when the subscription ends because the registry is
	// unavailable. Lost is since when the origin has been lost, as [Registry.SetUnavailable] has
	// it. Stop must not block.
	Stop func(lost time.Time)

	// Awaits says that the consumer awaits the end marker, and so concludes nothing from silence:
	// it is sent a catalog that is not complete. For other consumers the registry is unavailable
	// meanwhile.
	Awaits bool

	// Silent says that the consumer has not asked for anything yet: no service counts as unsent
	// before MarkAsked.
	Silent bool
}

// SubscribeAs returns a subscription of a consumer to what the policy lets it have, as it is now
// and as it changes; without a policy, to everything. While the registry is unavailable, the
// subscription is over at once. The caller closes it.
func (r *Registry) SubscribeAs(c Consumer) *Subscription {
	s := &Subscription{registry: r, ids: c.IDs, stop: c.Stop, told: emptyVersion, wake: make(chan struct{}, 1)}
	if !c.Silent {
		s.begun = time.Now()
	}
	for {
		p := r.shown.Load().policy
		v := viewOf(p, s.ids)
		r.mu.Lock()
		if shown := r.shown.Load(); shown.policy == p {
			defer r.mu.Unlock()
			if shown.unavailable != "" || shown.incomplete && !c.Awaits {
				s.endUnavailable(shown.lost)
			} else {
				r.addSubscription(s, v)
			}
			return s
		}
		r.mu.Unlock()
	}
}

// Subscription is one subscriber's view of a Registry: the full catalog, the end marker, and then
// every change, of what the subscriber may have. Writers of the registry and TakeUpdates change it,
// under the mutex of the registry.
//
// A subscription has no queue. It keeps the version that its subscriber was told last, and a cursor
// on the way to a newer version: so it takes no more memory than the buckets that differ between
// these two, however slow the subscriber is. A service that changes several times before its change
// is taken is taken once, in its latest version. So no change is lost, and a service that changes
// all the time does not keep others waiting.
type Subscription struct {
	// Read-only after SubscribeAs.

	registry *Registry
	ids      []federation.ID // of the consumer
	stop     func(time.Time) // Consumer.Stop, which is called with the registry locked
	wake     chan struct{}   // holds one value when there may be something to take

	policy *policy.Policy // in force when updates were taken last; owned by the caller of TakeUpdates

	// Guarded by the mutex of registry.

	begun time.Time    // zero before the subscriber has asked
	view  consumerView // of what the registry shows

	// The subscriber was told the version told in the view toldView, and since then what cursor has
	// passed and what newerTold has; newerTold is only set between two cursors. Told is nil while
	// the subscriber has all that the registry shows for its view, so that no old version is kept
	// alive.
	told      *catalogVersion
	toldView  consumerView
	newerTold map[string]*serviceEntry
	cursor    *versionCursor // on the way to a newer version; nil before the versions are compared

	since  time.Time // of the first change that was not in told; zero for the catalog
	later  time.Time // of the first change that is not in the version to which cursor leads; zero without one
	whole  bool      // whether all of the catalog has been taken but the end marker
	marked bool      // whether the end marker has been taken
}

// fewSorted is up to how many services are told in the order of their names, which people like.
// More are told bucket by bucket.
const fewSorted = 1000

// versionCursor is the way from the version that a subscriber was told to a newer one: which
// services have yet to be told. The subscription moves it, under the mutex of the registry. It
// holds the differing pairs, or for a large first catalog only the number of the next bucket,
// because a list of a million services for each new subscriber would take too much memory.
type versionCursor struct {
	from, to       *catalogVersion
	fromView, view consumerView

	pairs []entryPair // the services that are told next

	// Where pairs are not all: the next bucket, and whether the removals are being told, for which
	// the cursor passes all buckets once more.
	buckets  bool
	bucket   int
	removing bool
	left     int // services that have yet to be told

	// newerTold has the entries that the subscriber was told of services that have changed since the
	// version to, or nil for a service that the subscriber does not have.
	newerTold map[string]*serviceEntry
}

// newVersionCursor returns a cursor from one version to another. It compares them without a lock.
// With catalog, the subscriber may have nothing yet.
func newVersionCursor(from, to *catalogVersion, p viewChange, catalog bool) *versionCursor {
	w := &versionCursor{from: from, to: to, fromView: p.before, view: p.after}
	if catalog && to.services > fewSorted {
		w.left = to.countChangedSince(from, p)
		w.buckets = w.left > 0
	} else {
		w.pairs = p.differingPairs(to.pairsSince(from))
	}
	return w
}

// nextPair returns the next service that may have to be told, and false at the end.
func (w *versionCursor) nextPair() (entryPair, bool) {
	for len(w.pairs) == 0 {
		switch {
		case !w.buckets || w.bucket == resume.Leaves && w.removing:
			return entryPair{}, false
		case w.bucket == resume.Leaves:
			w.bucket, w.removing = 0, true
		default:
			if from := w.from.bucketOf(w.bucket); len(from) > 0 || !w.removing { // else there is nothing to remove
				w.pairs = diffBuckets(from, w.to.bucketOf(w.bucket))
			}
			w.bucket++
		}
	}
	p := w.pairs[0]
	w.pairs = w.pairs[1:]
	return p, true
}

// unsentCount returns how many services have yet to be told.
func (w *versionCursor) unsentCount() int {
	if w.buckets {
		return w.left
	}
	return len(w.pairs)
}

// Close ends the subscription, and drops the updates that were not taken.
func (s *Subscription) Close() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.registry.removeSubscription(s)
	s.dropUpdates()
}

// dropUpdates drops the updates that were not taken.
func (s *Subscription) dropUpdates() {
	s.told, s.cursor, s.newerTold, s.whole, s.marked = nil, nil, nil, false, false
}

// endUnavailable ends the subscription because the registry is unavailable. Lost is since when the
// origin has been lost.
func (s *Subscription) endUnavailable(lost time.Time) {
	s.dropUpdates()
	if s.stop != nil {
		s.stop(lost)
	}
}

// Update is an event with what a server needs to know about it.
type Update struct {
	wire.Event // without the service

	Encoded *wire.EncodedService // the service, for an Upsert, in the shape that is for the subscriber
	Rule    int                  // for an Upsert: of the policy, by which the subscriber is told; 0 without one
	Reason  string               // for a Delete, for people

	Since time.Time // when the change happened; for the catalog, when the subscription began
	Told  bool      // whether the subscriber has been told of the service before
}

// Resource returns the resource of the v1alpha2 message for the update.
func (u Update) Resource() (*anypb.Any, error) {
	switch {
	case u.Encoded != nil:
		return u.Encoded.Resource(), nil
	case u.Operation == wire.End:
		return nil, nil //nolint:nilnil // it has no resource
	}
	return wire.EncodeDelete(u.Event)
}

// DecodedEvent returns the event with the service.
func (u Update) DecodedEvent() wire.Event {
	if u.Encoded != nil {
		u.Service = u.Encoded.Service()
	}
	return u.Event
}

// MarkAsked records that the subscriber has asked for the catalog, so that unsent services count
// from now on.
func (s *Subscription) MarkAsked() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.begun = time.Now()
}

// UnsentCount returns how many services have yet to be taken.
func (s *Subscription) UnsentCount() int {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if s.cursor == nil && s.told != nil {
		s.startCursor()
	}
	if s.cursor == nil {
		return 0
	}
	return s.cursor.unsentCount()
}

// Wake returns a channel that has a value when there may be updates to take.
func (s *Subscription) Wake() <-chan struct{} { return s.wake }

// maxSkipped bounds the services that one call of TakeUpdates passes over because they are hidden
// from the subscriber. Others wait for the lock meanwhile.
const maxSkipped = 4096

// TakeUpdates appends up to n updates, and does not wait for any. It appends none once the registry
// has become unavailable, because its content may be incomplete since then. Wake says when to call
// TakeUpdates again, at once where n are not all. Only one goroutine may call TakeUpdates at a
// time.
func (s *Subscription) TakeUpdates(updates []Update, n int) []Update {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	end, skip := len(updates)+n, maxSkipped
	for len(updates) < end {
		shown := s.registry.shown.Load()
		s.policy = shown.policy
		if s.whole && !s.marked && s.cursor == nil && !cmp.Or(s.told, shown).incomplete {
			s.marked = true
			updates = append(updates, Update{Event: wire.Event{Operation: wire.End}, Since: s.begun})
			continue
		}
		if s.told == nil {
			break
		}
		if s.cursor == nil {
			s.startCursor() // without the lock: another version may be shown now
			continue
		}
		p, ok := s.cursor.nextPair()
		if !ok {
			s.finishCursor(shown)
			continue
		}
		if u, ok := s.updateFor(p, shown); ok {
			updates = append(updates, u)
		} else if skip--; skip == 0 {
			wake.Up(s.wake)
			break
		}
	}
	if s.whole && s.cursor != nil && !s.cursor.buckets && len(s.cursor.pairs) == 0 {
		s.finishCursor(s.registry.shown.Load())
	}
	if len(updates) == end && (s.told != nil || !s.marked) { // there may be more, or the end
		wake.Up(s.wake)
	}
	return updates
}

// startCursor compares the version that the subscriber was told with the one that is shown, and
// sets cursor. The lock is released meanwhile.
func (s *Subscription) startCursor() {
	to, told, ahead, p, catalog := s.registry.shown.Load(), s.told, s.newerTold, viewChange{s.toldView, s.view}, !s.whole
	s.registry.mu.Unlock()
	if len(ahead) > 0 {
		told = told.withEntries(ahead)
	}
	w := newVersionCursor(told, to, p, catalog)
	s.registry.mu.Lock()
	if s.told != nil { // the registry has not become unavailable
		s.told, s.newerTold, s.cursor = told, nil, w
	}
}

// updateFor returns the update for the next service of the cursor, and whether there is one. A
// service that has changed since the version to which the cursor leads is told as it is shown now.
// But a removal waits: it comes after what that version adds, and after what the next version adds.
func (s *Subscription) updateFor(p entryPair, shown *catalogVersion) (Update, bool) {
	w := s.cursor
	before, after := p.before.serviceIn(w.fromView), p.after.serviceIn(w.view)
	if w.buckets && w.removing == (after != nil) {
		return Update{}, false // it has been told, or will be
	}
	latest := p.after
	if shown != w.to {
		latest = shown.findEntry(p.serviceName())
	}
	now, had := latest.serviceIn(s.view), before
	u := Update{Event: wire.Event{Operation: wire.Upsert, Name: p.serviceName()}, Since: s.since, Told: before != nil}
	if !s.whole {
		u.Since = s.begun
	}
	changed := false
	switch {
	case after != nil && now != nil && (before == nil || !now.Equal(before)):
		u.Encoded, u.Rule = now, latest.ruleIn(s.view)
		changed, had = true, now
	case after == nil && now == nil && before != nil:
		u.Operation, u.Reason = wire.Delete, "it is gone from the catalog"
		if latest != nil {
			u.Reason = "the policy does not tell it"
		}
		changed, had = true, nil
	}
	if changed {
		w.left--
	}
	if shown != w.to && had != after && (had == nil || after == nil || !had.Equal(after)) {
		if w.newerTold == nil {
			w.newerTold = make(map[string]*serviceEntry)
		}
		w.newerTold[p.serviceName()] = nil
		if had != nil {
			w.newerTold[p.serviceName()] = universalEntry(had)
		}
	}
	return u, changed
}

// finishCursor records that the subscriber has been told all that the cursor had.
func (s *Subscription) finishCursor(shown *catalogVersion) {
	w := s.cursor
	s.told, s.toldView, s.newerTold, s.cursor = w.to, w.view, w.newerTold, nil
	s.since, s.later, s.whole = s.later, time.Time{}, true
	if s.told == shown {
		s.told = nil
	}
}

// RefreshUpdate gives an update that was taken last the shape of the current policy, and reports
// whether that policy still lets the subscriber have the service.
func (s *Subscription) RefreshUpdate(u *Update) (told bool) {
	shown := s.registry.shown.Load()
	if u.Encoded == nil || s.policy == shown.policy {
		return true
	}
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if shown = s.registry.shown.Load(); shown.unavailable != "" {
		return false
	}
	e := shown.findEntry(u.Name)
	u.Encoded, u.Rule = e.serviceIn(s.view), e.ruleIn(s.view)
	return u.Encoded != nil
}

// followVersion records that the version to is shown now in place of before, and wakes the
// subscriber. Pairs are what differs for the subscriber, and v is the view that it had.
func (s *Subscription) followVersion(before *catalogVersion, v consumerView, to *catalogVersion, pairs []entryPair, now time.Time) {
	switch {
	case len(pairs) == 0:
	case s.told == nil:
		s.told, s.toldView, s.since = before, v, now
		s.cursor = &versionCursor{from: before, to: to, fromView: v, view: s.view, pairs: pairs}
	case s.later.IsZero():
		s.later = now
	}
	wake.Up(s.wake)
}

// subscriberPosition says how far a subscriber is: how many services it has yet to be told until it
// has a version, in which view, and what it may have now. The version is nil where there is no
// newer one.
type subscriberPosition struct {
	unsent     int
	version    *catalogVersion
	told, view consumerView
}

func (s *Subscription) currentPosition() subscriberPosition {
	switch {
	case s.told == nil || s.begun.IsZero():
		return subscriberPosition{}
	case s.cursor == nil:
		return subscriberPosition{len(s.newerTold), s.told, s.toldView, s.view}
	case s.cursor.to == s.registry.shown.Load():
		return subscriberPosition{unsent: s.cursor.unsentCount()}
	default:
		return subscriberPosition{s.cursor.unsentCount(), s.cursor.to, s.cursor.view, s.view}
	}
}

// backlogOf returns how many services a subscriber at that position has yet to be told. A service
// that has changed since the version counts once.
func (at subscriberPosition) backlogOf(shown *catalogVersion) int {
	if at.version == nil {
		return at.unsent
	}
	newer := shown.countChangedSince(at.version, viewChange{at.told, at.view})
	return min(at.unsent+newer, max(at.unsent, newer, shown.countIn(at.view)))
}

// oldestChange returns when the first change happened that the subscriber has yet to be told, or
// zero.
func (s *Subscription) oldestChange() time.Time {
	switch {
	case s.told == nil:
		return time.Time{}
	case !s.whole:
		return s.begun
	default:
		return s.since
	}
}
