package registration

import (
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/internal/table"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// partPublisher keeps what the part was told last. Only publishAndAnswer uses it, one call at a
// time, so that the part gets changes in their order.
type partPublisher struct {
	part source.Part // read-only once Run has begun

	mu       sync.Mutex              // guards the fields below
	over     map[federation.FQDN]int // by service, nodes beyond the endpoints that it may have
	replaced bool                    // whether the part is known as a whole
}

// publishAndAnswer publishes what has changed, and then answers the providers that wait for it.
// Where several callers have changed something at the same time, the first one does so for all.
func (s *Source) publishAndAnswer() {
	p := &s.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	s.mu.Lock()
	_, whole := s.table.KnownState(time.Now())
	if whole && !p.replaced {
		s.table.MarkAll()
	}
	dirty, answers, away := s.table.TakeDirty(), s.table.TakeAnswers(), s.awayReason()
	s.mu.Unlock()
	if whole { // silent until it is
		s.publishServices(dirty)
	}
	p.part.SetAway(away)
	if len(answers) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.table.DeliverAnswers(answers)
	}
}

// publishServices passes changed services to the part. The caller holds the mutex of the publisher.
func (s *Source) publishServices(services []table.Service) {
	p := &s.publisher
	var changed []*wire.EncodedService
	var gone []string
	for _, of := range services {
		s.noteExcess(of)
		if encoded := s.encodeService(of); encoded != nil {
			changed = append(changed, encoded)
		} else {
			gone = append(gone, node.ServiceName(s.config.Name, of.Name))
		}
	}
	switch {
	case !p.replaced:
		p.replaced = true
		p.part.Replace(changed)
	case len(services) > 0:
		p.part.Update(changed, gone)
	}
	beyond := 0
	for _, n := range p.over {
		beyond += n
	}
	p.part.SetRefused(map[string]int{string(federation.ReasonLimit): beyond})
}

// noteExcess records how many nodes of a service are beyond the endpoints that it may have. Such
// nodes are registered, and are published when others go; package node says which nodes are
// published.
func (s *Source) noteExcess(of table.Service) {
	all := s.publisher.over
	over := len(of.Nodes) - limits.Endpoints
	if over <= 0 {
		delete(all, of.Name)
		return
	}
	if all[of.Name] == 0 {
		s.log.Warn("a service has more nodes than it may have endpoints; the first by URI are published",
			"service", of.Name, "nodes", len(of.Nodes), "limit", limits.Endpoints)
	}
	all[of.Name] = over
}

// encodeService returns the service as it is sent, or nil where it has no nodes.
func (s *Source) encodeService(of table.Service) *wire.EncodedService {
	if len(of.Nodes) == 0 {
		return nil
	}
	e, err := wire.NewEncoded(node.RenderService(s.config.Name, of.Nodes))
	if err != nil { // not with valid nodes
		s.log.Error("a service cannot be published", "service", of.Name, "error", err)
		return nil
	}
	return e
}
