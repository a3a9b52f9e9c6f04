package owner

import (
	"strconv"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// window holds the responses of one stream that are in flight: sent, or about to
// be, and not acknowledged yet. The nonce of a response is its number, from 1 on.
//
// The window slides: response n is sent when response n-len(ring) and all before it
// are acknowledged. A consumer may acknowledge in any order; one that does so in
// order gets the most out of the window.
type window struct {
	room chan struct{} // holds a value when there may be room again
	size int           // how many responses may be in flight; read-only

	mu sync.Mutex

	// ring has response n at index n modulo the length. It grows up to size as it is
	// used, and is given back when there is nothing to send and nothing in flight.
	// Guarded by mu, as is resting: whether there is nothing to send.
	ring    []flight
	resting bool

	// Responses first to next-1 are in flight, except those that were
	// acknowledged before an older one. Guarded by mu.
	first, next uint64
}

// fewFlights is the length of the ring of a consumer at rest: most of them are, and what
// one of them costs, thousands of them do.
const fewFlights = 4

// flight is a response that is in flight.
type flight struct {
	operation    federation.Operation
	acknowledged bool // before an older one was
	name         string
	since        time.Time // as in update
}

func newWindow(size int) *window {
	return &window{room: make(chan struct{}, 1), size: size, first: 1, next: 1}
}

// free returns how many responses there is room for. When room has a value, that
// number may have grown.
func (w *window) free() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size - int(w.next-w.first) //nolint:gosec // at most the size
}

// add notes a response, for which there must be room, and returns its nonce.
func (w *window) add(u registry.Update) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.next
	if n-w.first == uint64(len(w.ring)) {
		w.resize(min(w.size, max(fewFlights, 2*len(w.ring))))
	}
	w.next++
	w.resting = false
	*w.at(n) = flight{operation: u.Operation, name: u.Name, since: u.Since}
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
	w.giveBack()
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

// rest notes that there is nothing to send for now.
func (w *window) rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resting = true
	w.giveBack()
}

// giveBack drops a ring that is larger than what a consumer at rest needs. The caller
// holds the lock.
func (w *window) giveBack() {
	if w.resting && w.first == w.next && len(w.ring) > fewFlights {
		w.ring = nil
	}
}

// resize makes the ring one of that length, which has room for what is in flight. The
// caller holds the lock.
func (w *window) resize(length int) {
	old := w.ring
	w.ring = make([]flight, length)
	for n := w.first; n < w.next; n++ {
		*w.at(n) = old[n%uint64(len(old))]
	}
}

// at returns the place of response n. The caller holds the lock.
func (w *window) at(n uint64) *flight { return &w.ring[n%uint64(len(w.ring))] }
