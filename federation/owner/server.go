package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// MaxWindow is the largest Config.Window.
const MaxWindow = 1024

// What one consumer can take of the owner.
const (
	maxStreams       = 8        // on one connection; a consumer needs one
	maxRequestBytes  = 64 << 10 // an acknowledgement; the text of a refusal is the largest part
	maxHeaderBytes   = 16 << 10 // of the metadata of a stream
	handshakeTimeout = 10 * time.Second

	// minPing is the smallest interval of a consumer's pings. The reference owner
	// insists on 40 s while its own consumers ping every 20 s, and so loses them.
	minPing = 10 * time.Second

	// pingInterval and pingTimeout find a consumer that is gone without a word.
	pingInterval = time.Minute
	pingTimeout  = 20 * time.Second
)

// shutdownGrace is how long consumers have to take note of the end.
const shutdownGrace = 5 * time.Second

// errShutdown ends every stream of a server that stops. Hamlet, 'Error Codes':
// consumers retry after Unavailable.
var errShutdown = status.Error(codes.Unavailable, "owner is shutting down")

// Config is what a Server needs. Registry, Credentials and Logger are required.
type Config struct {
	Registry *Registry

	// Credentials ask for a client certificate, as those of mtls.Source do.
	Credentials credentials.TransportCredentials

	// Allow are the identities that may subscribe: a consumer's certificate must
	// carry one of them. Empty means every certificate that Credentials accept.
	Allow []mtls.ID

	// Window is how many responses are sent ahead of their acknowledgements, 1 to
	// MaxWindow. 0 means 1, the rule of the specification: "only one message in
	// flight". A consumer that reads in order cannot tell the difference.
	Window int

	Logger *slog.Logger
}

// Server serves the Federated Service Discovery API to any number of consumers.
type Server struct {
	config   Config // read-only after New
	refusals refusals
	withheld refusals // by v1alpha1, from each of its consumers
	readers  sync.WaitGroup
}

// New returns a server. It fails when the configuration is not complete.
func New(c Config) (*Server, error) {
	if c.Window == 0 {
		c.Window = 1
	}
	switch {
	case c.Registry == nil || c.Logger == nil:
		return nil, errors.New("owner needs a registry and a logger")
	case c.Credentials == nil:
		return nil, errors.New("owner needs credentials: there is no unsecured mode")
	case c.Window < 0 || c.Window > MaxWindow:
		return nil, fmt.Errorf("window is %d, it must be 1 to %d", c.Window, MaxWindow)
	}
	c.Allow = slices.Clone(c.Allow)
	return &Server{config: c}, nil
}

// Serve accepts consumers from the listener until ctx ends, and returns nil
// then; it closes the listener. At the end every stream gets the status
// Unavailable, and connections that do not go within seconds are cut. It fails
// when the listener does.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	server := grpc.NewServer(
		grpc.Creds(s.config.Credentials),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(endWith(ctx, errShutdown)),
	)
	rdpb.RegisterDiscoveryServiceServer(server, v1alpha2{server: s})
	rdpb1.RegisterDiscoveryServiceServer(server, v1alpha1{server: s})

	var stopped sync.WaitGroup
	stopped.Go(func() {
		<-ctx.Done()
		stop(server)
	})
	err := server.Serve(listener)
	cancel()
	stopped.Wait()
	s.readers.Wait()
	if errors.Is(err, grpc.ErrServerStopped) { // ctx had ended before
		return nil
	}
	return err
}

// stop ends the server gracefully, and by force after shutdownGrace.
func stop(server *grpc.Server) {
	var graceful sync.WaitGroup
	done := make(chan struct{})
	graceful.Go(func() {
		server.GracefulStop()
		close(done)
	})
	defer graceful.Wait()
	timer := time.NewTimer(shutdownGrace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		server.Stop() // a consumer that does not read is in the way
	}
}

// endWith ends the context of every stream with that cause when ctx ends.
func endWith(ctx context.Context, cause error) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
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

// authorise returns who the consumer is, as it may be shown. It fails with
// Unauthenticated, after which consumers do not retry, when the consumer is not
// one of those that may subscribe.
func (s *Server) authorise(ctx context.Context) (string, error) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return "", status.Error(codes.Unauthenticated, "a client certificate is required")
	}
	ids := mtls.PeerIDs(info.State.PeerCertificates[0])
	if len(s.config.Allow) > 0 {
		i := slices.IndexFunc(ids, func(id mtls.ID) bool { return slices.Contains(s.config.Allow, id) })
		if i < 0 {
			who := federation.Quote(fmt.Sprint(ids)) // a certificate may have any number of them
			s.config.Logger.Warn("consumer turned away: its certificate carries no identity that is allowed",
				"identities", who, "address", p.Addr)
			return "", status.Errorf(codes.Unauthenticated,
				"the identities %s of your certificate may not subscribe; have the owner allow one of them", who)
		}
		ids = ids[i:]
	}
	if len(ids) == 0 {
		return "without identity", nil
	}
	return ids[0].String(), nil
}

// v1alpha2 serves that version of the API.
type v1alpha2 struct {
	rdpb.UnimplementedDiscoveryServiceServer

	server *Server
}

// EstablishStream is one subscription of a consumer.
func (v v1alpha2) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	consumer, err := v.server.authorise(stream.Context())
	if err != nil {
		return err
	}
	if err := stream.SendHeader(metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)); err != nil {
		return err
	}
	session := &session{
		server:   v.server,
		log:      v.server.config.Logger.With("consumer", consumer),
		consumer: consumer,
		window:   newWindow(v.server.config.Window),
		receive: func() (wire.Request, error) {
			m, err := stream.Recv()
			if err != nil {
				return wire.Request{}, err
			}
			request, err := wire.ParseRequest(m.GetRequest())
			if err != nil {
				return wire.Request{}, status.Error(codes.InvalidArgument, err.Error())
			}
			return request, nil
		},
		send: func(u update, nonce, context string) error {
			resource, err := u.resource()
			if err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			return stream.Send(&rdpb.BidirectionalStream{Response: wire.Respond(u.Event, resource, nonce, context)})
		},
	}
	return session.run(stream.Context())
}
