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
// The window slides: response n is sent when response n-size and all before it
// are acknowledged. A consumer may acknowledge in any order; one that does so in
// order gets the most out of the window.
type window struct {
	room chan struct{} // holds a value when there may be room again
	size int           // how many responses may be in flight; read-only

	mu sync.Mutex // guards the fields below

	// Responses first to next-1 are in flight, except those that were acknowledged before an
	// older one.
	first, next uint64
	flights     map[uint64]flight // those that are, by their numbers
	most        int               // how many there were at once since the map was made
}

// fewFlights is how large the map of a consumer at rest may be: most of them are, and what
// one of them costs, thousands of them do.
const fewFlights = 4

// flight is a response that is in flight.
type flight struct {
	operation federation.Operation
	name      string
	since     time.Time // as in registry.Update
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
	if w.flights == nil {
		w.flights = make(map[uint64]flight)
	}
	n := w.next
	w.next++
	w.flights[n] = flight{operation: u.Operation, name: u.Name, since: u.Since}
	w.most = max(w.most, len(w.flights))
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
	answered, ok := w.flights[n]
	if !ok {
		return flight{}, false
	}
	delete(w.flights, n)
	if n != w.first {
		return answered, true
	}
	for w.first < w.next {
		if _, waits := w.flights[w.first]; waits {
			break
		}
		w.first++
	}
	if len(w.flights) == 0 && w.most > fewFlights { // a map does not get smaller
		w.flights, w.most = nil, 0
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
	for _, f := range w.flights {
		oldest = earlier(oldest, f.since)
	}
	return len(w.flights), oldest
}
