package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// leaveTimeout bounds how long the end of Run waits for an owner to withdraw the nodes.
const leaveTimeout = 5 * time.Second

// ErrEnded is why a node cannot be set: Run has ended, or is about to.
var ErrEnded = errors.New("the provider has ended")

// Config says where to register.
type Config struct {
	// Addresses are the host:port of owners, at least one. These owners must share what
	// is registered. One is used at a time: a random one first, and the next one
	// when it fails.
	Addresses []string

	// Identity is who the program is, and which owners it trusts.
	Identity Identity

	// OnChange gets the status of a node that has changed. It is called from one goroutine. Of
	// several changes at once it may get only the last one. Default: nobody is told.
	OnChange func(Status)

	Logger *slog.Logger // default: nothing is logged

	// Dial opens a connection to an address; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Identity is who a program is, and which owners it trusts. mtls.Consumer implements it,
// with certificates from files or from a SPIFFE agent.
type Identity interface {
	// Credentials returns those for a connection to one of the addresses of Config.
	Credentials(address string) credentials.TransportCredentials

	// Changed returns a channel that is closed when the credentials have changed: an
	// owner that did not accept the program is tried again then. It never blocks. A
	// nil channel says that they never change.
	Changed() <-chan struct{}

	// Run keeps the credentials current until ctx ends, and returns nil then. The
	// Provider calls it when it runs itself, and waits for it.
	Run(ctx context.Context) error
}

// Provider keeps the nodes of a program registered. Set and Clear change the nodes under mu, and
// the stream to an owner follows them. It keeps each node that was set and, until they expire,
// nodes that were cleared and that an owner may still have. MaxCleared bounds the latter where the
// owner has got the Clear. A provider has no queue of messages: what is due follows from the
// entries, so that a node which changes often is sent once. It is safe for concurrent use.
type Provider struct {
	// read-only after New
	config Config

	wake    chan struct{} // holds a value when there is something to send
	notify  chan struct{} // holds a value when changed is not empty
	leaving chan struct{} // closed when everything is to be cleared; by beginLeaving
	ended   chan struct{} // closed when Run has ended

	mu       sync.Mutex
	nodes    map[nodeKey]*nodeEntry   // nodes that are to be registered; guarded by mu
	cleared  map[nodeKey]*clearedNode // nodes that owners may still have; guarded by mu
	changed  []*nodeEntry             // entries whose status is to be reported; guarded by mu
	answered string                   // the address of an owner that has granted something for the first time on its stream, to be logged; guarded by mu
	runs     bool                     // Run has been called; guarded by mu
	left     bool                     // leaving is closed; guarded by mu

	// owned by Run
	owners   []*ownerTarget
	next     int           // the index in owners of the owner to try next
	patience time.Duration // with an owner that has not answered yet, if it is more than the ttl gives
	silent   int           // streams without an answer, one after the other
	spread   time.Duration // before the next stream
}

// New returns a Provider without nodes, or an error that names a field of the configuration.
func New(config Config) (*Provider, error) {
	if len(config.Addresses) == 0 {
		return nil, errors.New("no address of an owner")
	}
	if config.Identity == nil {
		return nil, errors.New("no identity: there is no unsecured mode")
	}
	if config.OnChange == nil {
		config.OnChange = func(Status) {}
	}
	config.Logger = loglimit.NewLogger(config.Logger)
	p := &Provider{
		config: config,
		wake:   make(chan struct{}, 1), notify: make(chan struct{}, 1),
		leaving: make(chan struct{}), ended: make(chan struct{}),
		nodes: make(map[nodeKey]*nodeEntry), cleared: make(map[nodeKey]*clearedNode),
		next: rand.N(len(config.Addresses)), //nolint:gosec // spreads the programs over the owners
	}
	for _, address := range config.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("address %q of an owner is not host:port: %w", address, err)
		}
		p.owners = append(p.owners, newOwner(address))
	}
	return p, nil
}

// Run keeps the nodes registered until ctx ends or Drain is called. Then it clears all nodes, waits
// until the owner has withdrawn them, five seconds at most, and returns nil. Without a node it does
// not connect. It must be called only once.
func (p *Provider) Run(ctx context.Context) error {
	p.mu.Lock()
	again, left := p.runs, p.left
	p.runs = true
	p.mu.Unlock()
	if again {
		return errors.New("the provider runs already")
	}
	defer close(p.ended)
	if left {
		return nil
	}

	var beside sync.WaitGroup
	defer beside.Wait()
	// The other goroutines and the streams outlive ctx until all nodes are cleared.
	outliving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	beside.Go(func() {
		if err := p.config.Identity.Run(outliving); err != nil {
			p.config.Logger.Error("credentials are no longer updated", "error", err)
		}
	})
	beside.Go(func() { p.reportChanges(outliving) })
	beside.Go(func() {
		select {
		case <-ctx.Done():
			p.beginLeaving()
		case <-p.leaving:
		case <-outliving.Done():
			return
		}
		timer := time.NewTimer(leaveTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-outliving.Done():
		}
	})
	p.keepRegistered(outliving)
	p.clearRemaining(outliving)
	return nil
}

// keepRegistered runs one stream after the other until it is time to leave. A stream that is open
// then clears all nodes.
func (p *Provider) keepRegistered(ctx context.Context) {
	changed := p.config.Identity.Changed()
	for p.awaitWork(ctx) {
		o, delay := p.pickOwner(time.Now())
		if !p.awaitRetry(delay, o.fixable, &changed) {
			return
		}
		if !p.hasWork() { // what was cleared has expired meanwhile
			continue
		}
		useful, err := p.holdStream(ctx, o)
		if p.isLeaving() {
			return
		}
		p.next = (p.next + 1) % len(p.owners)
		p.scheduleRetry(o, useful, err)
	}
}

// clearRemaining clears nodes that owners may still have, with the first owner that does so.
func (p *Provider) clearRemaining(ctx context.Context) {
	p.beginLeaving() // in case that ctx has ended otherwise
	for i := 0; i < len(p.owners) && ctx.Err() == nil && p.hasWork(); i++ {
		o := p.owners[(p.next+i)%len(p.owners)]
		if _, err := p.holdStream(ctx, o); err != nil {
			p.config.Logger.Warn("owner was not told of the end; the nodes expire after their ttl", "address", o.address, "error", err)
		}
	}
}

// Drain ends Run: all nodes are cleared, and the owner withdraws them. Drain waits for that, and
// then for as long as clients may have the nodes in their caches. When ctx ends it returns early,
// with the error of ctx; nodes are cleared all the same.
func (p *Provider) Drain(ctx context.Context, caches time.Duration) error {
	p.mu.Lock()
	ran := p.runs
	p.mu.Unlock()
	p.beginLeaving()
	if !ran {
		return nil
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	timer := time.NewTimer(caches)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitWork waits until there is a node to send to an owner, and reports whether there is one.
// Otherwise it is time to leave.
func (p *Provider) awaitWork(ctx context.Context) bool {
	for {
		if p.isLeaving() {
			return false
		}
		if p.hasWork() {
			return true
		}
		select {
		case <-p.wake:
		case <-p.leaving:
		case <-ctx.Done():
			return false
		}
	}
}

// hasWork reports whether there is a node to send to an owner.
func (p *Provider) hasWork() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.nodes) > 0 || p.pruneCleared(time.Now())
}

// awaitRetry waits for a duration or, if they may help, for new credentials. It reports false when
// it is time to leave.
func (p *Provider) awaitRetry(d time.Duration, fixable bool, changed *<-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	fixed := *changed
	if !fixable {
		fixed = nil
	}
	select {
	case <-timer.C:
	case <-fixed:
	case <-p.leaving:
		return false
	}
	select {
	case <-*changed:
		*changed = p.config.Identity.Changed()
		for _, o := range p.owners {
			o.allowRetry()
		}
	default:
	}
	return !p.isLeaving()
}

func (p *Provider) isLeaving() bool {
	select {
	case <-p.leaving:
		return true
	default:
		return false
	}
}

// reportChanges calls Config.OnChange for each changed status, until ctx ends.
func (p *Provider) reportChanges(ctx context.Context) {
	for {
		select {
		case <-p.notify:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		changed := make([]Status, 0, len(p.changed))
		for _, e := range p.changed {
			e.changed = false
			changed = append(changed, e.status)
		}
		address := p.answered
		p.changed, p.answered = nil, ""
		p.mu.Unlock()
		if address != "" {
			p.config.Logger.Info("registered with owner", "address", address)
		}
		for i := range changed {
			p.logRefusal(&changed[i])
			p.config.OnChange(changed[i])
		}
	}
}

// logRefusal logs that a node is refused. Other changes concern all nodes, and are logged with the
// stream.
func (p *Provider) logRefusal(s *Status) {
	if s.State == Refused {
		p.config.Logger.Warn("node is refused", "service", s.Node.Service, "node", s.Node.URI, "address", s.Owner,
			"rule", safetext.Printable(s.Rule), "reason", safetext.Printable(s.Reason))
	}
}
