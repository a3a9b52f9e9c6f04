package owner

import (
	"strconv"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// window is what of one stream is in flight: sent, or about to be, and not
// acknowledged yet. Its nonces are the numbers of the responses from 1 on.
//
// It slides: response n is sent when n-len(ring) and all before it are
// acknowledged. A consumer may acknowledge in any order, and one that does so in
// order gets the whole of the window.
type window struct {
	room chan struct{} // holds a value when there may be room again

	mu   sync.Mutex
	ring []flight // response n stands at n modulo the length; guarded by mu

	// Responses first to next-1 are in flight, but for those that were
	// acknowledged before an older one. Guarded by mu.
	first, next uint64
}

// flight is a response that is in flight.
type flight struct {
	operation    federation.Operation
	acknowledged bool // before an older one was
	name         string
	since        time.Time // when what it says became true
}

func newWindow(size int) *window {
	return &window{room: make(chan struct{}, 1), ring: make([]flight, size), first: 1, next: 1}
}

// free returns how many responses there is room for. More may be free when
// room has a value.
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

// acknowledge takes out the response with the nonce, and tells whether it was in
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
		*w.at(w.first) = flight{} // which lets go of the name
		w.first++
	}
	select {
	case w.room <- struct{}{}:
	default: // it has been told
	}
	return answered, true
}

// inFlight returns how many responses are in flight, and since when what the
// oldest of them says has been true.
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
