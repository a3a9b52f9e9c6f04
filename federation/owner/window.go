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

	answered watermark
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

// flight returns the response with the nonce, if it is in flight.
func (w *window) flight(nonce string) (flight, bool) {
	n, err := strconv.ParseUint(nonce, 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.flights[n]
	return f, ok && err == nil
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
	w.answered.advance(w.first)
	if len(w.flights) == 0 && w.most > fewFlights { // a map does not get smaller
		w.flights, w.most = nil, 0
	}
	select {
	case w.room <- struct{}{}:
	default: // there is a value already
	}
	return answered, true
}

// told notes that the responses before the next one have all of a version, and returns the
// number of that one.
func (w *window) told(version uint64) (next uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered.note(mark{version, w.next}, w.first)
	return w.next
}

// acknowledged returns how far the consumer has answered.
func (w *window) acknowledged() watermark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answered
}

// acknowledgedBefore returns the number of the oldest response that is not answered.
func (w *window) acknowledgedBefore() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
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

// mark is a version of the catalog, and the number of the first response after those that have
// all of it.
type mark struct{ version, end uint64 }

// watermark is the newest version that a consumer is done with, and when that was. Of those
// that it is not done with yet it knows the oldest and the newest: so it moves on however
// often the catalog changes, and takes the same room for any number of changes.
type watermark struct {
	version        uint64
	at             time.Time
	oldest, newest mark // zero without one
}

// note adds a version, where the consumer is done with the responses before first.
func (m *watermark) note(v mark, first uint64) {
	switch {
	case v.version <= max(m.version, m.oldest.version, m.newest.version):
		return
	case m.oldest.version == 0:
		m.oldest = v
	default:
		m.newest = v
	}
	m.advance(first)
}

// advance notes that the consumer is done with the responses before first.
func (m *watermark) advance(first uint64) {
	for m.oldest.version != 0 && m.oldest.end <= first {
		m.version, m.at = m.oldest.version, time.Now()
		m.oldest, m.newest = m.newest, mark{}
	}
}
