package owner

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// Subscribe returns a subscription that begins with the catalog as it is now, and is
// told all of it, whatever the policy. While the registry is unavailable it fails at
// once. The caller closes it.
func (r *Registry) Subscribe() *Subscription {
	return r.subscribe(&Subscription{everything: true})
}

// SubscribeAs is Subscribe for a consumer with these identities, which is told what the
// policy says; without a policy, everything. It must be one that may subscribe.
func (r *Registry) SubscribeAs(ids []federation.ID) *Subscription {
	return r.subscribe(&Subscription{ids: ids})
}

func (r *Registry) subscribe(s *Subscription) *Subscription {
	v := r.lockView(s)
	defer r.mu.Unlock()
	if c := r.open(s, v); c != nil {
		s.unsent = c.services
	}
	return s
}

// open begins the subscription with the whole catalog, all of it to be looked at, and
// returns its class. It returns nil while the registry is unavailable.
func (r *Registry) open(s *Subscription, v view) *class {
	s.registry, s.availability, s.begun = r, r.availability, time.Now()
	s.wake, s.pending = make(chan struct{}, 1), make(map[string]*change)
	s.changes.previous, s.changes.next = &s.changes, &s.changes
	if s.availability.over() {
		return nil
	}
	s.catalog = r.sortedNames()
	return r.join(s, v)
}

// Subscription is one subscriber's view of a Registry: the full catalog, the
// end marker, and then every change in order, of what the subscriber may be told. A
// service that changes again before its change was taken keeps its place in the order,
// and is taken once, in its latest version. So no change is lost, and a service that
// changes all the time does not keep others waiting.
type Subscription struct {
	// Read-only after Subscribe.

	registry     *Registry
	everything   bool            // whatever the policy
	ids          []federation.ID // of the consumer, unless it is told everything
	availability availability    // when it ends, so does the subscription
	begun        time.Time

	wake chan struct{} // holds one value when there may be something to take

	policies uint64 // Registry.policies when updates were taken last; of who takes them

	// Guarded by the mutex of registry.

	view view // what the subscriber may be told

	// catalog holds the names of the full catalog, as it was when the subscription
	// began, that have not been looked at yet, whoever may be told of them; the
	// services of unsent of them will be taken. Ended says that the end marker has been
	// taken.
	//
	// Where leaves is not nil, it has the leaf of each of the names, and those count that
	// are selected: the subscriber has the others already.
	catalog   []string
	leaves    []uint16
	selection resume.Selection
	unsent    int
	ended     bool

	// pending holds the services that have changed since they were taken, by name.
	// Changes is the head of a ring of the same, in order: container/list would
	// allocate another element for each. No name is in both catalog and pending;
	// a service that is in neither was taken in its latest version, unless it is not
	// in the view, and then the subscriber does not have it.
	pending map[string]*change
	changes change
	most    int // the most entries that pending has had since it was made
}

// fewChanges is the number of entries whose memory pending may keep when it is
// empty.
const fewChanges = 64

// change is a service that differs from what the subscriber was told of it.
type change struct {
	name           string
	told           bool      // whether the subscriber has been told of any version of it
	since          time.Time // when it became different
	previous, next *change
}

// Close ends the subscription, and drops the events that were not taken.
func (s *Subscription) Close() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	s.registry.leave(s)
}

// Next returns the next event, and waits until there is one. It fails when ctx ends,
// with its cause, and once the registry has become unavailable, with a status of the
// code Unavailable. Only one goroutine may call it at a time.
func (s *Subscription) Next(ctx context.Context) (federation.Event, error) {
	for ctx.Err() == nil {
		if updates := s.take(nil, 1); len(updates) > 0 {
			return updates[0].decoded(), nil
		}
		if s.availability.over() {
			return federation.Event{}, s.availability.reason()
		}
		select {
		case <-s.wake:
		case <-s.availability.ctx.Done():
		case <-ctx.Done():
		}
	}
	return federation.Event{}, context.Cause(ctx)
}

// update is an event with what the server needs to know about it.
type update struct {
	federation.Event // without the service

	encoded *wire.Encoded // the service, for an Upsert, in the shape that is for the subscriber
	rule    int           // for an Upsert: of the policy, by which the subscriber is told; 0 without one
	reason  string        // for a Delete, for people

	since time.Time // when the change happened; for the catalog, when the subscription began
	told  bool      // whether the subscriber has been told of the service before
}

// resource returns the resource of the v1alpha2 message for the update.
func (u update) resource() (*anypb.Any, error) {
	if u.encoded != nil {
		return u.encoded.Resource(), nil
	}
	return wire.EncodeResource(u.Event)
}

// decoded returns the event with the service.
func (u update) decoded() federation.Event {
	if u.encoded != nil {
		u.Service = u.encoded.Service()
	}
	return u.Event
}

// left returns how many services of the catalog will be taken.
func (s *Subscription) left() int {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.unsent
}

// maxSkipped bounds the services that one call of take passes over, because they are
// not for the subscriber: the others wait for the lock meanwhile.
const maxSkipped = 4096

// take appends up to n events to updates, and does not wait for any. Once the registry
// has become unavailable there are none: what it holds since then may be a part. Neither
// are there during a Hold.
// When there are fewer than n, wake says when to try again.
func (s *Subscription) take(updates []update, n int) []update {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if s.availability.over() || s.registry.holds > 0 {
		return updates
	}
	s.policies = s.registry.policies.Load()
	skip := maxSkipped
	for ; n > 0; n-- {
		u, ok := s.takeOne(&skip)
		if !ok {
			break
		}
		updates = append(updates, u)
	}
	return updates
}

func (s *Subscription) takeOne(skip *int) (update, bool) {
	for s.skipTold(); len(s.catalog) > 0; s.skipTold() {
		if *skip == 0 {
			s.rouse()
			return update{}, false
		}
		name := s.catalog[0]
		s.catalog = s.catalog[1:]
		if s.leaves != nil {
			s.leaves = s.leaves[1:]
		}
		// A service that was deleted or hidden meanwhile was never told, so its deletion
		// is not either.
		if s.registry.visible(s.view, name) != nil {
			s.unsent--
			return s.update(name, s.begun, false), true
		}
		*skip--
	}
	if !s.ended {
		s.catalog, s.leaves, s.selection, s.ended = nil, nil, resume.Selection{}, true
		return update{Event: federation.Event{Operation: federation.End}, since: s.begun}, true
	}
	first := s.changes.next
	if first == &s.changes {
		return update{}, false
	}
	s.forget(first)
	return s.update(first.name, first.since, first.told), true
}

// update returns the update for a service as the subscriber sees it now.
func (s *Subscription) update(name string, since time.Time, told bool) update {
	u := update{Event: federation.Event{Operation: federation.Delete, Name: name}, since: since, told: told}
	if e := s.registry.visible(s.view, name); e != nil {
		u.Operation, u.encoded = federation.Upsert, e
		u.rule = s.registry.rule(s.view, name)
		return u
	}
	u.reason = "it is gone from the catalog"
	if s.registry.services[name] != nil {
		u.reason = "the policy does not tell it"
	}
	return u
}

// withdrawn reports whether the policy tells the service of an update no more that was
// taken last. Where another policy tells it, the update gets the shape of now.
func (s *Subscription) withdrawn(u *update) bool {
	r := s.registry
	if u.encoded == nil || s.policies == r.policies.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.availability.over():
		return true
	case r.holds > 0: // what was taken is what is still told
		return false
	}
	u.encoded, u.rule = r.visible(s.view, u.Name), r.rule(s.view, u.Name)
	return u.encoded == nil
}

// follow notes a difference of what the subscriber may be told. Additions come first
// and removals last: an fqdn that moves to a service of another name then has an answer
// all the time.
func (s *Subscription) follow(d difference) {
	for _, name := range d.added {
		s.upserted(name, false)
	}
	for _, name := range d.changed {
		s.upserted(name, true)
	}
	for _, name := range d.gone {
		s.removed(name)
	}
}

// upserted notes a service that is new or changed. Known says that the subscriber
// could be told of a version of it before.
func (s *Subscription) upserted(name string, known bool) {
	_, pending := s.pending[name]
	switch {
	case pending:
	case !s.isAhead(name):
		s.note(&change{name: name, told: known, since: time.Now()})
	case !known:
		s.unsent++
	}
}

// removed notes a service that is gone, or not for the subscriber any more.
func (s *Subscription) removed(name string) {
	c, pending := s.pending[name]
	switch {
	case pending && c.told:
	case pending:
		// The service came and went without the subscriber being told. If the change
		// were kept, the backlog of a slow consumer could grow larger than the catalog.
		s.forget(c)
	case s.isAhead(name):
		s.unsent--
	default:
		s.note(&change{name: name, told: true, since: time.Now()})
	}
}

// isAhead reports whether the name is yet to be looked at in the full catalog.
func (s *Subscription) isAhead(name string) bool {
	i, ahead := slices.BinarySearch(s.catalog, name)
	return ahead && (s.leaves == nil || s.selection.HasLeaf(int(s.leaves[i])))
}

// skipTold passes over the names at the beginning of the catalog that are not selected. A
// million of them take about a millisecond.
func (s *Subscription) skipTold() {
	n := 0
	for n < len(s.leaves) && !s.selection.HasLeaf(int(s.leaves[n])) {
		n++
	}
	if n > 0 {
		s.catalog, s.leaves = s.catalog[n:], s.leaves[n:]
	}
}

// note appends a change.
func (s *Subscription) note(c *change) {
	s.pending[c.name] = c
	s.most = max(s.most, len(s.pending))
	c.previous, c.next = s.changes.previous, &s.changes
	c.previous.next, c.next.previous = c, c
	s.rouse()
}

// rouse makes the subscriber look at what there is to take.
func (s *Subscription) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // there is a value already
	}
}

// forget removes a change.
func (s *Subscription) forget(c *change) {
	delete(s.pending, c.name)
	if len(s.pending) == 0 && s.most > fewChanges {
		s.pending, s.most = make(map[string]*change), 0 // a map never gives memory back
	}
	c.previous.next, c.next.previous = c.next, c.previous
}
