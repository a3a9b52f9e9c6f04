package owner

import (
	"strconv"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// sendWindow keeps the responses of one stream that are in flight: sent, or about to be sent, and
// not acknowledged yet. The writer of the stream adds them and its reader removes them. There are
// at most size of them, so that a consumer that does not acknowledge stops its own stream and
// nothing else. The nonce of a response is its number, from 1 on.
//
// The window slides: response n is sent when response n-size and all before it are acknowledged. A
// consumer may acknowledge in any order; one that does so in order gets the most out of the window.
// A window keeps the name and the time of a response, but not its service, because nothing is sent
// twice.
type sendWindow struct {
	room chan struct{} // holds a value when there may be room again, if free has returned none
	size int           // how many responses may be in flight; read-only

	mu sync.Mutex // guards the fields below

	first   uint64         // the number of the oldest response that is in flight, or of the next one
	flights []sentResponse // from first on; nil at rest, as most consumers are
	awaited bool           // whether the writer waits for room
}

// sentResponse is a response that is in flight.
type sentResponse struct {
	operation wire.Operation
	name      string
	since     time.Time // as in registry.Update
	answered  bool      // acknowledged before an older response
}

func newSendWindow(size int) *sendWindow {
	return &sendWindow{room: make(chan struct{}, 1), size: size, first: 1}
}

// freeRoom returns how many responses there is room for. Where it returns 0, the channel room gets
// a value once there is some. An acknowledgement wakes nobody who does not wait.
func (w *sendWindow) freeRoom() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaited = len(w.flights) == w.size
	return w.size - len(w.flights)
}

// addResponse adds a response, for which there must be room, and returns its nonce.
func (w *sendWindow) addResponse(u registry.Update) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flights = append(w.flights, sentResponse{operation: u.Operation, name: u.Name, since: u.Since})
	return strconv.FormatUint(w.nextNumber()-1, 10)
}

// nextNumber returns the number of the next response. The caller holds mu.
func (w *sendWindow) nextNumber() uint64 { return w.first + uint64(len(w.flights)) }

// findResponse returns the response with the nonce, or nil if it is not in flight. The caller holds mu.
func (w *sendWindow) findResponse(nonce string) *sentResponse {
	n, err := strconv.ParseUint(nonce, 10, 64)
	if err != nil || n < w.first || n >= w.nextNumber() || w.flights[n-w.first].answered {
		return nil
	}
	return &w.flights[n-w.first]
}

// acknowledge removes the response with the nonce and returns it. It reports false if the response
// is not in flight.
func (w *sendWindow) acknowledge(nonce string) (sentResponse, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.findResponse(nonce)
	if f == nil {
		return sentResponse{}, false
	}
	answered := *f
	if *f = (sentResponse{answered: true}); f != &w.flights[0] {
		return answered, true
	}
	for len(w.flights) > 0 && w.flights[0].answered {
		w.first++
		w.flights = w.flights[1:]
	}
	if len(w.flights) == 0 {
		w.flights = nil
	}
	if w.awaited {
		w.awaited = false
		wake.Up(w.room)
	}
	return answered, true
}

// inFlight returns how many responses are in flight, and the earliest time since which one is due.
func (w *sendWindow) inFlight() (n int, oldest time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.flights {
		if !f.answered {
			n++
			oldest = moment.Earlier(oldest, f.since)
		}
	}
	return n, oldest
}
