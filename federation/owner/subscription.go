package owner

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Subscribe returns a subscription that begins with the catalog as it is now.
// While the registry is unavailable it fails at once. The caller closes it.
func (r *Registry) Subscribe() *Subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &Subscription{
		registry: r,
		era:      r.era,
		begun:    time.Now(),
		wake:     make(chan struct{}, 1),
		pending:  make(map[string]*change),
	}
	s.changes.previous, s.changes.next = &s.changes, &s.changes
	if !s.era.over() {
		s.catalog = r.sortedNames()
		r.subscriptions[s] = struct{}{}
	}
	return s
}

// Subscription is one subscriber's view of a Registry: the full catalog, the
// end marker, and then every change in order. A service that changes again before
// its change was taken keeps its place in the order, and is taken once, in its
// latest version. So no change is lost, and a service that changes all the time does
// not keep others waiting.
type Subscription struct {
	registry *Registry     // read-only after Subscribe
	era      era           // read-only after Subscribe; when it ends, so does the subscription
	begun    time.Time     // read-only after Subscribe
	wake     chan struct{} // holds one value when there may be something to take

	// Guarded by the mutex of registry.

	// catalog holds the names of the full catalog, as it was when the subscription
	// began, that have not been taken yet; ended says that its end marker has been
	// taken.
	catalog []string
	ended   bool

	// pending holds the services that have changed since they were taken, by name.
	// Changes is the head of a ring of the same, in order: container/list would
	// allocate another element for each. No name is in both catalog and pending;
	// a service that is in neither was taken in its latest version.
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
	delete(s.registry.subscriptions, s)
}

// Next returns the next event, and waits until there is one. It fails when ctx ends,
// with its cause, and once the registry has become unavailable, with a status of the
// code Unavailable. Only one goroutine may call it at a time.
func (s *Subscription) Next(ctx context.Context) (federation.Event, error) {
	for ctx.Err() == nil {
		if updates := s.take(nil, 1); len(updates) > 0 {
			return updates[0].decoded(), nil
		}
		if s.era.over() {
			return federation.Event{}, s.era.reason()
		}
		select {
		case <-s.wake:
		case <-s.era.ctx.Done():
		case <-ctx.Done():
		}
	}
	return federation.Event{}, context.Cause(ctx)
}

// update is an event with what the server needs to know about it.
type update struct {
	federation.Event // without the service

	encoded *wire.Encoded // the service, for an Upsert

	since time.Time // when the change happened; for the catalog, when the subscription began
	told  bool      // whether the subscriber has been told of the service before
}

// resource returns the resource of the v1alpha2 message for the update.
func (u update) resource() (*anypb.Any, error) {
	if u.encoded != nil {
		return u.encoded.Resource()
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

// take appends up to n events to updates, and does not wait for any. Once the registry
// has become unavailable there are none: what it holds since then may be a part.
func (s *Subscription) take(updates []update, n int) []update {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if s.era.over() {
		return updates
	}
	for ; n > 0; n-- {
		u, ok := s.takeOne()
		if !ok {
			break
		}
		updates = append(updates, u)
	}
	return updates
}

func (s *Subscription) takeOne() (update, bool) {
	for len(s.catalog) > 0 {
		name := s.catalog[0]
		s.catalog = s.catalog[1:]
		// A service that was deleted meanwhile was never told, so its deletion is not
		// either.
		if s.registry.services[name] != nil {
			return s.update(name, s.begun, false), true
		}
	}
	if !s.ended {
		s.catalog, s.ended = nil, true
		return update{Event: federation.Event{Operation: federation.End}, since: s.begun}, true
	}
	first := s.changes.next
	if first == &s.changes {
		return update{}, false
	}
	s.forget(first)
	return s.update(first.name, first.since, first.told), true
}

// update returns the update for a service as it is now.
func (s *Subscription) update(name string, since time.Time, told bool) update {
	u := update{Event: federation.Event{Operation: federation.Delete, Name: name}, since: since, told: told}
	if e := s.registry.services[name]; e != nil {
		u.Operation, u.encoded = federation.Upsert, e
	}
	return u
}

// upserted notes a service that is new or changed. Known says that the registry had
// a version of it before.
func (s *Subscription) upserted(name string, known bool) {
	if s.isPending(name) {
		return
	}
	s.note(&change{name: name, told: known, since: time.Now()})
}

// removed notes a service that is gone.
func (s *Subscription) removed(name string) {
	c, ok := s.pending[name]
	switch {
	case ok && !c.told:
		// The service came and went without the subscriber being told. If the change
		// were kept, the backlog of a slow consumer could grow larger than the catalog.
		s.forget(c)
	case !s.isPending(name):
		s.note(&change{name: name, told: true, since: time.Now()})
	}
}

// isPending reports whether the subscriber will be told of the name anyway.
func (s *Subscription) isPending(name string) bool {
	if _, ok := s.pending[name]; ok {
		return true
	}
	_, ok := slices.BinarySearch(s.catalog, name)
	return ok
}

// note appends a change.
func (s *Subscription) note(c *change) {
	s.pending[c.name] = c
	s.most = max(s.most, len(s.pending))
	c.previous, c.next = s.changes.previous, &s.changes
	c.previous.next, c.next.previous = c, c
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
