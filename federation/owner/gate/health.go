package gate

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// health is the health service of gRPC. It answers every client whose certificate
// the server accepts, since a prober need not be one of the peers that it serves. In
// package grpc/health, a watcher's stream ends with Canceled when the server stops,
// and maybe before it has been sent NOT_SERVING.
type health struct {
	healthpb.UnimplementedHealthServer

	services []string        // that it knows; the empty name stands for the whole server
	stopping context.Context //nolint:containedctx // of Serve; its end is the state
}

// Check implements the health service.
func (h health) Check(_ context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if !slices.Contains(h.services, request.GetService()) {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	select {
	case <-h.stopping.Done():
		return state(healthpb.HealthCheckResponse_NOT_SERVING), nil
	default:
		return state(healthpb.HealthCheckResponse_SERVING), nil
	}
}

// Watch implements the health service.
func (h health) Watch(request *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	now := healthpb.HealthCheckResponse_SERVING
	if !slices.Contains(h.services, request.GetService()) {
		now = healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	}
	if err := stream.Send(state(now)); err != nil {
		return err
	}
	ctx := stream.Context()
	<-ctx.Done()
	err := context.Cause(ctx)
	if !errors.Is(err, errShutdown) {
		return status.FromContextError(err).Err()
	}
	// The server is stopping.
	if now == healthpb.HealthCheckResponse_SERVING {
		if err := stream.Send(state(healthpb.HealthCheckResponse_NOT_SERVING)); err != nil {
			return err
		}
	}
	return err
}

func state(s healthpb.HealthCheckResponse_ServingStatus) *healthpb.HealthCheckResponse {
	return &healthpb.HealthCheckResponse{Status: s}
}
