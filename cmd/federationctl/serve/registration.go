package serve

import (
	"context"
	"fmt"
	"iter"
	"net"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// maxProviderMessage is how large a message of a provider may be, in bytes, on a port
// for providers.
const maxProviderMessage = 64 << 10

// registrationSource is a source in which programs register.
type registrationSource struct {
	*registration.Source

	listener net.Listener // of providers alone; nil: they come to the port of the owner
	rules    *file.File
}

// registrationSources returns the sources in which programs register, by the name of each.
func (p *Publisher) registrationSources() iter.Seq2[string, *registrationSource] {
	return func(yield func(string, *registrationSource) bool) {
		for _, c := range p.catalogs {
			for _, e := range c.entries {
				if g, ok := e.Source.(*registrationSource); ok && !yield(e.Name, g) {
					return
				}
			}
		}
	}
}

// PortLines returns a line for each address beside Addr that providers connect to.
func (p *Publisher) PortLines() []string {
	var lines []string
	for name, g := range p.registrationSources() {
		if g.listener != nil {
			lines = append(lines, fmt.Sprintf("%s on %s", name, g.listener.Addr()))
		}
	}
	slices.Sort(lines)
	return lines
}

// openRegistration returns the source that the configuration describes, for the catalog that is
// published in r. Its port is opened.
func (p *Publisher) openRegistration(ctx context.Context, s config.Source, r *registry.Registry, policy wire.AddressPolicy) (*registrationSource, error) {
	settings := *s.Registration
	g := &registrationSource{}
	var first *rules.Rules
	var err error
	g.rules, err = p.openRules(ctx, settings.Rules, func(changed *rules.Rules) {
		if first = changed; g.Source != nil {
			g.SetRules(changed)
		}
	})
	if err != nil {
		return nil, err
	}
	name, err := ownerName(settings, p.config.Listen)
	if err != nil {
		return nil, err
	}
	logger := p.logger.With("source", s.Name)
	opened, err := openStore(s.Registration, logger)
	if err != nil {
		return nil, err
	}
	g.Source = registration.New(registration.Config{
		Name: settings.Name, Owner: name, Rules: first, Store: opened,
		Convergence: settings.Convergence, Linger: settings.Linger, Nodes: settings.MaxNodes, Policy: policy, Logger: logger,
		Published: func(service string) bool { return r.IsAvailable() && r.Lookup(service) != nil },
	})
	if settings.Listen != "" {
		g.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", settings.Listen)
	}
	return g, err
}

// ownerName returns the name by which owners that share a store tell each other apart: a
// host may run several, on different ports.
func ownerName(s config.Registration, listen string) (string, error) {
	if s.Owner != "" {
		return s.Owner, nil
	}
	if s.Listen != "" {
		listen = s.Listen
	}
	_, port, _ := net.SplitHostPort(listen) // the configuration has been checked
	host, err := os.Hostname()
	return net.JoinHostPort(host, port), err
}

// servePort lets providers in.
func (p *Publisher) servePort(ctx context.Context, g *registrationSource) {
	err := p.gate.Serve(ctx, gate.Port{
		Listener: g.listener, Credentials: p.identity.Server(), Role: "provider", MaxMessage: maxProviderMessage,
		Lasting: func(to grpc.ServiceRegistrar) {
			registrationv1.RegisterRegistrationServiceServer(to, g)
		},
	})
	if err != nil {
		p.logger.Error("a port for providers is not served any more", "listen", g.listener.Addr(), "error", err)
	}
}

// atOwner returns the registration to which the port of the owner leads, for the server name
// of a provider's handshake.
func (p *Publisher) atOwner(serverName string) (*registration.Source, error) {
	name := strings.ToLower(strings.TrimSuffix(serverName, "."))
	c := p.catalogs[name]
	if c == nil {
		name, c = "", p.catalogs[""]
	}
	if c == nil {
		return nil, status.Errorf(codes.Unavailable, "there is no catalog for the server name %s of your handshake", safetext.Quote(serverName))
	}
	for _, e := range c.entries {
		if g, ok := e.Source.(*registrationSource); ok && g.listener == nil {
			return g.Source, nil
		}
	}
	return nil, status.Errorf(codes.Unimplemented, "nothing can be registered on this port in the catalog %s, to which the server name %s of your handshake leads",
		catalogLabel(name), safetext.Quote(serverName))
}

// registrationRouter hands providers on the port of an owner to the registration that is for them.
type registrationRouter struct {
	registrationv1.UnimplementedRegistrationServiceServer

	owner *Publisher
}

// Register implements the registration service.
func (r registrationRouter) Register(stream registrationv1.RegistrationService_RegisterServer) error {
	p, _ := peer.FromContext(stream.Context())
	caller, _ := mtls.PeerOf(p.AuthInfo)
	s, err := r.owner.atOwner(caller.State.ServerName)
	if err != nil {
		return err
	}
	return s.Register(stream)
}
