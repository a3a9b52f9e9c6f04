// Package serve runs an owner as its configuration says: a server, its catalogs
// with their sources, and the files that it follows. A configuration file that changes
// is applied as a difference.
//
// Only packages of this module import it: it is not a stable API.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/file"
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

	Logger *slog.Logger

	// TurnedAway, where it is set, is told of each consumer or provider that is not let in.
	// See package gate.
	TurnedAway func(gate.TurnedAway)
}

// Error says why an owner cannot start.
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
	away     func(gate.TurnedAway)
	server   *owner.Server
	identity *mtls.Source
	settings *file.File  // the configuration file; nil when there is none
	edits    *file.Group // it, and what it names that is followed, but for certificates
	listener net.Listener
	web      net.Listener // of metrics and health; nil when there is none
	began    time.Time
	gate     *gate.Gate // of all ports

	running sync.WaitGroup // what Run has started, and what follows the configuration

	// Owned by New and then by edits, of which there is one at a time.

	launch   func(run func(ctx context.Context)) (stop context.CancelFunc) // runs something until Run ends; nil before Run
	editing  bool                                                          // whether an edit is being put in force
	admitted map[federation.ID]bool                                        // who may subscribe, as the server was told last; nil before that

	// Changed by New and then by edits, which alone may read them without the lock; guarded
	// by mu for all others.

	mu        sync.Mutex
	fileLocks map[string]*consumer.FileLock // of relays, by path; those of earlier configurations, too
	config    config.Config                 // in effect
	applied   time.Time                     // when it came into effect
	restart   []string                      // keys whose new values wait for a restart
	allowed   *named[[]federation.ID]       // the allow file
	catalogs  map[string]*catalog           // by server name
	ports     map[string]*port              // for providers, by key
	pending   []*registered                 // that were opened and are not in effect
	serving   bool
	ready     bool // whether one of the catalogs has been complete, and served, at one time
}

// New reads the files that the configuration names, and listens. Its errors are of
// type Error.
func New(ctx context.Context, c Config) (*Publisher, error) {
	p := &Publisher{file: c.File, logger: c.Logger, away: c.TurnedAway, began: time.Now(), ports: make(map[string]*port), fileLocks: make(map[string]*consumer.FileLock)}
	p.edits = file.NewGroup(p.apply)
	first := c.Owner
	if c.File != "" {
		p.settings = newSettings(c.File, c.Logger, p.edits, func(ctx context.Context, c config.Config) (func(), error) {
			if p.server == nil {
				return func() { first = c }, nil
			}
			next, err := p.prepare(ctx, c)
			return func() { p.change(next) }, err
		})
		if err := p.settings.Load(ctx); err != nil {
			return nil, Error{Err: err}
		}
	}
	if err := p.begin(ctx, first); err != nil {
		return nil, err
	}
	return p, nil
}

// begin makes the server with its first configuration.
func (p *Publisher) begin(ctx context.Context, c config.Config) (err error) {
	defer func() {
		if err != nil {
			p.closeListeners()
		}
	}()
	if p.gate, err = gate.New(gate.Config{Logger: p.logger, TurnedAway: p.away}); err != nil {
		return Error{Err: err}
	}
	p.config.Listen, p.config.Identity = c.Listen, c.Identity
	if p.identity, err = mtls.Open(c.Identity, p.logger); err != nil {
		return Error{identityKey(c.Identity), err}
	}
	next, err := p.prepare(ctx, c)
	if err != nil {
		return err
	}
	p.adopt(next)
	p.server, err = owner.New(owner.Config{
		Catalogs: p.registries(), Credentials: p.identity.Server(), Window: c.Window, Logger: p.logger,
		Gate: p.gate, TurnedAway: p.away, Register: p.register,
	})
	if err != nil {
		return Error{Err: err}
	}
	p.audit(c.Audit)
	p.admit()
	p.listener, err = listen(ctx, "listen", c.Listen)
	if err != nil {
		return err
	}
	if c.Metrics == "" {
		return nil
	}
	p.web, err = listen(ctx, "metrics", c.Metrics)
	return err
}

// closeListeners closes what New has opened before it fails.
func (p *Publisher) closeListeners() {
	if p.listener != nil {
		p.listener.Close()
	}
	for _, opened := range p.ports {
		opened.listener.Close()
	}
}

// register adds the registration service to the port of the owner, where there may be
// registrations.
func (p *Publisher) register(to grpc.ServiceRegistrar) {
	if p.file != "" {
		registrationv1.RegisterRegistrationServiceServer(to, router{find: p.atOwner})
	}
}

// identityKey returns the key that names the origin of an identity.
func identityKey(o mtls.Origin) string {
	if o.SPIFFE.Socket != "" {
		return "identity.spiffe"
	}
	return "identity.files"
}

// listen listens on the address that is the value of a key.
func listen(ctx context.Context, key, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, Error{key, err}
	}
	return listener, nil
}

// Addr returns the address that consumers connect to.
func (p *Publisher) Addr() net.Addr { return p.listener.Addr() }

// WebAddr returns the address of metrics and health, or nil when
// there is none.
func (p *Publisher) WebAddr() net.Addr {
	if p.web == nil {
		return nil
	}
	return p.web.Addr()
}

// StatusPage says where status and why are to be served; without an address, nowhere.
func (p *Publisher) StatusPage() page.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.config.Status
}

// Run publishes until ctx ends, and returns nil then. It calls announce when it begins
// to serve, and handles what comes to WebAddr with web. It closes the listeners.
func (p *Publisher) Run(ctx context.Context, web http.Handler, announce func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer p.running.Wait()
	defer cancel()
	if p.web != nil {
		server := &http.Server{
			Handler: web, MaxHeaderBytes: 16 << 10,
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		}
		defer server.Close() // after the owner has ended, so that its end can be watched
		p.running.Go(func() {
			if err := server.Serve(p.web); !errors.Is(err, http.ErrServerClosed) {
				p.logger.Error("metrics and health are not served any more", "error", err)
			}
		})
	}
	p.launch = func(run func(ctx context.Context)) context.CancelFunc {
		ctx, stop := context.WithCancel(ctx)
		p.running.Go(func() { run(ctx) })
		return stop
	}
	p.attend()
	if p.file == "" {
		for _, c := range p.catalogs {
			select {
			case <-c.sources.Published():
			case <-ctx.Done():
			}
		}
	}
	// Each of these returns nil when ctx ends.
	p.running.Go(func() { _ = p.identity.Run(ctx) })
	if p.settings != nil {
		p.running.Go(func() { _ = p.settings.Run(ctx) })
	}
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
