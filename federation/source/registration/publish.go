package registration

import (
	"context"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/internal/table"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// publisher renders the services that have changed, and is the only one that calls the
// part.
type publisher struct {
	*Source

	part      source.Part
	published map[federation.FQDN]*wire.Encoded
	over      map[federation.FQDN]int // nodes of services for which these have no room
	beyond    int                     // the sum of over, as the part was told
	replaced  bool                    // whether the part is known as a whole
	away      error                   // as the part was told
}

func newPublisher(s *Source, part source.Part) *publisher {
	return &publisher{Source: s, part: part, published: make(map[federation.FQDN]*wire.Encoded), over: make(map[federation.FQDN]int)}
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.publish:
			p.round()
		case done := <-p.flush:
			p.round()
			close(done)
		}
	}
}

// round publishes what has changed, and then answers those who wait for it.
func (p *publisher) round() {
	p.mu.Lock()
	dirty, answers, away := p.table.Dirty(), p.table.Answers(), p.Source.away()
	_, whole := p.table.Known(time.Now())
	p.mu.Unlock()

	var changed []*wire.Encoded
	var gone []string
	for _, s := range dirty {
		p.exceed(s)
		before := p.published[s.Name]
		now := p.render(s)
		switch {
		case now != nil && (before == nil || !now.Equal(before)):
			p.published[s.Name] = now
			changed = append(changed, now)
		case now == nil && before != nil:
			delete(p.published, s.Name)
			gone = append(gone, before.Name())
		}
	}
	switch {
	case !whole: // silent until it is
	case !p.replaced:
		p.replaced = true
		all := make([]*wire.Encoded, 0, len(p.published))
		for _, e := range p.published {
			all = append(all, e)
		}
		p.part.Replace(all)
	case len(changed) > 0 || len(gone) > 0:
		p.part.Update(changed, gone)
	}
	beyond := 0
	for _, n := range p.over {
		beyond += n
	}
	if beyond != p.beyond {
		p.beyond = beyond
		p.part.Refused(map[string]int{string(federation.ReasonLimit): beyond})
	}
	if (away != nil) != (p.away != nil) {
		p.away = away
		p.part.Away(away)
	}
	if len(answers) > 0 {
		p.deliver(answers)
	}
}

// exceed notes for how many nodes of a service it has no room. Those are registered, and
// take the places of others that go; which are published, package node says.
func (p *publisher) exceed(s table.Service) {
	over := len(s.Nodes) - federation.MaxEndpoints
	if over <= 0 {
		delete(p.over, s.Name)
		return
	}
	if p.over[s.Name] == 0 {
		p.log.Warn("a service has more nodes than it may have endpoints; the first by URI are published",
			"service", s.Name, "nodes", len(s.Nodes), "limit", federation.MaxEndpoints)
	}
	p.over[s.Name] = over
}

// deliver tells the answers.
func (p *publisher) deliver(answers table.Deliveries) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Deliver(answers)
}

// render returns the service as it is sent, or nil where it has no nodes.
func (p *publisher) render(s table.Service) *wire.Encoded {
	if len(s.Nodes) == 0 {
		return nil
	}
	e, err := wire.NewEncoded(node.Service(p.config.Name, s.Nodes))
	if err != nil { // not with valid nodes
		p.log.Error("a service cannot be published", "service", s.Name, "error", err)
		return nil
	}
	return e
}
