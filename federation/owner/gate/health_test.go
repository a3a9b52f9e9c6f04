package gate

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestHealthDuringShutdown(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := health{services: []string{""}, stopping: ctx}.Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || got.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health is %v (%v), expected NOT_SERVING", got.GetStatus(), err)
	}
}

// watchStream is the server's end of a Watch. A Send fails when there is an error
// for it.
type watchStream struct {
	grpc.ServerStream

	ctx  context.Context //nolint:containedctx // gRPC asks the stream for its context
	errs []error         // of the calls of Send
	sent []healthpb.HealthCheckResponse_ServingStatus
}

func (s *watchStream) Context() context.Context { return s.ctx }

func (s *watchStream) Send(m *healthpb.HealthCheckResponse) error {
	s.sent = append(s.sent, m.GetStatus())
	if n := len(s.sent); n <= len(s.errs) {
		return s.errs[n-1]
	}
	return nil
}

// TestHealthWatchFails watches over a stream on which nothing can be sent, at first
// or when the server stops.
func TestHealthWatchFails(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		errs []error
		sent int
		want error
	}{
		{"at first", []error{broken}, 1, broken},
		{"when the server stops", []error{nil, broken}, 2, broken},
		{"never", nil, 2, errShutdown},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errShutdown)
		stream := &watchStream{ctx: ctx, errs: tt.errs}
		if err := (health{services: []string{""}}).Watch(&healthpb.HealthCheckRequest{}, stream); !errors.Is(err, tt.want) || len(stream.sent) != tt.sent {
			t.Errorf("%s: the error is %v after %v, expected %v", tt.name, err, stream.sent, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stream := &watchStream{ctx: ctx}
	if err := (health{services: []string{""}}).Watch(&healthpb.HealthCheckRequest{}, stream); status.Code(err) != codes.Canceled || len(stream.sent) != 1 {
		t.Errorf("of a watcher that leaves: the error is %v after %v, expected Canceled", err, stream.sent)
	}
}
