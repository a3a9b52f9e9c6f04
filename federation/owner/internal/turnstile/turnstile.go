// Package turnstile lets a bounded number of visitors at a time do something that is
// costly, and has the others wait for their turn: fairly between those who sent them, and
// in order among those of one sender.
//
// golang.org/x/sync/semaphore is fair between waiters only: a sender with a thousand of
// them would be a thousand times ahead of one with a single one.
package turnstile

import (
	"container/list"
	"errors"
	"sync"
	"time"
)

// ErrLate is why a visitor is turned away that has waited for as long as it may.
var ErrLate = errors.New("the wait was too long")

// Config is how a Turnstile works.
type Config struct {
	// Slots is how many visitors may be inside, and Hold how long each of them counts
	// as such, though it may go on: one that makes no progress keeps out the others for
	// no longer. Both are more than 0.
	Slots int
	Hold  time.Duration

	// Wait is how long a visitor may wait for its turn. One that has waited for longer is
	// turned away with ErrLate.
	Wait time.Duration
}

// Turnstile has visitors, each of which somebody with the key K has sent. It is safe for
// concurrent use.
type Turnstile[K comparable] struct {
	config Config

	mu      sync.Mutex // guards the fields below, and those of every Visit
	inside  int
	waiting int
	senders map[K]*list.Element // of turns
	turns   list.List           // of *sender[K]; the first one is next
}

// sender is somebody whose visitors wait.
type sender[K comparable] struct {
	key    K
	visits list.List // of *Visit, the oldest first; never empty
}

// Visit is a visitor's.
type Visit struct {
	// Turn is closed when it is the visitor's turn, or it is turned away; see Err.
	Turn <-chan struct{}

	turn  chan struct{}
	leave func()

	// Guarded by the mutex of the turnstile.

	state state
	place *list.Element // in sender.visits, while it waits
	timer *time.Timer   // until it has waited, and then been inside, for too long
	err   error
}

type state int

const (
	waiting state = iota
	inside
	gone
)

// New returns a turnstile without visitors.
func New[K comparable](c Config) *Turnstile[K] {
	return &Turnstile[K]{config: c, senders: make(map[K]*list.Element)}
}

// Enter has a visitor wait for its turn, which may be at once. Whoever calls it calls
// Leave in the end.
func (t *Turnstile[K]) Enter(key K) *Visit {
	turn := make(chan struct{})
	v := &Visit{Turn: turn, turn: turn}
	v.leave = func() { t.end(key, v, nil) }
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inside < t.config.Slots {
		t.admit(v)
		return v
	}
	at := t.senders[key]
	if at == nil {
		at = t.turns.PushBack(&sender[K]{key: key})
		t.senders[key] = at
	}
	v.place = at.Value.(*sender[K]).visits.PushBack(v)
	v.timer = time.AfterFunc(t.config.Wait, func() { t.end(key, v, ErrLate) })
	t.waiting++
	return v
}

// Leave makes room for another visitor, or gives up the wait. Only the first call counts.
func (v *Visit) Leave() { v.leave() }

// Err returns why the visitor was turned away, once Turn is closed, or nil if it has its
// turn.
func (v *Visit) Err() error {
	<-v.turn
	return v.err
}

// Len returns how many visitors are inside, and how many wait.
func (t *Turnstile[K]) Len() (inside, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inside, t.waiting
}

// admit lets a visitor in. The caller holds the lock.
func (t *Turnstile[K]) admit(v *Visit) {
	v.state = inside
	t.inside++
	v.timer = time.AfterFunc(t.config.Hold, v.leave)
	close(v.turn)
}

// end ends a visit. With a reason only a wait ends.
func (t *Turnstile[K]) end(key K, v *Visit, reason error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case v.state == waiting:
		at := t.senders[key]
		t.remove(at, v)
		v.state, v.err = gone, reason
		close(v.turn)
	case v.state == inside && reason == nil:
		v.state = gone
		v.timer.Stop()
		t.inside--
		t.next()
	}
}

// remove takes a visitor out of those that wait. The caller holds the lock.
func (t *Turnstile[K]) remove(at *list.Element, v *Visit) {
	s := at.Value.(*sender[K])
	s.visits.Remove(v.place)
	v.timer.Stop()
	t.waiting--
	if s.visits.Len() == 0 {
		t.turns.Remove(at)
		delete(t.senders, s.key)
	}
}

// next lets in the oldest visitor of the sender whose turn it is, who is the last one
// then. The caller holds the lock.
func (t *Turnstile[K]) next() {
	at := t.turns.Front()
	if at == nil {
		return
	}
	t.turns.MoveToBack(at)
	v := at.Value.(*sender[K]).visits.Front().Value.(*Visit)
	t.remove(at, v)
	t.admit(v)
}
