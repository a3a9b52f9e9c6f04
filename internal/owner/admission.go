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
	// catalogSlots is how many streams for each processor are sent what they have yet to
	// be told, while the others wait: enough to use the processor although most of them
	// wait for their consumer at any time.
	catalogSlots = 16

	// catalogHold is how long a stream may keep out others. One that takes longer has a
	// slow consumer or a large catalog; it goes on beside those that come after it.
	catalogHold = 2 * time.Second

	// fewServices is how many services are sent without waiting.
	fewServices = 100

	// longestWait is how long a stream waits until it is sent the catalog.
	longestWait = 30 * time.Second

	// consumersPerSecond is how many of the consumers that are told to come back are to
	// come in a second, if all are told at once.
	consumersPerSecond = 500

	// parkingDelay is after what time a consumer that is refused may try again: ours comes
	// up to a quarter as late again.
	parkingDelay = 4 * time.Minute
)

// errBusy ends a stream that has waited for longestWait.
var errBusy = status.Error(codes.Unavailable, "too many consumers wait for the catalog")

// retryDelay returns when one of many consumers is to come back, so that they do not all
// come at once.
func (s *Server) retryDelay() time.Duration {
	s.mu.Lock()
	consumers := len(s.sessions)
	s.mu.Unlock()
	return time.Second + time.Duration(rand.Float64()*float64(consumers)/consumersPerSecond*float64(time.Second)) //nolint:gosec // a jitter
}

// withRetryDelay returns the end of a stream whose consumer is to come back.
func (s *Server) withRetryDelay(err error) error {
	return withRetryInfo(s.retryDelay(), status.Convert(err))
}

// withParkingDelay returns the end of a stream so that a consumer that would not try again by itself
// may do so: what it was refused for can be corrected here, which it would not learn.
// Hamlet, 'Error Codes': after Unauthenticated a consumer "must not retry"; it takes one that
// knows RetryInfo to do it all the same.
func withParkingDelay(err error) error {
	if s, ok := status.FromError(err); ok && (s.Code() == codes.Unauthenticated || s.Code() == codes.InvalidArgument) {
		return withRetryInfo(parkingDelay, s)
	}
	return err
}

// withRetryInfo returns a status with the delay before the next attempt.
func withRetryInfo(delay time.Duration, s *status.Status) error {
	detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

// awaitSlot waits until the stream may be sent so many services, beside not too many others. When
// thousands of consumers come at once, their catalogs would otherwise be sent all at a time, so
// that nobody had any for as long as it takes to send all, and each stream had its own buffers
// full meanwhile. What awaitSlot takes is given back by release, or after catalogHold.
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
			s.turnedAway(gate.Later, "too many consumers wait for the catalog; it was told when to come back")
			return s.server.withRetryDelay(err)
		}
		return err
	}
	s.release = sync.OnceFunc(func() { slots.Release(1) })
	time.AfterFunc(catalogHold, s.release)
	return nil
}
