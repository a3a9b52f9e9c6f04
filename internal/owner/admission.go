package owner

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/internal/gate"
)

const (
	// catalogSlots is how many streams for each processor are sent their backlog at a time, while
	// the others wait: enough to use the processor although most of them wait for their
	// consumer at any time.
	catalogSlots = 16

	// catalogHold is how long a stream may keep others out. A stream that takes longer has a
	// slow consumer or a large catalog; it goes on beside those that come after it.
	catalogHold = 2 * time.Second

	// fewServices is how many services are sent without waiting.
	fewServices = 100

	// longestWait is how long a stream waits for a slot at most.
	longestWait = 30 * time.Second

	// consumersPerSecond is how many consumers come back in a second, if all of them are told to
	// come back at once.
	consumersPerSecond = 500

	// parkingDelay is the time after which a refused consumer may try again. Consumers of this project
	// add up to a quarter of that.
	parkingDelay = 4 * time.Minute
)

// errBusy ends a stream that has waited for longestWait.
var errBusy = status.Error(codes.Unavailable, "too many consumers wait for the catalog")

// retryDelay returns when one of many consumers is to come back. The delay is random, so that they
// do not all come at once.
func (s *Server) retryDelay() time.Duration {
	s.mu.Lock()
	consumers := len(s.sessions)
	s.mu.Unlock()
	return time.Second + time.Duration(rand.Float64()*float64(consumers)/consumersPerSecond*float64(time.Second)) //nolint:gosec // a jitter
}

// withRetryDelay returns err as a status with the delay after which the consumer is to come back.
func (s *Server) withRetryDelay(err error) error {
	return withRetryInfo(s.retryDelay(), status.Convert(err))
}

// withParkingDelay returns the end of a stream, with a delay where the consumer would not try again
// by itself. The owner may correct what the consumer was refused for, and the consumer would not
// learn that. Hamlet, 'Error Codes': after Unauthenticated a consumer "must not retry"; a consumer
// that knows RetryInfo does so all the same.
func withParkingDelay(err error) error {
	if s, ok := status.FromError(err); ok && (s.Code() == codes.Unauthenticated || s.Code() == codes.InvalidArgument) {
		return withRetryInfo(parkingDelay, s)
	}
	return err
}

// withRetryInfo returns the status with the delay before the next attempt.
func withRetryInfo(delay time.Duration, s *status.Status) error {
	detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

// awaitSlot waits until the stream may be sent so many services beside not too many others, and
// returns why it may not, or nil. When thousands of consumers come at once, the owner would
// otherwise send all catalogs at the same time: nobody had a whole catalog before all were sent,
// and each stream had its own full buffers meanwhile. The slot is freed by release, or after
// catalogHold.
func (s *streamSession) awaitSlot(ctx context.Context, services int) error {
	if services <= fewServices {
		return nil
	}
	slots := s.server.slots
	waiting, cancel := context.WithTimeoutCause(ctx, longestWait, errBusy)
	defer cancel()
	if slots.Acquire(waiting, 1) != nil {
		err := context.Cause(waiting)
		if errors.Is(err, errBusy) {
			s.server.postponed.Add(1)
			s.turnedAway(gate.Later, "consumer was told when to come back: too many consumers wait for the catalog")
			return s.server.withRetryDelay(err)
		}
		return err
	}
	s.release = sync.OnceFunc(func() { slots.Release(1) })
	time.AfterFunc(catalogHold, s.release)
	return nil
}
