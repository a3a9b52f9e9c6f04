package owner

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/turnstile"
)

const (
	// catalogSlots is how many streams for each processor are sent what they have yet to
	// be told, while the others wait: enough to use the processor although most of them
	// wait for their consumer at any time.
	catalogSlots = 16

	// catalogHold is how long a stream may keep out others. One that takes longer has a
	// slow consumer or a large catalog; it goes on beside those that come after it.
	catalogHold = 2 * time.Second

	// fewServices is how many services are sent without waiting.
	fewServices = 100

	// longestQueue is how long a stream should have to wait, and longestTurn how long it
	// may: what is expected is not always what comes.
	longestQueue = 30 * time.Second
	longestTurn  = 2 * longestQueue

	// The delay that consumers are told that are turned away.
	shortestDelay = time.Second
	longestDelay  = 5 * time.Minute

	// parkingDelay is after what time a consumer that is refused may try again: ours comes
	// up to half as late again.
	parkingDelay = 4 * time.Minute
)

// admission has the streams take turns that have a catalog to send. When thousands of
// consumers come at once, their catalogs would otherwise be sent all at a time, so that
// nobody had any for as long as it takes to send all, and each stream had its own buffers
// full meanwhile. The turns go round between identities.
//
// Where the turn of a stream would come too late, it ends with the code Unavailable and a
// RetryInfo. The delays in these are one after the other, as far apart as turns are: the
// consumers come back as the owner can serve them.
type admission struct {
	turns *turnstile.Turnstile[string]

	mu         sync.Mutex
	every      time.Duration // between two turns while streams wait; an average
	last       time.Time     // when somebody that waited had its turn; zero where nobody has waited ever since
	promised   time.Time     // for when the last one that was turned away was told to come back
	turnedAway uint64
}

func newAdmission() *admission {
	slots := catalogSlots * runtime.GOMAXPROCS(0)
	return &admission{
		turns: turnstile.New[string](turnstile.Config{Slots: slots, Hold: catalogHold, Wait: longestTurn}),
		every: catalogHold / time.Duration(slots), // they come as fast as that at least
	}
}

// enter has a stream of a consumer wait for its turn. It fails with a status where that
// would take too long.
func (a *admission) enter(consumer string) (*turnstile.Visit, error) {
	a.mu.Lock()
	_, waiting := a.turns.Len()
	if waiting == 0 {
		a.last = time.Time{} // until the next one waits says nothing
	}
	every := a.every
	a.mu.Unlock()
	if time.Duration(waiting)*every > longestQueue && time.Duration(a.turns.Ahead(consumer))*every > longestQueue {
		return nil, a.turnAway()
	}
	return a.turns.Enter(consumer), nil
}

// smoothing is over how many turns the time between two of them is averaged.
const smoothing = 16

// admitted notes that a stream which waited has its turn.
func (a *admission) admitted() {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.last.IsZero() {
		a.every += (now.Sub(a.last) - a.every) / smoothing
	}
	a.last = now
}

// turnAway counts a stream that is turned away, and returns its status.
func (a *admission) turnAway() error {
	_, waiting := a.turns.Len()
	now := time.Now()
	a.mu.Lock()
	a.turnedAway++
	if free := now.Add(time.Duration(waiting) * a.every); a.promised.Before(free) {
		a.promised = free
	}
	a.promised = a.promised.Add(a.every)
	delay := a.promised.Sub(now)
	if delay >= longestDelay {
		// Nobody is told a longer one. These come back at any time of the second half,
		// and may be turned away once more.
		a.promised = now.Add(longestDelay)
		delay = longestDelay/2 + rand.N(longestDelay/2) //nolint:gosec // a jitter
	} else {
		delay += rand.N(delay/10 + 1) //nolint:gosec // a jitter
	}
	a.mu.Unlock()
	return busy(max(delay, shortestDelay))
}

// busy returns the status of a stream that is to be opened again after a delay.
func busy(delay time.Duration) error {
	return after(delay, status.New(codes.Unavailable, "too many consumers wait for the catalog; come back in "+delay.Round(time.Second).String()))
}

// parking returns the end of a stream so that a consumer that would not try again by itself
// may do so: what it was refused for can be corrected here, which it would not learn.
// Hamlet, 'Error Codes': after Unauthenticated a consumer "must not retry"; it takes one that
// knows RetryInfo to do it all the same.
func parking(err error) error {
	if s, ok := status.FromError(err); ok && (s.Code() == codes.Unauthenticated || s.Code() == codes.InvalidArgument) {
		return after(parkingDelay, s)
	}
	return err
}

// after returns a status with the delay before the next attempt.
func after(delay time.Duration, s *status.Status) error {
	detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

// queue waits for the turn of the stream to send so many services, and sends the answers
// meanwhile. What it takes is given back by release.
func (s *session) queue(ctx context.Context, services int) error {
	if services <= fewServices {
		return nil
	}
	a := s.server.admission
	turn, err := a.enter(s.consumer)
	if err != nil {
		return s.later(err)
	}
	s.turn = turn
	select {
	case <-turn.Turn:
		return nil
	default:
	}
	for {
		select {
		case <-turn.Turn:
			if turn.Err() != nil {
				return s.later(a.turnAway())
			}
			a.admitted()
			return nil
		case answer := <-s.answers:
			if err := s.decline(answer); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// later tells of a stream that ends with the status err, to be opened again.
func (s *session) later(err error) error {
	s.turnedAway(gate.Later, "too many consumers wait for the catalog; it was told when to come back")
	return err
}

// release lets another stream have its turn.
func (s *session) release() {
	if s.turn != nil {
		s.turn.Leave()
		s.turn = nil
	}
}

// AdmissionStats is the state of the streams that have a catalog to send.
type AdmissionStats struct {
	Sending    int    // that have their turn
	Waiting    int    // for their turn
	TurnedAway uint64 // since New, with a RetryInfo
}

func (a *admission) stats() AdmissionStats {
	sending, waiting := a.turns.Len()
	a.mu.Lock()
	defer a.mu.Unlock()
	return AdmissionStats{sending, waiting, a.turnedAway}
}
