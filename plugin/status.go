package federationplugin

import (
	"context"
	"fmt"
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
)

// statusPage is the status of the process. It implements page.ReportSource. It keeps the started server
// blocks and the ports that their configurations want: a start adds to them, under mu, and
// keepConfigurations removes those of other configurations. A port lives for as long as a
// configuration wants it, so that neither a reload that leaves the status as it is nor one that
// fails touches the listener. A statusPage keeps no report, because each request reads the state anew.
type statusPage struct {
	// Read-only.
	*agent.Agent // has Catalog of page.ReportSource

	logger *slog.Logger
	began  time.Time
	asking chan struct{} // has room for maxAsking calls of Why

	mu      sync.Mutex       // guards the fields below
	servers []*startedServer // in the order of their start
	ports   []*statusPort    // mostly one
}

// statusPort is a port at which the status is served.
type statusPort struct {
	config page.Config
	users  []*instanceConfig
	end    func() // stops serving, and waits for the end
}

// maxAsking bounds how many answers are explained at a time. Each may wait for hosts.
const maxAsking = 4

// openPort serves the status for a configuration, if that wants it, once. It fails when the files
// or the port cannot be used.
func (p *statusPage) openPort(c *instanceConfig) error {
	if c.statusBlock == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	config := c.statusBlock.Status
	for _, s := range p.ports {
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
	server, err := page.Listen(context.Background(), config, p.logger) //nolint:forbidigo // as servePort
	if err != nil {
		return fmt.Errorf("%s - Error: %w", c.statusBlock.Position, err)
	}
	p.ports = append(p.ports, &statusPort{config, []*instanceConfig{c}, p.servePort(server)})
	p.logger.Info("status is served", "listen", server.Addr())
	return nil
}

// servePort serves the status at a port, and returns a function that stops that and waits for the
// end.
func (p *statusPage) servePort(server *page.Server) func() {
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

// showServer adds a server block, which has started.
func (p *statusPage) showServer(s *startedServer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers = append(p.servers, s)
}

// keepConfigurations removes all configurations except those for which keep returns true. Ports
// that no configuration wants any more are closed when it returns.
func (p *statusPage) keepConfigurations(keep func(*instanceConfig) bool) {
	p.mu.Lock()
	p.servers = slices.DeleteFunc(p.servers, func(s *startedServer) bool { return !keep(s.configuration) })
	var over []*statusPort
	p.ports = slices.DeleteFunc(p.ports, func(s *statusPort) bool {
		s.users = slices.DeleteFunc(s.users, func(c *instanceConfig) bool { return !keep(c) })
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

// runningServers returns the server blocks that answer. In a reload these are the blocks of the
// earlier configuration, which stays if the new one fails.
func (p *statusPage) runningServers() (running []*startedServer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.servers {
		if s.configuration == p.servers[0].configuration {
			running = append(running, s)
		}
	}
	return running
}

// Status implements page.ReportSource.
func (p *statusPage) Status() status.Status {
	now := time.Now()
	s := status.Status{
		Role: status.Consumer, Version: buildinfo.Version(), Host: status.Hostname(), PID: os.Getpid(), Now: now.UTC(), Began: p.began.UTC(),
		Ready: p.Ready(), Owners: p.OwnerReports(now),
	}
	for i := range s.Owners {
		if !s.Ready && !s.Owners[i].Known {
			s.Waiting = append(s.Waiting, "the first complete catalog of owner "+s.Owners[i].ID)
		}
	}
	for _, b := range p.runningServers() {
		s.Zones = append(s.Zones, b.reportZones()...)
	}
	slices.SortStableFunc(s.Zones, func(a, b status.Zone) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// Why implements page.ReportSource.
func (p *statusPage) Why(ctx context.Context, name string, qtype uint16) (status.NameExplanation, error) {
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return status.NameExplanation{}, ctx.Err()
	}
	w := status.NameExplanation{Role: status.Consumer, Now: time.Now().UTC(), Name: name, Type: dns.Type(qtype).String()}
	for _, b := range p.runningServers() {
		if a, ours := b.explain(ctx, name, qtype); ours {
			w.Answers = append(w.Answers, a)
		}
	}
	w.AddRefused(p.RefusedOwners(name, w.Answers, time.Now()))
	return w, nil
}
