package owner

import (
	"strconv"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// window holds the responses of one stream that are in flight: sent, or about to
// be, and not acknowledged yet. The nonce of a response is its number, from 1 on.
//
// The window slides: response n is sent when response n-len(ring) and all before it
// are acknowledged. A consumer may acknowledge in any order; one that does so in
// order gets the most out of the window.
type window struct {
	room chan struct{} // holds a value when there may be room again

	mu   sync.Mutex
	ring []flight // response n is at index n modulo the length; guarded by mu

	// Responses first to next-1 are in flight, except those that were
	// acknowledged before an older one. Guarded by mu.
	first, next uint64
}

// flight is a response that is in flight.
type flight struct {
	operation    federation.Operation
	acknowledged bool // before an older one was
	name         string
	since        time.Time // as in update
}

func newWindow(size int) *window {
	return &window{room: make(chan struct{}, 1), ring: make([]flight, size), first: 1, next: 1}
}

// free returns how many responses there is room for. When room has a value, that
// number may have grown.
func (w *window) free() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ring) - int(w.next-w.first) //nolint:gosec // at most the length
}

// add notes a response, for which there must be room, and returns its nonce.
func (w *window) add(u update) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.next
	w.next++
	*w.at(n) = flight{operation: u.Operation, name: u.Name, since: u.since}
	return strconv.FormatUint(n, 10)
}

// acknowledge removes the response with the nonce, and reports whether it was in
// flight.
func (w *window) acknowledge(nonce string) (flight, bool) {
	n, err := strconv.ParseUint(nonce, 10, 64)
	if err != nil {
		return flight{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < w.first || n >= w.next || w.at(n).acknowledged {
		return flight{}, false
	}
	answered := *w.at(n)
	w.at(n).acknowledged = true
	if n != w.first {
		return answered, true
	}
	for w.first < w.next && w.at(w.first).acknowledged {
		*w.at(w.first) = flight{} // keep no reference to the name
		w.first++
	}
	select {
	case w.room <- struct{}{}:
	default: // there is a value already
	}
	return answered, true
}

// inFlight returns how many responses are in flight, and the earliest since of
// them.
func (w *window) inFlight() (n int, oldest time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := w.first; i < w.next; i++ {
		if !w.at(i).acknowledged {
			n++
			oldest = earlier(oldest, w.at(i).since)
		}
	}
	return n, oldest
}

// at returns the place of response n. The caller holds the lock.
func (w *window) at(n uint64) *flight { return &w.ring[n%uint64(len(w.ring))] }
