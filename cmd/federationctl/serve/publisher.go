// Package serve runs an owner as its configuration says: a server, its catalogs
// with their sources, and the files that it follows. Of a configuration file that changes,
// exports and allow are put in force; anything else waits for a restart. A Publisher says of itself
// what package status has for it: how it is, what it publishes, and why a name is told to whom, or to
// nobody.
//
// Only packages of this module import it: it is not a stable API.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// Config is what a Publisher needs.
type Config struct {
	// File is the configuration file, which is followed. Its catalogs may become
	// complete at any time: until then consumers get Unavailable.
	File string

	// Owner is the configuration where there is no file. Then a catalog file that cannot
	// be used is an error, and nothing is served before the catalogs are complete.
	Owner config.Config

	Logger  *slog.Logger
	Version string // of the program, for its status
}

// Error says why an owner, or another process with a configuration, cannot start.
type Error struct {
	Key string // of the configuration that is the reason, such as identity.files; empty when it cannot be told
	Err error
}

// Error implements error.
func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e Error) Unwrap() error { return e.Err }

// Publisher is an owner. It is made by New and runs once.
type Publisher struct {
	// read-only after New
	file     string
	logger   *slog.Logger
	version  string
	server   *owner.Server
	identity *mtls.Source
	settings *file.File                // the configuration file; nil when there is none
	allowed  *file.File                // the allow file; nil when there is none
	edits    *file.Group               // these, and what else is followed, but for certificates
	catalogs map[string]*servedCatalog // by server name
	listener net.Listener
	began    time.Time
	gate     *gate.Gate // of all ports

	turnedAway turnedAway     // who was not let in
	running    sync.WaitGroup // what Run has started

	// Owned by New and then by edits, of which there is one at a time.

	editing  bool                   // whether an edit is being put in force
	fileIDs  []federation.ID        // that the allow file lets subscribe
	admitted map[federation.ID]bool // who may subscribe, as the server was told last; nil before that

	// Changed by New and then by edits, which alone may read them without the lock; guarded
	// by mu for all others.

	mu      sync.Mutex
	config  config.Config // in effect: that of the start, with other exports and allow.ids
	applied time.Time     // when it came into effect
	restart []string      // keys whose values in the file wait for a restart
	serving bool
	ready   bool // whether one of the catalogs has been complete, and served, at one time
}

// servedCatalog is what is published under one server name.
type servedCatalog struct {
	// read-only after New
	registry *registry.Registry
	sources  *source.Catalog
	entries  []source.Entry // that sources has, with what is made of them here
}

// New reads the files that the configuration names, and listens. Its errors are of
// type Error.
func New(ctx context.Context, c Config) (*Publisher, error) {
	p := &Publisher{
		file: c.File, config: c.Owner, logger: c.Logger, version: c.Version, began: time.Now(),
		catalogs: make(map[string]*servedCatalog),
	}
	p.edits = file.NewGroup(p.applyEdit)
	if c.File != "" {
		p.settings = p.followSettings()
		if err := p.settings.Load(ctx); err != nil {
			return nil, Error{Err: err}
		}
	}
	if err := p.openServer(ctx); err != nil {
		p.closeListeners()
		return nil, err
	}
	return p, nil
}

// openServer opens what the configuration names, and makes the server.
func (p *Publisher) openServer(ctx context.Context) (err error) {
	c := p.config
	away := func(of gate.TurnedAway) { p.turnedAway.addPeer(of, time.Now()) }
	p.gate = gate.New(gate.Config{Logger: p.logger, TurnedAway: away})
	if p.identity, err = mtls.Open(c.Identity, p.logger); err != nil {
		return Error{identityKey(c.Identity), err}
	}
	if c.Allow.File != "" {
		if p.allowed, err = p.openAllowed(ctx); err != nil {
			return Error{"allow.file", err}
		}
	}
	if len(c.Allow.IDs) == 0 && c.Allow.File == "" && !c.Allow.Everybody {
		p.logger.Warn("nobody may subscribe; name consumers in allow", "file", p.file)
	}
	registries := make(map[string]*registry.Registry, len(c.Catalogs))
	for i, of := range c.Catalogs {
		opened := &servedCatalog{registry: registry.New()}
		opened.registry.SetPolicy(of.Policy)
		p.catalogs[of.ServerName], registries[of.ServerName] = opened, opened.registry
		if err = p.openSources(ctx, i, opened); err != nil {
			return err
		}
	}
	var audit *slog.Logger
	if c.Audit {
		audit = p.logger
	}
	p.server, err = owner.New(owner.Config{
		Catalogs: registries, Credentials: p.identity.Server(), Window: c.Window, Logger: p.logger,
		Gate: p.gate, TurnedAway: away, Register: p.addRegistration, Audit: audit,
	})
	if err != nil {
		return Error{Err: err}
	}
	p.applied = time.Now()
	p.setAllowed()
	if p.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", c.Listen); err != nil {
		return Error{"listen", err}
	}
	return nil
}

// openSources opens the sources of the catalog that is c.Catalogs[i] of the configuration.
func (p *Publisher) openSources(ctx context.Context, i int, c *servedCatalog) error {
	for j, s := range p.config.Catalogs[i].Sources {
		opened, err := p.openSource(ctx, s, c.registry)
		if err != nil {
			key := "catalogs"
			if s.Registration != nil {
				key = fmt.Sprintf("catalogs[%d].sources[%d].registration", i, j)
			}
			if _, ok := errors.AsType[*net.OpError](err); ok {
				key += ".listen"
			}
			return Error{key, err}
		}
		c.entries = append(c.entries, source.Entry{
			Name: s.Name, Source: opened, Lifetime: s.Lifetime, MaxWithdraw: s.MaxWithdraw, WithdrawAfter: s.WithdrawAfter,
		})
	}
	c.sources = source.NewCatalog(source.Config{Registry: c.registry, Logger: p.logger, Name: p.config.Catalogs[i].ServerName, Sources: c.entries})
	return nil
}

// closeListeners closes what New has opened before it fails.
func (p *Publisher) closeListeners() {
	if p.listener != nil {
		p.listener.Close()
	}
	for _, g := range p.registrationSources() {
		if g.listener != nil {
			g.listener.Close()
		}
	}
}

// addRegistration adds the registration service to the port of the owner, where there may be
// registrations.
func (p *Publisher) addRegistration(to grpc.ServiceRegistrar) {
	if p.file != "" {
		registrationv1.RegisterRegistrationServiceServer(to, registrationRouter{owner: p})
	}
}

// identityKey returns the key that names the origin of an identity.
func identityKey(o mtls.Origin) string {
	if o.SPIFFE.Socket != "" {
		return "identity.spiffe"
	}
	return "identity.files"
}

// Addr returns the address that consumers connect to.
func (p *Publisher) Addr() net.Addr { return p.listener.Addr() }

// ProcessConfig says where status, why and metrics are to be served.
func (p *Publisher) ProcessConfig() config.ProcessConfig { return p.config.ProcessConfig }

// Run publishes until ctx ends, and returns nil then. It calls announce when it begins
// to serve. It closes the listeners.
func (p *Publisher) Run(ctx context.Context, announce func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer p.running.Wait()
	defer cancel()
	for _, c := range p.catalogs {
		p.running.Go(func() { _ = c.sources.Run(ctx) })
	}
	p.running.Go(func() { _ = p.edits.Run(ctx) })
	for _, g := range p.registrationSources() {
		if g.listener != nil {
			p.running.Go(func() { p.servePort(ctx, g) })
		}
	}
	if p.file == "" {
		for _, c := range p.catalogs {
			select {
			case <-c.sources.Published():
			case <-ctx.Done():
			}
		}
	}
	p.running.Go(func() { _ = p.identity.Run(ctx) })
	announce()
	p.setServing(true)
	defer context.AfterFunc(ctx, func() { p.setServing(false) })()
	return p.server.Serve(ctx, p.listener)
}

func (p *Publisher) setServing(serving bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serving = serving
}
