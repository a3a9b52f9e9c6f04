package agent

import (
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// largeService is the number of endpoints and instances from which on a service is
// compiled before it comes to the writer: one of 1,000 of each takes tens of
// milliseconds, and all owners share the writer. It compiles smaller ones itself, in
// less than one.
const largeService = 32

// target is a service on its way into a block.
type target struct {
	block   *Block
	service packed.Service
}

// prepared are services that are compiled already.
type prepared map[target]*zone.Prepared

// add compiles a service, unless there is little to do beforehand. Decode returns it.
func (p prepared) add(m *member, s packed.Service, decode func() *federation.Service) {
	if endpoints, instances := s.Count(); endpoints+instances < largeService {
		return
	}
	if ready := m.block.builder.Prepare(m.block.Zone(), m.index, s, decode()); ready != nil {
		p[target{m.block, s}] = ready
	}
}

// put offers a service, prepared or not, to a block.
func (p prepared) put(m *member, s packed.Service, at catalog.Announced) {
	if ready := p[target{m.block, s}]; ready != nil {
		m.block.builder.PutPrepared(ready, at.Generation, at.Updated)
	} else {
		m.block.builder.PutPacked(m.index, s, at.Generation, at.Updated)
	}
}

// prepare compiles the large services among the changes for all blocks that publish
// the owner. A block that joins meanwhile gets them with the rest of the catalog.
func (o *owner) prepare(changes consumer.Changes) prepared {
	ready := make(prepared)
	for _, m := range *o.members.Load() {
		compiled := restored(changes.Prepared)
		for i := range changes.Services {
			change := &changes.Services[i]
			if change.Op() != catalog.Gone && compiled.take(m, change.Packed) == nil {
				ready.add(m, change.Packed, change.Service)
			}
		}
	}
	return ready
}

// compiled is a service from the file, compiled for the block of one member.
type compiled struct {
	member  *member
	service packed.Service
	ready   *zone.Prepared // nil when the block does not publish it
	next    *compiled      // the same service for another member; nil: there is none
}

// compile is consumer.Config.Prepare: it compiles a service for all blocks that publish
// the owner, while others are put into the zones.
func (o *owner) compile(p packed.Service, s *federation.Service) any {
	var all *compiled
	for _, m := range *o.members.Load() {
		all = &compiled{m, p, m.block.builder.Prepare(nil, m.index, p, s), all}
	}
	return all
}

// restored is what compile has returned, in order.
type restored []any

// take returns what was compiled of the next service to be put, and nil for one that
// was not. Services before it are dropped, as the catalog has refused them.
func (r *restored) take(m *member, s packed.Service) *zone.Prepared {
	for len(*r) > 0 {
		c, _ := (*r)[0].(*compiled)
		*r = (*r)[1:]
		if c == nil || c.service != s {
			continue
		}
		for c != nil && c.member != m {
			c = c.next
		}
		if c != nil {
			return c.ready
		}
		return nil
	}
	return nil
}
