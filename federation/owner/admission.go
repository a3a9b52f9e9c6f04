package owner

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
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

	// longestWait is how long a stream waits for its turn.
	longestWait = 30 * time.Second

	// consumersPerSecond is how many of the consumers that are told to come back are to
	// come in a second, if all are told at once.
	consumersPerSecond = 500

	// parkingDelay is after what time a consumer that is refused may try again: ours comes
	// up to half as late again.
	parkingDelay = 4 * time.Minute
)

// admission has the streams take turns that have a catalog to send. When thousands of
// consumers come at once, their catalogs would otherwise be sent all at a time, so that
// nobody had any for as long as it takes to send all, and each stream had its own buffers
// full meanwhile. The turns go round between identities. A stream that waits for too long
// ends with the code Unavailable and a RetryInfo.
type admission struct {
	turns      *turnstile.Turnstile[string]
	turnedAway atomic.Uint64
}

func newAdmission(slots int) *admission {
	return &admission{turns: turnstile.New[string](turnstile.Config{Slots: slots, Hold: catalogHold, Wait: longestWait})}
}

// retryDelay returns when one of many consumers is to come back, so that they do not all
// come at once.
func (s *Server) retryDelay() time.Duration {
	s.mu.Lock()
	consumers := len(s.sessions)
	s.mu.Unlock()
	return time.Second + time.Duration(rand.Float64()*float64(consumers)/consumersPerSecond*float64(time.Second)) //nolint:gosec // a jitter
}

// later returns the end of a stream whose consumer is to come back.
func (s *Server) later(err error) error { return after(s.retryDelay(), status.Convert(err)) }

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
	s.turn = a.turns.Enter(s.consumer)
	for {
		select {
		case <-s.turn.Turn:
			if s.turn.Err() == nil {
				return nil
			}
			a.turnedAway.Add(1)
			s.turnedAway(gate.Later, "too many consumers wait for the catalog; it was told when to come back")
			delay := s.server.retryDelay()
			return after(delay, status.New(codes.Unavailable, "too many consumers wait for the catalog; come back in "+delay.Round(time.Second).String()))
		case answer := <-s.answers:
			if err := s.decline(answer); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
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
	return AdmissionStats{sending, waiting, a.turnedAway.Load()}
}
