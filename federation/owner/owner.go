// Package owner publishes services to consumers: a program fills a [Catalog] with what it has, and a
// [Server] streams that to every consumer that its [Config] lets in, over mutual TLS.
//
// A consumer gets the whole catalog, the mark of its end, and then every change. One that comes back gets
// only what has changed meanwhile. A slow one gets each service that has changed once, in its latest
// version, so that no consumer holds up another one or fills memory.
package owner

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
)

// Catalog is what an owner publishes: services by name. Its methods are safe for concurrent use, also
// while a [Server] serves it. Services that are given to it must not be changed afterwards.
type Catalog struct{ registry *registry.Registry }

// NewCatalog returns a catalog without services.
func NewCatalog() *Catalog { return &Catalog{registry.New()} }

// Set makes services the whole catalog, and consumers are told what differs. If one of them is not valid,
// the error is a *federation.InvalidError, and nothing changes. Of two with one name the last one counts.
func (c *Catalog) Set(services []*federation.Service) error {
	_, err := c.registry.Set(services)
	return err
}

// Put adds a service, or replaces the one of the same name. If the service is not valid, the error is a
// *federation.InvalidError, and nothing changes.
func (c *Catalog) Put(s *federation.Service) error {
	_, err := c.registry.Upsert(s)
	return err
}

// Withdraw removes the service of that name, and reports whether there was one.
func (c *Catalog) Withdraw(name string) bool { return c.registry.Delete(name) }

// SetComplete says whether the catalog has all that there is, as a new one says of itself. While it has not, what
// it has is told at once, and consumers conclude nothing from what is missing: they keep what they had. So a
// program that reads its services from somewhere says first that it is not complete, and says that it is at the end.
func (c *Catalog) SetComplete(complete bool) { c.registry.SetComplete(complete) }

// Config says what to serve, and to whom. Catalog or Catalogs, and Credentials are needed.
type Config struct {
	Catalog *Catalog // for every consumer

	// Catalogs are given instead, by server name: a consumer gets the one with the server name of its
	// TLS handshake, and the one under "" if there is none, or if it sends no name.
	Catalogs map[string]*Catalog

	// Credentials ask for a client certificate, as those of mtls.Source do.
	Credentials credentials.TransportCredentials

	// Allow are the identities that may subscribe. Without any, everybody whose certificate Credentials
	// accept may, until SetAllow is called.
	Allow []federation.ID

	Logger   *slog.Logger // gets a bounded number of lines for each consumer; default: nothing is logged
	Advanced Advanced
}

// Advanced is what few programs set.
type Advanced struct {
	// Window is how many messages are sent ahead of their acknowledgements, 1 to 1024; default: 256. A consumer
	// that does not say that it takes more gets one at a time, as the specification has it.
	Window int

	// MaxMessage is how many octets the largest message has; default: 16 MiB. A service that needs a larger one
	// is withheld and logged.
	MaxMessage int

	// Audit gets a line for each service that a consumer is told or that is withdrawn from it, without limit.
	Audit *slog.Logger

	// Register adds other gRPC services to the port.
	Register func(to grpc.ServiceRegistrar)
}

// Server serves catalogs. Its methods are safe for concurrent use.
type Server struct{ server *owner.Server }

// New returns a server that does not listen yet. Its errors say what the configuration lacks.
func New(c Config) (*Server, error) {
	if c.Catalog != nil && c.Catalogs != nil {
		return nil, errors.New("the configuration has a Catalog and Catalogs: put the first one into Catalogs, under the server name \"\"")
	}
	if c.Catalog != nil {
		c.Catalogs = map[string]*Catalog{"": c.Catalog}
	}
	catalogs := make(map[string]*registry.Registry)
	for name, catalog := range c.Catalogs {
		catalogs[name] = catalog.registry
	}
	if len(catalogs) == 0 {
		return nil, errors.New("the configuration has no Catalog to serve: NewCatalog makes one")
	}
	server, err := owner.New(owner.Config{
		Catalogs: catalogs, Credentials: c.Credentials, Allow: c.Allow, Logger: c.Logger,
		Window: c.Advanced.Window, MaxMessage: c.Advanced.MaxMessage, Audit: c.Advanced.Audit, Register: c.Advanced.Register,
	})
	if err != nil {
		return nil, err
	}
	return &Server{server}, nil
}

// Serve serves consumers that connect to the listener until ctx ends, and then returns nil. Streams end with the
// code Unavailable then, so that consumers keep the catalog and come back; connections that are open 5 s later are
// closed, and so is the listener. Serve fails if the listener does.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	return s.server.Serve(ctx, listener)
}

// SetAllow replaces the identities that may subscribe; without any, nobody may. The streams of consumers that
// may not subscribe any more end with the code Unauthenticated.
func (s *Server) SetAllow(ids []federation.ID) { s.server.SetAllow(ids) }

// Stats returns the counts of all catalogs. It takes time in proportion to the number of consumers.
func (s *Server) Stats() Stats {
	of := s.server.Stats()
	sum := Stats{Connections: of.Connections, Refused: make(map[string]uint64), Ended: make(map[codes.Code]uint64)}
	for _, c := range of.Catalogs {
		for _, n := range c.Consumers {
			sum.Consumers += n
		}
		sum.Unsent += c.Unsent
		sum.InFlight += c.InFlight
		sum.Acknowledged += c.Acknowledged
		for field, n := range c.Refused {
			sum.Refused[field] += n
		}
		for code, n := range c.Ended {
			sum.Ended[code] += n
		}
	}
	return sum
}

// Stats are counts for metrics.
type Stats struct {
	Connections  int                   // that are open
	Consumers    int                   // whose streams are open
	Unsent       int                   // services that a consumer has yet to be told, added up over the consumers
	InFlight     int                   // messages that are not acknowledged yet
	Acknowledged uint64                // messages that were accepted
	Refused      map[string]uint64     // messages that were refused, by the field that the consumer blames, or "other"
	Ended        map[codes.Code]uint64 // streams, by the code that they ended with
}
