package federationplugin

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/agent"
	"github.com/hamlet-federation/coredns-federation/federation/report"
	"github.com/hamlet-federation/coredns-federation/federation/stamp"
	"github.com/hamlet-federation/coredns-federation/federation/statuspage"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
	"github.com/hamlet-federation/coredns-federation/plugin/loopback"
)

// configuration is all server blocks that are read together. Its address stands for it.
type configuration struct {
	status *corefile.Block // that says where the status is served, or nil; written by setup only
}

// addStatus takes what the blocks of one more server block say of the status.
func (c *configuration) addStatus(blocks []corefile.Block) error {
	for i := range blocks {
		b := &blocks[i]
		if b.Status == (statuspage.Config{}) {
			continue
		}
		if c.status == nil {
			c.status = b
		}
		if err := b.StatusConflict(c.status); err != nil {
			return fmt.Errorf("%s - Error: %w in the block at %s", b.Position, err, c.status.Position)
		}
	}
	return nil
}

// server is a server block that has started.
type server struct {
	*Federation

	configuration *configuration
	block         *agent.Block
	keys          []string // of the server block
	lookups       *loopback.Network
}

// page is the status of the process. It implements statuspage.Source. Its listener lives
// for as long as a configuration wants it: a reload that leaves it as it is does not
// touch it, and one that fails does not either.
type page struct {
	// Read-only.
	agent  *agent.Agent
	began  time.Time
	asking chan struct{} // has room for as many as may ask why at a time

	mu       sync.Mutex
	servers  []*server  // in the order of their start
	services []*service // guarded by mu; mostly one
}

// service is a port at which the status is served.
type service struct {
	config statuspage.Config
	server *statuspage.Server
	users  []*configuration
	end    func() // ends it, and waits for the end
}

// maxAsking bounds how many answers are explained at a time. Each may wait for hosts.
const maxAsking = 4

func newPage(a *agent.Agent) *page {
	return &page{agent: a, began: time.Now(), asking: make(chan struct{}, maxAsking)}
}

// open serves the status for a configuration, where it wants that, once. It fails when the
// files or the port cannot be had.
func (p *page) open(c *configuration) error {
	if c.status == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	config, logger := c.status.Status, newLogger(log)
	var neighbour *service // with the port, and with other files
	for _, s := range p.services {
		if s.config == config {
			if !slices.Contains(s.users, c) {
				s.users = append(s.users, c)
			}
			return nil
		}
		if s.config.Address == config.Address {
			neighbour = s
		}
	}
	s := &service{config: config, users: []*configuration{c}}
	var err error
	if neighbour != nil {
		s.server, err = neighbour.server.Again(config, logger)
	} else {
		s.server, err = statuspage.Listen(context.Background(), config, logger) //nolint:forbidigo // as serveStatus
	}
	if err != nil {
		return fmt.Errorf("%s - Error: %w", c.status.Position, err)
	}
	s.end = serveStatus(s.server, p)
	p.services = append(p.services, s)
	newLogger(log).Info("status is served", "listen", s.server.Addr())
	return nil
}

// show adds a server block that has started.
func (p *page) show(s *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers = append(p.servers, s)
}

// keep forgets all configurations but those that keep returns true for. The ports that
// nobody wants any more are closed when it returns.
func (p *page) keep(keep func(*configuration) bool) {
	p.mu.Lock()
	p.servers = slices.DeleteFunc(p.servers, func(s *server) bool { return !keep(s.configuration) })
	var over []*service
	p.services = slices.DeleteFunc(p.services, func(s *service) bool {
		s.users = slices.DeleteFunc(s.users, func(c *configuration) bool { return !keep(c) })
		if len(s.users) == 0 {
			over = append(over, s)
		}
		return len(s.users) == 0
	})
	p.mu.Unlock()
	for _, s := range over {
		s.end() // not under the lock, which answers under way take
	}
}

// running returns the server blocks that answer: in a reload those of the configuration
// before it, which stays if the new one fails.
func (p *page) running() []*server {
	p.mu.Lock()
	defer p.mu.Unlock()
	var running []*server
	for _, s := range p.servers {
		if s.configuration == p.servers[0].configuration {
			running = append(running, s)
		}
	}
	return running
}

// Status implements statuspage.Source.
func (p *page) Status() report.Status {
	now := time.Now()
	s := report.Status{
		Role: report.Consumer, Version: stamp.String(), Now: now.UTC(), Began: p.began.UTC(),
		Ready: p.agent.Ready(), Upstreams: p.agent.Upstreams(now),
	}
	for i := range s.Upstreams {
		if !s.Ready && !s.Upstreams[i].Known {
			s.Waiting = append(s.Waiting, "the first complete catalog of owner "+s.Upstreams[i].ID)
		}
	}
	for _, server := range p.running() {
		s.Zones = append(s.Zones, server.report()...)
	}
	slices.SortStableFunc(s.Zones, func(a, b report.Zone) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// report returns the zones of the server block.
func (s *server) report() []report.Zone {
	z := s.zone()
	var zones []report.Zone
	for _, name := range s.zones() {
		r := report.Zone{Name: name, Servers: s.keys}
		if soa := z.SOA(name); soa != nil {
			r.Serial = soa.Serial
		}
		for i := range s.config.Zone.Owners {
			o := &s.config.Zone.Owners[i]
			for _, origin := range o.Origins {
				if origin.String() == name {
					r.Owners = append(r.Owners, o.ID)
				}
			}
		}
		zones = append(zones, r)
	}
	return zones
}

// Services implements statuspage.Source.
func (p *page) Services(of, after string, limit int) (report.Services, error) {
	return p.agent.Services(of, after, limit)
}

// Catalog implements statuspage.Source.
func (p *page) Catalog(of string) (iter.Seq2[report.Service, error], error) {
	return p.agent.Catalog(of)
}
