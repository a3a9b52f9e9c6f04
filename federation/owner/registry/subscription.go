package registry

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// Subscribe returns a subscription that begins with the catalog as it is now, and is
// told all of it, whatever the policy. While the registry is unavailable it fails at
// once. The caller closes it.
func (r *Registry) Subscribe() *Subscription {
	return r.open(&Subscription{everything: true, awaits: true, begun: time.Now()})
}

// Consumer is a subscriber that is told what the policy says.
type Consumer struct {
	// IDs are its identities. It must be one that may subscribe.
	IDs []federation.ID

	// Stop, where it is set, is called when the subscription ends because the registry is
	// unavailable, with since when its origin has been lost, as [Registry.SetUnavailable] has it.
	// It must not block.
	Stop func(lost time.Time)

	// Awaits says that it awaits the end marker, and so concludes nothing from silence: it is told
	// a catalog that is not complete. For others the registry is unavailable meanwhile.
	Awaits bool

	// Silent says that it has not asked for anything yet: nothing waits for it before Ask.
	Silent bool
}

// SubscribeAs is Subscribe for a consumer, which is told what the policy says; without a
// policy, everything.
func (r *Registry) SubscribeAs(c Consumer) *Subscription {
	s := &Subscription{ids: c.IDs, stop: c.Stop, awaits: c.Awaits}
	if !c.Silent {
		s.begun = time.Now()
	}
	return r.open(s)
}

// open opens a subscription to which nothing has been told. It is over at once while the
// registry is unavailable.
func (r *Registry) open(s *Subscription) *Subscription {
	s.registry, s.told = r, nothing
	s.wake, s.over = make(chan struct{}, 1), make(chan struct{})
	for {
		p := r.shown.Load().policy
		v := viewOf(p, s)
		r.mu.Lock()
		if shown := r.shown.Load(); shown.policy == p {
			defer r.mu.Unlock()
			if shown.unavailable != "" || shown.incomplete && !s.awaits {
				s.end(shown.lost)
			} else {
				r.join(s, v)
			}
			return s
		}
		r.mu.Unlock()
	}
}

// Subscription is one subscriber's view of a Registry: the full catalog, the
// end marker, and then every change, of what the subscriber may be told. A service that
// changes several times before its change is taken is taken once, in its latest version. So
// no change is lost, and a service that changes all the time does not keep others waiting.
type Subscription struct {
	// Read-only after Subscribe.

	registry   *Registry
	everything bool            // whatever the policy
	ids        []federation.ID // of the consumer, unless it is told everything
	awaits     bool            // as Consumer has it

	stop func(time.Time) // Consumer.Stop, which is called with the registry locked

	wake chan struct{} // holds one value when there may be something to take
	over chan struct{} // closed when it ends because the registry is unavailable

	policy *policy.Policy // in force when updates were taken last; of who takes them

	// Guarded by the mutex of registry.

	begun time.Time // zero before the subscriber has asked
	view  view      // of what the registry shows

	// The subscriber was told this version in this view, but for what walk has told since and
	// what ahead says; ahead is only set between two walks. Told is nil while the subscriber
	// has all that the registry shows for its view, which keeps no old version alive.
	told     *version
	toldView view
	ahead    map[string]*entry
	walk     *walk // on the way to a newer version; nil before it is found out what differs

	since  time.Time // of the first change that was not in told; zero for the catalog
	later  time.Time // of the first change that was not where walk leads; zero without one
	whole  bool      // whether all of the catalog has been taken but the end marker
	marked bool      // whether that has been taken
}

// fewSorted and fewer are told in the order of their names, which people like. The
// order of more is that of their buckets, one after the other.
const fewSorted = 1000

// walk is the way from the version that a subscriber was told to a newer one.
type walk struct {
	from, to       *version
	fromView, view view

	pairs []pair // what is to be told next

	// Where pairs are not all: the next bucket, and whether the removals are told, for which
	// all buckets are gone through once more.
	buckets  bool
	bucket   int
	removing bool
	left     int // services to be told

	// ahead has what the subscriber was told of services that have changed since the
	// version to; nil for those that it does not have.
	ahead map[string]*entry
}

// newWalk finds out what is different. It needs no lock. Of the catalog, the subscriber may have
// nothing yet, and then a list of all takes too much memory.
func newWalk(from, to *version, p passage, catalog bool) *walk {
	w := &walk{from: from, to: to, fromView: p.before, view: p.after}
	if catalog && to.services > fewSorted {
		w.left = to.distance(from, p)
		w.buckets = w.left > 0
	} else {
		w.pairs = p.of(to.pairs(from))
	}
	return w
}

// next returns what may have to be told next.
func (w *walk) next() (pair, bool) {
	for len(w.pairs) == 0 {
		switch {
		case !w.buckets || w.bucket == resume.Leaves && w.removing:
			return pair{}, false
		case w.bucket == resume.Leaves:
			w.bucket, w.removing = 0, true
		default:
			if from := w.from.bucket(w.bucket); from != nil || !w.removing { // else there is nothing to remove
				w.pairs = differ(from, w.to.bucket(w.bucket))
			}
			w.bucket++
		}
	}
	p := w.pairs[0]
	w.pairs = w.pairs[1:]
	return p, true
}

// unsent returns how many services there are to be told.
func (w *walk) unsent() int {
	if w.buckets {
		return w.left
	}
	return len(w.pairs)
}

// Close ends the subscription, and drops the events that were not taken.
func (s *Subscription) Close() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.registry.leave(s)
	s.drop()
}

// drop forgets what there is to be told.
func (s *Subscription) drop() {
	s.told, s.walk, s.ahead, s.whole, s.marked = nil, nil, nil, false, false
}

// end ends the subscription because the registry is unavailable, of which the origin is lost since
// then.
func (s *Subscription) end(lost time.Time) {
	s.drop()
	if s.stop != nil {
		s.stop(lost)
	}
	close(s.over)
}

// Next returns the next event, and waits until there is one. It fails when ctx ends,
// with its cause, and once the registry has become unavailable, with a status of the
// code Unavailable. Only one goroutine may call it at a time.
func (s *Subscription) Next(ctx context.Context) (federation.Event, error) {
	for ctx.Err() == nil {
		if updates := s.Take(nil, 1); len(updates) > 0 {
			return updates[0].Decoded(), nil
		}
		select {
		case <-s.over:
			return federation.Event{}, ErrUnavailable
		default:
		}
		select {
		case <-s.wake:
		case <-s.over:
		case <-ctx.Done():
		}
	}
	return federation.Event{}, context.Cause(ctx)
}

// Update is an event with what a server needs to know about it.
type Update struct {
	federation.Event // without the service

	Encoded *wire.Encoded // the service, for an Upsert, in the shape that is for the subscriber
	Rule    int           // for an Upsert: of the policy, by which the subscriber is told; 0 without one
	Reason  string        // for a Delete, for people

	Since time.Time // when the change happened; for the catalog, when the subscription began
	Told  bool      // whether the subscriber has been told of the service before
}

// Resource returns the resource of the v1alpha2 message for the update.
func (u Update) Resource() (*anypb.Any, error) {
	if u.Encoded != nil {
		return u.Encoded.Resource(), nil
	}
	return wire.EncodeResource(u.Event)
}

// Decoded returns the event with the service.
func (u Update) Decoded() federation.Event {
	if u.Encoded != nil {
		u.Service = u.Encoded.Service()
	}
	return u.Event
}

// Ask notes that the subscriber has asked for the catalog: what it has to be told waits for it
// from now on.
func (s *Subscription) Ask() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.begun = time.Now()
}

// Unsent returns how many services there are to be taken.
func (s *Subscription) Unsent() int {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if s.walk == nil && s.told != nil {
		s.begin()
	}
	if s.walk == nil {
		return 0
	}
	return s.walk.unsent()
}

// Wake returns a channel that has a value when there may be something to take.
func (s *Subscription) Wake() <-chan struct{} { return s.wake }

// Over returns a channel that is closed when the subscription ends because the registry is
// unavailable.
func (s *Subscription) Over() <-chan struct{} { return s.over }

// maxSkipped bounds the services that one call of Take passes over, because they are
// not for the subscriber: the others wait for the lock meanwhile.
const maxSkipped = 4096

// Take appends up to n updates, and does not wait for any. Once the registry has become
// unavailable there are none: what it holds since then may be a part. Wake says when to try
// again, at once where n are not all. Only one goroutine may call it at a time.
func (s *Subscription) Take(updates []Update, n int) []Update {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	end, skip := len(updates)+n, maxSkipped
	for len(updates) < end {
		shown := s.registry.shown.Load()
		s.policy = shown.policy
		if s.whole && !s.marked && s.walk == nil && !cmp.Or(s.told, shown).incomplete {
			s.marked = true
			updates = append(updates, Update{Event: federation.Event{Operation: federation.End}, Since: s.begun})
			continue
		}
		if s.told == nil {
			break
		}
		if s.walk == nil {
			s.begin() // without the lock: another version may be shown now
			continue
		}
		p, ok := s.walk.next()
		if !ok {
			s.arrive(shown)
			continue
		}
		if u, ok := s.step(p, shown); ok {
			updates = append(updates, u)
		} else if skip--; skip == 0 {
			s.rouse()
			break
		}
	}
	if s.whole && s.walk != nil && !s.walk.buckets && len(s.walk.pairs) == 0 {
		s.arrive(s.registry.shown.Load())
	}
	if len(updates) == end && (s.told != nil || !s.marked) { // there may be more, or the end
		s.rouse()
	}
	return updates
}

// begin begins the walk to what is shown. The lock is released meanwhile.
func (s *Subscription) begin() {
	to, told, ahead, p, catalog := s.registry.shown.Load(), s.told, s.ahead, passage{s.toldView, s.view}, !s.whole
	s.registry.mu.Unlock()
	if len(ahead) > 0 {
		told = told.with(ahead)
	}
	w := newWalk(told, to, p, catalog)
	s.registry.mu.Lock()
	if s.told != nil { // the registry has not become unavailable
		s.told, s.ahead, s.walk = told, nil, w
	}
}

// step returns the update for the next service of the walk, if there is something to tell of
// it. What has changed since the version to which the walk leads is told as it is shown now, but
// for removals: they come after what that version adds, and after what the next one does.
func (s *Subscription) step(p pair, shown *version) (Update, bool) {
	w := s.walk
	before, after := p.before.in(w.fromView), p.after.in(w.view)
	if w.buckets && w.removing == (after != nil) {
		return Update{}, false // it has been told, or will be
	}
	latest := p.after
	if shown != w.to {
		latest = shown.find(p.name())
	}
	now, had := latest.in(s.view), before
	u := Update{Event: federation.Event{Operation: federation.Upsert, Name: p.name()}, Since: s.since, Told: before != nil}
	if !s.whole {
		u.Since = s.begun
	}
	changed := false
	switch {
	case after != nil && now != nil && (before == nil || !now.Equal(before)):
		u.Encoded, u.Rule = now, latest.rule(s.view)
		changed, had = true, now
	case after == nil && now == nil && before != nil:
		u.Operation, u.Reason = federation.Delete, "it is gone from the catalog"
		if latest != nil {
			u.Reason = "the policy does not tell it"
		}
		changed, had = true, nil
	}
	if changed {
		w.left--
	}
	if shown != w.to && had != after && (had == nil || after == nil || !had.Equal(after)) {
		if w.ahead == nil {
			w.ahead = make(map[string]*entry)
		}
		w.ahead[p.name()] = nil
		if had != nil {
			w.ahead[p.name()] = told(had)
		}
	}
	return u, changed
}

// arrive notes that the walk is at its end.
func (s *Subscription) arrive(shown *version) {
	w := s.walk
	s.told, s.toldView, s.ahead, s.walk = w.to, w.view, w.ahead, nil
	s.since, s.later, s.whole = s.later, time.Time{}, true
	if s.told == shown {
		s.told = nil
	}
}

// Withdrawn reports whether the policy tells the service of an update no more that was
// taken last. Where another policy tells it, the update gets the shape of now.
func (s *Subscription) Withdrawn(u *Update) bool {
	shown := s.registry.shown.Load()
	if u.Encoded == nil || s.policy == shown.policy {
		return false
	}
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if shown = s.registry.shown.Load(); shown.unavailable != "" {
		return true
	}
	e := shown.find(u.Name)
	u.Encoded, u.Rule = e.in(s.view), e.rule(s.view)
	return u.Encoded == nil
}

// follow notes that another version is shown, in which the pairs are different for the
// subscriber, which had that view.
func (s *Subscription) follow(before *version, v view, to *version, pairs []pair, now time.Time) {
	switch {
	case len(pairs) == 0:
	case s.told == nil:
		s.told, s.toldView, s.since = before, v, now
		s.walk = &walk{from: before, to: to, fromView: v, view: s.view, pairs: pairs}
	case s.later.IsZero():
		s.later = now
	}
	s.rouse()
}

// standing is where a subscriber is: what it has to be told until it has a version, in which
// view, and what it may be told now. The version is nil where nothing is newer.
type standing struct {
	unsent     int
	version    *version
	told, view view
}

func (s *Subscription) standing() standing {
	switch {
	case s.told == nil || s.begun.IsZero():
		return standing{}
	case s.walk == nil:
		return standing{len(s.ahead), s.told, s.toldView, s.view}
	case s.walk.to == s.registry.shown.Load():
		return standing{unsent: s.walk.unsent()}
	default:
		return standing{s.walk.unsent(), s.walk.to, s.walk.view, s.view}
	}
}

// backlog returns how many services a subscriber has to be told that stands there. A service
// that has changed since the version counts once.
func (at standing) backlog(shown *version) int {
	if at.version == nil {
		return at.unsent
	}
	newer := shown.distance(at.version, passage{at.told, at.view})
	return min(at.unsent+newer, max(at.unsent, newer, shown.count(at.view)))
}

// oldest returns when the first change happened that the subscriber has yet to be told; zero
// without one.
func (s *Subscription) oldest() time.Time {
	switch {
	case s.told == nil:
		return time.Time{}
	case !s.whole:
		return s.begun
	default:
		return s.since
	}
}

// rouse makes the subscriber look at what there is to take.
func (s *Subscription) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // there is a value already
	}
}
