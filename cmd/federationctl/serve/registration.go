package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// maxProviderMessage is how large a message of a provider may be, in bytes, on a port
// for providers.
const maxProviderMessage = 64 << 10

// registered is a source in which programs register. Its settings stay until the process
// ends, but for the rules: another source in its place would know of nobody.
type registered struct {
	*registration.Source

	began atomic.Bool // whether Run was called

	// read-only
	publisher *Publisher
	name      string // of the source
	key       string // of its entry
	settings  config.Registration

	// guarded by the mutex of Publisher

	port  *port // nil: that of the owner
	rules *named[*rules.Rules]
	ended bool // whether Run has returned
}

// errTwice is why a registration publishes nothing that was put back into the
// configuration at the moment at which it ended: a source runs once.
var errTwice = errors.New("it was put back while it ended; restart the owner")

// Run implements source.Source. With its end providers cannot connect any more, unless
// another registration has the port.
func (g *registered) Run(ctx context.Context, part source.Part) {
	if g.began.Swap(true) {
		part.Away(errTwice)
		<-ctx.Done()
		return
	}
	g.Source.Run(ctx, part)
	g.end()
}

func (g *registered) end() {
	p := g.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	g.ended = true
	g.rules.end()
	p.leaveLocked(g.port)
}

// stands reports whether the source that settings describe would stand in the way of this
// one: with its name or its port.
func (g *registered) stands(s config.Registration) bool {
	return g.settings.Name == s.Name || g.settings.Listen == s.Listen
}

// inPlaceOf returns the registration of the catalog that runs on in place of the one that
// settings describe, or nil when there is none. It has the same key, or else stands in
// its way; those in taken have their place already.
func (c *catalog) inPlaceOf(key string, s config.Registration, taken []*registered) *registered {
	for _, is := range []func(g *registered) bool{
		func(g *registered) bool { return g.key == key },
		func(g *registered) bool { return g.stands(s) },
	} {
		i := slices.IndexFunc(c.running, func(g *registered) bool { return is(g) && !g.ended && !slices.Contains(taken, g) })
		if i >= 0 {
			return c.running[i]
		}
	}
	return nil
}

// isAvailable reports whether consumers can have a catalog.
func (p *Publisher) isAvailable(catalog string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.catalogs[catalog]
	return c != nil && c.registry.Available()
}

// registered returns the registrations among the sources of the catalog.
func (c *catalog) registered() (all []*registered) {
	for _, e := range c.entries {
		if g, ok := e.Source.(*registered); ok {
			all = append(all, g)
		}
	}
	return all
}

// port is where providers connect to, for one registration at a time. Its fields are guarded
// by the mutex of Publisher.
type port struct {
	key      string
	listener net.Listener
	source   *registered        // to which it leads
	users    int                // registrations that have it: another one may be ending
	stop     context.CancelFunc // ends it; nil before it is served
}

// Ports returns a line for each address beside Addr that providers connect to.
func (p *Publisher) Ports() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	for _, opened := range p.ports {
		lines = append(lines, fmt.Sprintf("%s on %s", opened.source.name, opened.listener.Addr()))
	}
	slices.Sort(lines)
	return lines
}

// portKey returns the key of the port of a registration, or nothing where it is that of the owner.
func portKey(serverName string, s config.Registration) string {
	if strings.HasSuffix(s.Listen, ":0") {
		return fmt.Sprintf("%s %s %s", s.Listen, serverName, s.Name) // each is another one
	}
	return s.Listen
}

// openRegistration returns the source that the configuration describes, for the catalog with
// that server name. Its port is opened, or taken from a registration that ends.
func (p *Publisher) openRegistration(ctx context.Context, s config.Source, serverName string, policy wire.Policy) (*registered, error) {
	settings := *s.Registration
	g := &registered{publisher: p, name: s.Name, settings: settings}
	var err error
	if g.rules, err = p.openRules(ctx, settings.Rules); err != nil {
		return nil, err
	}
	name, err := ownerName(settings, p.config.Listen)
	if err != nil {
		return nil, err
	}
	logger := p.logger.With("source", s.Name)
	opened, err := openStore(s, name, logger)
	if err != nil {
		return nil, err
	}
	g.Source, err = registration.New(registration.Config{
		Name: settings.Name, Owner: name, Rules: g.rules.says, Store: opened,
		Convergence: settings.Convergence, Linger: settings.Linger, Nodes: settings.MaxNodes, Policy: policy, Logger: logger,
		Available: func() bool { return p.isAvailable(serverName) },
	})
	if err == nil && settings.Listen != "" {
		g.port, err = p.enter(ctx, portKey(serverName, settings), settings.Listen)
	}
	if err != nil {
		return nil, err
	}
	g.rules.tell = g.SetRules
	return g, nil
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

// enter returns the port with that key for one more registration.
func (p *Publisher) enter(ctx context.Context, key, address string) (*port, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	opened := p.ports[key]
	if opened == nil {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		opened = &port{key: key, listener: listener}
		p.ports[key] = opened
	}
	opened.users++
	return opened, nil
}

// leaveLocked ends a port when no registration has it any more. It may be nil. The caller
// holds the mutex.
func (p *Publisher) leaveLocked(opened *port) {
	if opened == nil {
		return
	}
	opened.users--
	if opened.users > 0 {
		return
	}
	delete(p.ports, opened.key)
	if opened.stop != nil {
		opened.stop()
	} else {
		opened.listener.Close()
	}
}

// discard closes the ports of the registrations that were opened for a plan which was not
// applied.
func (p *Publisher) discard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.pending {
		p.leaveLocked(g.port)
	}
	p.pending = nil
}

// servePort lets providers in.
func (p *Publisher) servePort(opened *port) {
	find := func(string) (*registration.Source, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return opened.source.Source, nil
	}
	opened.stop = p.launch(func(ctx context.Context) {
		err := p.gate.Serve(ctx, gate.Port{
			Listener: opened.listener, Credentials: p.identity.Server(), Role: "provider", MaxMessage: maxProviderMessage,
			Lasting: func(to grpc.ServiceRegistrar) {
				registrationv1.RegisterRegistrationServiceServer(to, router{find: find})
			},
		})
		if err != nil {
			p.logger.Error("a port for providers is not served any more", "listen", opened.listener.Addr(), "error", err)
		}
	})
}

// atOwner returns the registration to which the port of the owner leads, for the server name
// of a provider's handshake.
func (p *Publisher) atOwner(serverName string) (*registration.Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := strings.ToLower(strings.TrimSuffix(serverName, "."))
	c := p.catalogs[name]
	if c == nil {
		name, c = "", p.catalogs[""]
	}
	if c == nil {
		return nil, status.Errorf(codes.Unavailable, "there is no catalog for the server name %s of your handshake", federation.Quote(serverName))
	}
	for _, g := range c.registered() {
		if g.port == nil {
			return g.Source, nil
		}
	}
	return nil, status.Errorf(codes.Unimplemented, "nothing can be registered on this port in the catalog %s, to which the server name %s of your handshake leads",
		shown(name), federation.Quote(serverName))
}

// router hands providers to the registration that is for them.
type router struct {
	registrationv1.UnimplementedRegistrationServiceServer

	find func(serverName string) (*registration.Source, error)
}

// Register implements the registration service.
func (r router) Register(stream registrationv1.RegistrationService_RegisterServer) error {
	p, _ := peer.FromContext(stream.Context())
	caller, _ := mtls.PeerOf(p.AuthInfo)
	s, err := r.find(caller.State.ServerName)
	if err != nil {
		return err
	}
	return s.Register(stream)
}
