// Package status serves the status of the process, which a federation block asks for with its property
// status: a [Page] has the owners, the zones of the server blocks, and why a name is answered as
// it is. It also decides at which ports the status is served, and for how long, through reloads.
//
// Only packages of this module import it: it is not a stable API.
package status

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/buildinfo"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// Configuration stands for all server blocks that are read together. Its address identifies it.
type Configuration struct {
	statusBlock *corefile.Block // the block that says where the status is served, or nil; only Add writes it
}

// Add adds what the blocks of one more server block say of the status, or returns a conflict
// between them.
func (c *Configuration) Add(blocks []corefile.Block) error {
	for i := range blocks {
		b := &blocks[i]
		if b.Status == (page.Config{}) {
			continue
		}
		if c.statusBlock == nil {
			c.statusBlock = b
		}
		if err := b.StatusConflict(c.statusBlock); err != nil {
			return fmt.Errorf("%s - Error: %w in the block at %s", b.Position, err, c.statusBlock.Position)
		}
	}
	return nil
}

// Block is a server block that has started. Its methods may be called by several
// goroutines at once.
type Block interface {
	// Report returns the zones of the block.
	ReportZones() []status.Zone

	// Explain returns the reply that the block gives to a query, and why, as long as ctx
	// lasts, or false for a name outside of its zones.
	Explain(ctx context.Context, name string, qtype uint16) (status.BlockAnswer, bool)
}

// shownBlock is a block with its configuration.
type shownBlock struct {
	Block

	configuration *Configuration
}

// Page is the status of the process. It implements page.ReportSource. It keeps the started server
// blocks and the ports that their configurations want: a start adds to them, under mu, and
// KeepConfigurations removes those of other configurations. A port lives for as long as a
// configuration wants it, so that neither a reload that leaves the status as it is nor one that
// fails touches the listener. A Page keeps no report, because each request reads the state anew.
type Page struct {
	// Read-only.
	agent  *agent.Agent
	logger *slog.Logger
	began  time.Time
	asking chan struct{} // has room for maxAsking calls of Why

	mu       sync.Mutex    // guards the fields below
	blocks   []shownBlock  // in the order of their start
	services []*statusPort // mostly one
}

// statusPort is a port at which the status is served.
type statusPort struct {
	config page.Config
	users  []*Configuration
	end    func() // stops serving, and waits for the end
}

// maxAsking bounds how many answers are explained at a time. Each may wait for hosts.
const maxAsking = 4

// New returns the status of a process with the owners of the agent. It is served nowhere yet.
func New(a *agent.Agent, logger *slog.Logger) *Page {
	return &Page{agent: a, logger: logger, began: time.Now(), asking: make(chan struct{}, maxAsking)}
}

// OpenPort serves the status for a configuration, if that wants it, once. It fails when the files
// or the port cannot be used.
func (p *Page) OpenPort(c *Configuration) error {
	if c.statusBlock == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	config := c.statusBlock.Status
	for _, s := range p.services {
		if s.config == config {
			if !slices.Contains(s.users, c) {
				s.users = append(s.users, c)
			}
			return nil
		}
		if s.config.Address == config.Address {
			return fmt.Errorf("%s - Error: status: %s cannot get other files while CoreDNS runs; restart CoreDNS, or take another address", c.statusBlock.Position, config.Address)
		}
	}
	server, err := page.Listen(context.Background(), config, p.logger) //nolint:forbidigo // as Page.servePort
	if err != nil {
		return fmt.Errorf("%s - Error: %w", c.statusBlock.Position, err)
	}
	p.services = append(p.services, &statusPort{config, []*Configuration{c}, p.servePort(server)})
	p.logger.Info("status is served", "listen", server.Addr())
	return nil
}

// servePort serves the status at a port, and returns a function that stops that and waits for the
// end.
func (p *Page) servePort(server *page.Server) func() {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // CoreDNS has no context for what outlives a configuration
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, p); err != nil {
			p.logger.Error("status is not served any more", "error", err)
		}
	})
	return func() {
		cancel()
		serving.Wait()
	}
}

// ShowBlock adds a server block of a configuration, which has started.
func (p *Page) ShowBlock(c *Configuration, b Block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocks = append(p.blocks, shownBlock{b, c})
}

// KeepConfigurations removes all configurations except those for which keep returns true. Ports
// that no configuration wants any more are closed when it returns.
func (p *Page) KeepConfigurations(keep func(*Configuration) bool) {
	p.mu.Lock()
	p.blocks = slices.DeleteFunc(p.blocks, func(b shownBlock) bool { return !keep(b.configuration) })
	var over []*statusPort
	p.services = slices.DeleteFunc(p.services, func(s *statusPort) bool {
		s.users = slices.DeleteFunc(s.users, func(c *Configuration) bool { return !keep(c) })
		if len(s.users) == 0 {
			over = append(over, s)
		}
		return len(s.users) == 0
	})
	p.mu.Unlock()
	for _, s := range over {
		s.end() // not under the lock, because answers in progress take it
	}
}

// runningBlocks returns the server blocks that answer. In a reload these are the blocks of the
// earlier configuration, which stays if the new one fails.
func (p *Page) runningBlocks() []Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	var running []Block
	for _, b := range p.blocks {
		if b.configuration == p.blocks[0].configuration {
			running = append(running, b)
		}
	}
	return running
}

// Status implements page.ReportSource.
func (p *Page) Status() status.Status {
	now := time.Now()
	s := status.Status{
		Role: status.Consumer, Version: buildinfo.Version(), Host: status.Hostname(), PID: os.Getpid(), Now: now.UTC(), Began: p.began.UTC(),
		Ready: p.agent.Ready(), Owners: p.agent.OwnerReports(now),
	}
	for i := range s.Owners {
		if !s.Ready && !s.Owners[i].Known {
			s.Waiting = append(s.Waiting, "the first complete catalog of owner "+s.Owners[i].ID)
		}
	}
	for _, b := range p.runningBlocks() {
		s.Zones = append(s.Zones, b.ReportZones()...)
	}
	slices.SortStableFunc(s.Zones, func(a, b status.Zone) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// Catalog implements page.ReportSource.
func (p *Page) Catalog(of string) (iter.Seq2[status.CatalogService, error], error) {
	return p.agent.Catalog(of)
}

// Why implements page.ReportSource.
func (p *Page) Why(ctx context.Context, name string, qtype uint16) (status.NameExplanation, error) {
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return status.NameExplanation{}, ctx.Err()
	}
	w := status.NameExplanation{Role: status.Consumer, Now: time.Now().UTC(), Name: name, Type: dns.Type(qtype).String()}
	for _, b := range p.runningBlocks() {
		if a, ours := b.Explain(ctx, name, qtype); ours {
			w.Answers = append(w.Answers, a)
		}
	}
	w.AddRefused(p.agent.RefusedOwners(name, w.Answers, time.Now()))
	return w, nil
}
