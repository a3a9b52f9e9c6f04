package gate

import (
	"context"
	"errors"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// The limits of one connection.
const (
	// HandshakeTimeout is how long a TLS handshake may last.
	HandshakeTimeout = 10 * time.Second

	// MaxIdle is how long a connection may be without a stream. Peers open their
	// stream at once.
	MaxIdle = time.Minute

	maxStreams     = 8        // on one connection; a peer needs one
	maxHeaderBytes = 16 << 10 // of the metadata of a stream

	// readBufferBytes is the size of the read buffer of each connection. It holds
	// acknowledgements or registrations, so a larger one makes nothing faster.
	readBufferBytes = 2 << 10

	// minPing is the smallest interval of a peer's pings. The answer to a ping
	// costs next to nothing, and an owner that refuses pings loses consumers: the
	// reference owner insists on 40 s while its own consumers ping every 20 s. The
	// interval is well below any in use, because the network can bring two pings
	// closer together.
	minPing = time.Second

	// pingInterval and pingTimeout detect a peer that disappeared without closing
	// its connection.
	pingInterval = time.Minute
	pingTimeout  = 20 * time.Second
)

// ShutdownTimeout is how long peers have to read the status of their streams when a port
// is not served any more.
const ShutdownTimeout = 5 * time.Second

// errShutdown ends every stream of a server that stops. Hamlet, 'Error Codes':
// consumers retry after Unavailable.
var errShutdown = status.Error(codes.Unavailable, "owner is shutting down")

// Port is where a gate offers services to peers.
type Port struct {
	Listener    net.Listener
	Credentials credentials.TransportCredentials
	Role        string // what a peer is called in the log, such as consumer
	MaxMessage  int    // bytes of the largest message that is received, and that a peer may send ahead

	// Register adds services whose streams end with the port. Lasting adds services whose streams
	// end by themselves soon after, so that they can tell their peers more than a status does. One
	// of the two may be nil.
	Register, Lasting func(to grpc.ServiceRegistrar)
}

// Serve offers the services of a port, and the health service of gRPC, until ctx ends, and then
// returns nil. It closes the listener. When ctx ends, the TLS handshakes end, and so do the
// contexts of all streams except the lasting ones; their cause is a status of gRPC with the code
// Unavailable. Connections that are still open 5 seconds later are closed. Serve returns when no
// handler runs any more. It fails when the listener does. Several ports can be served at a time.
func (g *Gate) Serve(ctx context.Context, p Port) error {
	ctx, cancel := context.WithCancel(ctx)
	ending := make(map[string]bool) // the services of Register
	server := grpc.NewServer(
		grpc.Creds(slotCredentials{p.Credentials, p.Role, ctx}),
		grpc.ConnectionTimeout(HandshakeTimeout),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(p.MaxMessage),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ReadBufferSize(readBufferBytes),
		// Otherwise gRPC measures how much to let a peer send ahead, up to 16 MiB: with a ping
		// for nearly every acknowledgement, which costs as much as that.
		grpc.StaticStreamWindowSize(int32(p.MaxMessage)), //nolint:gosec // far below 2 GiB
		grpc.StaticConnWindowSize(int32(p.MaxMessage)),   //nolint:gosec // far below 2 GiB
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingInterval, Timeout: pingTimeout, MaxConnectionIdle: MaxIdle,
		}),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(endWith(ctx, errShutdown, ending)),
	)
	if p.Register != nil {
		p.Register(server)
	}
	for name := range server.GetServiceInfo() {
		ending[name] = true
	}
	if p.Lasting != nil {
		p.Lasting(server)
	}
	ending[healthpb.Health_ServiceDesc.ServiceName] = true
	healthy := health.NewServer() // for every client whose certificate is accepted: a prober need not be a peer
	for name := range server.GetServiceInfo() {
		healthy.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	healthpb.RegisterHealthServer(server, healthy)

	var stopped sync.WaitGroup
	stopped.Go(func() {
		<-ctx.Done()
		healthy.Shutdown()
		stopServer(server)
	})
	err := server.Serve(gatedListener{p.Listener, g, p.Role})
	cancel()
	stopped.Wait()
	if errors.Is(err, grpc.ErrServerStopped) { // ctx had ended before
		return nil
	}
	return err
}

// stopServer ends the server gracefully, and by force after ShutdownTimeout.
func stopServer(server *grpc.Server) {
	var graceful sync.WaitGroup
	done := make(chan struct{})
	graceful.Go(func() {
		server.GracefulStop()
		close(done)
	})
	defer graceful.Wait()
	timer := time.NewTimer(ShutdownTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		server.Stop() // some peer does not read
	}
}

// endWith returns an interceptor that ends the context of every stream of these services with that
// cause when ctx ends.
func endWith(ctx context.Context, cause error, services map[string]bool) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if !services[strings.TrimPrefix(path.Dir(info.FullMethod), "/")] {
			return handler(srv, stream)
		}
		streamCtx, cancel := context.WithCancelCause(stream.Context())
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(cause) })()
		return handler(srv, endingStream{stream, streamCtx})
	}
}

type endingStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // gRPC asks the stream for its context
}

func (s endingStream) Context() context.Context { return s.ctx }
