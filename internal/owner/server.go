package owner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// DefaultWindow is Config.Window where that is 0, and MaxWindow is the largest.
const (
	DefaultWindow = 256
	MaxWindow     = wire.MaxWindow
)

const defaultMaxMessage = 16 << 20

// maxRequestBytes bounds what is received. An acknowledgement is far smaller; a consumer
// that is an owner as well sends services.
const maxRequestBytes = 256 << 10

// errNoCertificate ends a stream whose credentials are not those that Config asks for.
var errNoCertificate = status.Error(codes.Unauthenticated, "a client certificate is required")

// Config is what a Server needs. Catalogs and Credentials are required.
type Config struct {
	// Catalogs has the catalogs by server name: a consumer gets the one with the server name of
	// its TLS handshake (in a Corefile, tls_servername), and the one under "" if there is none or
	// it sends no name. Without a catalog for its name it gets the code Unavailable, and comes back.
	Catalogs map[string]*registry.Registry

	// Credentials require a client certificate, as those of mtls.Source do.
	Credentials credentials.TransportCredentials

	// Allow are the identities that may subscribe: a consumer's certificate must
	// carry one of them. Empty means every certificate that Credentials accept,
	// until SetAllow is called.
	Allow []federation.ID

	// Window is how many responses may wait for their acknowledgements on a stream, 1 to
	// MaxWindow; 0 means DefaultWindow. A consumer has to say in wire.WindowHeader that it takes
	// more than one, because the specification allows "only one message in flight".
	Window int

	// MaxMessage is the size in bytes of the largest message that is sent. A service
	// that needs a larger one is withheld and reported: a message larger than its
	// consumer accepts would end the stream, and every later one. 0 means 16 MiB,
	// which consumers of this project accept by default.
	MaxMessage int

	// Gate bounds the connections, together with those of other ports. Without one New makes one
	// for this port.
	Gate *gate.Gate

	// TurnedAway, where it is set, gets a report of each consumer that may not subscribe or has to
	// come back later. A gate that New makes reports the connections that it refuses there, too.
	// See package gate.
	TurnedAway func(gate.TurnedAway)

	// Register, where it is set, adds further services to those that are served. The
	// others are the two versions of the API, and the health service. Streams of further
	// services have to end by themselves soon after the context of Serve.
	Register func(to grpc.ServiceRegistrar)

	// Logger gets a bounded number of lines of each kind for each consumer, and the
	// number of those that were left out; default: nothing is logged. See package loglimit.
	Logger *slog.Logger

	// Audit, where it is set, gets a line for each service that a stream is sent and did not have,
	// and for each that is withdrawn from it. A line has the catalog, the consumer, the service,
	// and either its fqdn and the rule of the policy or the reason. Services that a resuming
	// consumer holds already are one line with their number. There are as many lines as services
	// times consumers: no limit applies. While the logger writes, the stream waits.
	Audit *slog.Logger
}

// Server serves the Federated Service Discovery API to any number of consumers. It keeps one session
// for each open stream, and remembers which consumers have lost theirs. Streams add and remove their own
// session, and SetAllow may end any. What bounds all of that stands below.
//
// # Catalogs
//
// A server has one registry for all consumers, or several catalogs, of which a consumer
// chooses one by the server name of its TLS handshake. Every
// catalog is open to all that may subscribe; its policy says what they are told.
//
// SetUnavailable makes a registry unavailable that does not hold a whole catalog. Its
// streams, and those for whose server name there is no catalog, end
// with Unavailable. Consumers keep the catalog that they have, and retry with backoff.
// Foreign consumers do so too, because the specification asks for that with this code only. A
// RetryInfo makes the consumers come back one after the other, and a
// trailer says for how long the origin of the catalog has been lost, if it is lost.
//
// # Who may subscribe
//
// Consumers are known by the identities in their certificates. Config.Allow names
// those that may subscribe, and SetAllow changes them while the server runs. All
// others get the code Unauthenticated, after which consumers do not reconnect by
// themselves. With the credentials of package mtls, a stream also ends when the
// authority that signed the certificate of its consumer is no longer trusted, and some
// time after that certificate has expired: before that, a consumer opens another stream,
// with a newer certificate.
//
// # What consumers may do
//
// A consumer may refuse a service. A new refusal is logged with its reason, and each one is counted
// in [Stats]. The service is sent again when it changes. A registry reports
// refusals, and services that are accepted again, with OnRefusal.
//
// A consumer may be an owner as well, and send responses. Each of them is answered
// with the code Unimplemented, because this owner accepts none, and the stream goes
// on. While such an answer waits to be sent, the stream is not read. A response
// of more than 256 KiB ends it.
//
// # What consumers can cost
//
// A connection has at most eight streams, and ends after a minute without any.
// Package gate sees to that, and bounds the connections, in total and for each address. Where
// Config.Gate is shared, the bounds are for all ports of the process. Package gate says what else
// it bounds, and package loglimit bounds what consumers can make the server log. A server keeps no
// queue of updates: a stream takes as many as its window has room for, and the rest waits in the registry.
// Config.Register adds other gRPC services to the port.
//
// # Shutdown and health
//
// When the context of Serve ends, streams end with Unavailable: consumers keep
// their catalog, and reconnect. To withdraw services, delete them before.
//
// The health service of gRPC says SERVING of the whole server, whose name is empty, and
// of both versions of the API, until then. Catalogs have no health of their own there: a
// probe that restarts or passes over the server because one catalog is unavailable would
// take the others from their consumers. Stats has the state of each.
type Server struct {
	// read-only after New
	config   Config
	log      *slog.Logger              // bounds what a peer can make it write
	catalogs map[string]*servedCatalog // by server name; there is always one under ""
	gate     *gate.Gate
	slots    *semaphore.Weighted // of streams that are sent their backlog
	began    time.Time

	postponed atomic.Uint64 // streams that have waited for too long
	readers   sync.WaitGroup

	mu       sync.Mutex                  // guards the fields below, and those of every catalog
	allowed  map[federation.ID]struct{}  // who may subscribe; nil for every certificate
	sessions map[*streamSession]struct{} // the streams that are open
	lost     map[lostConsumer]time.Time  // when consumers lost their last stream; see Consumers
}

// New returns a server. It fails when the configuration is not complete.
func New(c Config) (*Server, error) {
	c.Window, c.MaxMessage = cmp.Or(c.Window, DefaultWindow), cmp.Or(c.MaxMessage, defaultMaxMessage)
	switch {
	case c.Credentials == nil:
		return nil, errors.New("owner needs credentials: there is no unsecured mode")
	case c.Window < 0 || c.Window > MaxWindow:
		return nil, fmt.Errorf("window is %d, it must be 1 to %d", c.Window, MaxWindow)
	case c.MaxMessage < 0:
		return nil, fmt.Errorf("largest message is %d bytes, it must not be negative", c.MaxMessage)
	}
	s := &Server{
		config: c, log: loglimit.NewLogger(c.Logger), gate: c.Gate, began: time.Now(), slots: semaphore.NewWeighted(int64(catalogSlots * runtime.GOMAXPROCS(0))),
		sessions: make(map[*streamSession]struct{}), lost: make(map[lostConsumer]time.Time),
	}
	if c.TurnedAway == nil {
		s.config.TurnedAway = func(gate.TurnedAway) {}
	}
	if s.gate == nil {
		s.gate = gate.New(gate.Config{Logger: s.log, TurnedAway: c.TurnedAway})
	}
	s.catalogs = newServedCatalogs(c.Catalogs, s.log)
	if len(c.Allow) > 0 {
		s.SetAllow(c.Allow)
	}
	return s, nil
}

// SetAllow replaces the identities that may subscribe. With none, no consumer may subscribe. The
// streams of consumers that may no longer subscribe end with Unauthenticated.
func (s *Server) SetAllow(ids []federation.ID) {
	allowed := make(map[federation.ID]struct{}, len(ids))
	for _, id := range ids {
		allowed[id] = struct{}{}
	}
	var lost []*streamSession
	s.mu.Lock()
	s.allowed = allowed
	for session := range s.sessions {
		if _, ok := s.mayLocked(session.ids); !ok {
			lost = append(lost, session)
		}
	}
	s.mu.Unlock()
	for _, session := range lost {
		session.log.Warn("consumer turned away: it is not allowed any more")
		session.turnedAway(gate.NotAllowed, "it is not allowed any more")
		session.cancel(mayNot(session.ids))
	}
}

// Serve accepts consumers from the listener until ctx ends, and then returns nil.
// It closes the listener. When ctx ends, every stream gets the status Unavailable,
// and connections that are still open 5 seconds later are closed. Serve fails when
// the listener does.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	defer s.readers.Wait()
	return s.gate.Serve(ctx, gate.Port{
		Listener: listener, Credentials: s.config.Credentials, Role: role, MaxMessage: maxRequestBytes,
		Register: func(to grpc.ServiceRegistrar) {
			rdpb.RegisterDiscoveryServiceServer(to, serverV1Alpha2{server: s})
			rdpb1.RegisterDiscoveryServiceServer(to, serverV1Alpha1{server: s})
		},
		Lasting: s.config.Register,
	})
}

// apiDialect is what differs between the versions of the API.
type apiDialect struct {
	version wire.APIVersion
	// receive returns the next request. It calls declined for each response of the consumer, which it has
	// declined. The error for a request that breaks a rule is a *federation.InvalidError.
	receive func(declined func()) (wire.Request, error)

	// prepare returns the message for an update. It fails when the version cannot
	// express the service.
	prepare func(u registry.Update) (encodedUpdate, error)
}

// serveSubscription serves one subscription of a consumer, and returns the status of its stream.
func (s *Server) serveSubscription(stream grpc.ServerStream, d apiDialect) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	request, _ := metadata.FromIncomingContext(ctx)
	window := newSendWindow(min(s.config.Window, wire.ParseWindow(request)))
	session := &streamSession{apiDialect: d, server: s, cancel: cancel, window: window, release: func() {}}
	err := s.serveSession(ctx, stream, session)
	s.forgetSession(session, err)
	return withParkingDelay(err)
}

// serveSession opens the stream of a session for a consumer that may subscribe, serves it until it
// ends, and returns its status.
func (s *Server) serveSession(ctx context.Context, stream grpc.ServerStream, session *streamSession) error {
	if err := s.admitConsumer(ctx, session); err != nil {
		return err
	}
	stop := func(lost time.Time) {
		if !lost.IsZero() {
			stream.SetTrailer(metadata.Pairs(wire.LostTrailer, wire.FormatLost(time.Since(lost))))
		}
		session.cancel(s.withRetryDelay(registry.ErrUnavailable))
	}
	subscription := session.catalog.registry.SubscribeAs(registry.Consumer{IDs: session.ids, Stop: stop, Awaits: s.awaitsEnd(ctx), Silent: true})
	defer subscription.Close()
	s.mu.Lock()
	session.subscription = subscription
	s.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	session.tryResume(ctx)
	if err := stream.SendHeader(session.responseHeader()); err != nil {
		return err
	}
	return session.serveStream(ctx)
}

// sourcesTime is how long sources usually take after the start until their state is complete.
const sourcesTime = 5 * time.Second

// awaitsEnd reports whether the consumer that opens a stream may be sent a catalog that is not
// complete. A consumer that resumes has most of the services of sources that are not complete yet.
// So for sourcesTime it has to wait, because it would otherwise be sent these services again.
func (s *Server) awaitsEnd(ctx context.Context) bool {
	return slices.Contains(metadata.ValueFromIncomingContext(ctx, wire.CatalogEndHeader), wire.CatalogEndAwaited) &&
		(len(metadata.ValueFromIncomingContext(ctx, wire.ResumeHeader)) == 0 || time.Since(s.began) > sourcesTime)
}

// forgetSession removes a session that has ended with the status err.
func (s *Server) forgetSession(session *streamSession, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session)
	s.loseLocked(session, time.Now())
	session.catalog.ended[status.Code(err)]++
}

// admitConsumer identifies the consumer of the session, and chooses its catalog. It fails with
// Unauthenticated when the consumer may not subscribe, because consumers do not retry after that.
// It fails with Unavailable when there is no catalog, because they do retry after that.
func (s *Server) admitConsumer(ctx context.Context, session *streamSession) error {
	p, _ := peer.FromContext(ctx)
	consumer, certified := mtls.PeerOf(p.AuthInfo)
	session.address, session.ids = p.Addr, consumer.IDs()
	serverName := canonicalName(consumer.State.ServerName)
	session.catalog = cmp.Or(s.catalogs[serverName], s.catalogs[""])
	s.mu.Lock()
	id, ok := s.mayLocked(session.ids)
	ok = ok && certified
	if ok && session.catalog.registry != nil {
		session.consumer = "without identity"
		if id != (federation.ID{}) {
			session.consumer = id.String()
		}
		session.log = session.catalog.log.With("consumer", session.consumer)
		s.sessions[session] = struct{}{} // where SetAllow finds it
		delete(s.lost, lostConsumer{session.catalog.name, session.consumer})
	}
	s.mu.Unlock()
	who := safetext.Printable(fmt.Sprint(session.ids)) // a certificate may have any number of them
	switch {
	case !certified:
		return errNoCertificate
	case !ok:
		s.log.With("identities", who).Warn("consumer turned away: its certificate carries no identity that is allowed", "address", p.Addr)
		session.turnedAway(gate.NotAllowed, "its certificate carries no identity that is allowed")
		return mayNot(session.ids)
	case session.catalog.registry == nil:
		name := safetext.Quote(serverName)
		s.log.With("identities", who).Warn("consumer turned away: there is no catalog for the server name of its handshake", "server_name", safetext.Printable(serverName), "address", p.Addr)
		session.turnedAway(gate.NoCatalog, "there is no catalog for the server name "+name+" of its handshake")
		return status.Errorf(codes.Unavailable, "there is no catalog for the server name %s of your handshake", name)
	}
	return nil
}

// turnedAway reports to Config.TurnedAway that the consumer of a session is turned away.
func (s *streamSession) turnedAway(reason gate.Reason, rule string) {
	s.server.config.TurnedAway(gate.TurnedAway{Role: role, Address: s.address, IDs: s.ids, Reason: reason, Rule: rule})
}

// role is how logs and metrics call the peers of this port.
const role = "consumer"

// mayLocked returns the first of the identities that may subscribe, if there is one, and reports
// whether a consumer with these identities may subscribe. The caller holds the lock.
func (s *Server) mayLocked(ids []federation.ID) (federation.ID, bool) {
	for _, id := range ids {
		if _, ok := s.allowed[id]; ok || s.allowed == nil {
			return id, true
		}
	}
	return federation.ID{}, s.allowed == nil
}

// mayNot returns the status for a consumer whose identities may not subscribe.
func mayNot(ids []federation.ID) error {
	return status.Errorf(codes.Unauthenticated,
		"the identities %s of your certificate may not subscribe; have the owner allow one of them", safetext.Printable(fmt.Sprint(ids)))
}
