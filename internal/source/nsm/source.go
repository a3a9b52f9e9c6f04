// Package nsm is the source of a Network Service Mesh registry: its network services are
// the part, with the endpoints that are registered for them.
//
// A network service becomes a service nsm/<network service> with the fqdn
// <network service>.<zone>. It is there while it has an endpoint that can be published,
// whether or not it is registered itself: the registry's list of network services says
// how the mesh routes, which is nothing that DNS could say.
//
// An endpoint becomes an endpoint and an instance of each network service that it names.
// The address, the port and the protocol are those of its URL: tcp, tls, mtls, http,
// https, http2, grpc or mongo, always with a port. The ID of the instance is the name of
// the endpoint, in lower case, where that can be a name in DNS, and otherwise what can be
// read of it with a part of its SHA-256. The labels that the endpoint has for a network
// service are the metadata of the instance. Labels that all endpoints of the network service
// have in common are labels of the service.
//
// # Other domains
//
// The mesh writes name@domain for what the registry of another domain holds. An endpoint
// whose own name, or one of whose network services, has that form belongs to that domain,
// even if this registry lists it: its domain publishes it, and this source does not,
// unless the domain is the zone of this source.
//
// # When an endpoint goes
//
// At once when the registry says that it was deleted. At its expiration_time, by this
// machine's clock, when the registry can be asked at that moment and does not know a later
// one. An endpoint without expiration_time goes when the registry has not listed it for
// the convergence period. An endpoint that the registry reports when its time is over
// already is not published (rule expired). So the two clocks must agree to within what
// endpoints have left when they are refreshed: clients of the mesh refresh after two
// thirds of their time, and a registry grants a minute by default. A step of this
// machine's clock changes nothing for endpoints that are known.
//
// While the registry is away no endpoint can be refreshed, so nothing expires. When it is
// back, each known endpoint stays until the registry reports it again, for the convergence
// period at least and never shorter than its expiration_time says: a registry that keeps
// its state in memory comes back empty, and learns of its endpoints only when they
// refresh. An endpoint that was deleted meanwhile is withdrawn no sooner, because an
// emptied registry looks the same.
//
// # How the registry is read
//
// A watch of the registry does not mark the end of its first list. So the watch comes first, and
// then a list, which has an end, and makes the state whole. A list may be older than the watch when
// it arrives, so what the watch reports meanwhile waits, and is applied after the list. Lists go on at intervals: they find what a watch has
// lost (a registry on Kubernetes loses deletions between two watches of its own), and
// their answer is the proof that the connection lives. Pings would not do: a registry that
// does not say otherwise ends connections for more than one in five minutes.
package nsm

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
	"github.com/hamlet-federation/coredns-federation/internal/source/nsm/internal/endpoint"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Config says which registry is read, and which names its services get. Whoever reads a configuration
// has checked it.
type Config struct {
	Registry string          // tcp://HOST:PORT, or unix:///PATH
	Zone     federation.FQDN // of the services
	Name     string          // with which the names of services begin

	// Credentials are those of this side of the connection; they decide which registry is
	// believed. Without them the connection is plain, and the registry is on this machine.
	Credentials credentials.TransportCredentials

	// Convergence is how long the known endpoints stay when the registry is back; 0 stands
	// for two minutes.
	Convergence time.Duration

	Policy wire.AddressPolicy // of the consumers, as far as the owner knows it
	Logger *slog.Logger
}

const defaultConvergence = 2 * time.Minute

// Source follows one registry, and publishes its network services. It implements [source.Source].
// It keeps the last known state of the registry over connections, so that nothing is withdrawn
// while the registry is away. The state is changed by the goroutine of Run only, and so has no
// lock. Each connection has a registrySession of its own, of which nothing is kept when it ends.
// Source does not store the state: after a restart it publishes nothing until the registry has
// listed its endpoints.
type Source struct {
	// read-only after New
	rules       endpoint.Rules
	registry    string // as the configuration has it
	credentials credentials.TransportCredentials
	convergence time.Duration
	logger      *slog.Logger
	dial        func(context.Context) (net.Conn, error) // other in tests
	authority   string                                  // the registry's name in its certificate

	// owned by Run
	state *registryState
	known bool // whether the whole state was published to the part once
}

var (
	_ source.Source      = (*Source)(nil)
	_ source.NameClaimer = (*Source)(nil)
)

// New returns a source that is not connected yet.
func New(c Config) *Source {
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	u, _ := url.Parse(c.Registry) // whoever reads a configuration has checked it
	network, address, authority := u.Scheme, u.Host, u.Host
	if network == "unix" {
		address, authority = u.Path, "localhost"
	}
	return &Source{
		rules:    endpoint.Rules{Prefix: c.Name + "/", Zone: c.Zone, Policy: c.Policy},
		registry: c.Registry, credentials: c.Credentials, authority: authority,
		convergence: cmp.Or(c.Convergence, defaultConvergence),
		logger:      loglimit.NewLogger(c.Logger),
		dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		state: newRegistryState(),
	}
}

// MayClaim implements [source.NameClaimer].
func (s *Source) MayClaim(name string, fqdn federation.FQDN) bool {
	return strings.HasPrefix(name, s.rules.Prefix) || fqdn.Within(s.rules.Zone)
}

// Run implements [source.Source].
func (s *Source) Run(ctx context.Context, part source.Part) {
	reconnect.Loop(ctx, func(reason error) { part.SetAway(fmt.Errorf("registry %s: %w", s.registry, reason)) },
		func(ctx context.Context) (bool, error) { return s.followOnce(ctx, part) })
}

// connectTimeout bounds a connection until it is ready, with its handshake.
const connectTimeout = 10 * time.Second

// followOnce follows the registry over one connection until that fails, and returns the error, and
// whether the state was whole. The connection is a new one each time: gRPC would try again by
// itself, with delays that add to ours.
func (s *Source) followOnce(ctx context.Context, part source.Part) (whole bool, err error) {
	params := grpc.ConnectParams{MinConnectTimeout: connectTimeout}
	conn, err := grpc.NewClient("passthrough:///"+s.authority, // the dialer knows the address
		grpc.WithTransportCredentials(s.credentials),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.dial(ctx) }),
		grpc.WithConnectParams(params), grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	x := newRegistrySession(s, part, conn)
	err = x.followRegistry(ctx)
	return x.isWhole(), err
}
