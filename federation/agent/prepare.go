package agent

import (
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/packed"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
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

// add compiles a service, unless there is little to do beforehand.
func (p prepared) add(m *member, s packed.Service) {
	if endpoints, instances := s.Count(); endpoints+instances < largeService {
		return
	}
	if ready := m.block.builder.Prepare(m.block.Zone(), m.index, s); ready != nil {
		p[target{m.block, s}] = ready
	}
}

// put offers a service, prepared or not, to a block.
func (p prepared) put(m *member, s packed.Service, generation uint64) {
	if ready := p[target{m.block, s}]; ready != nil {
		m.block.builder.PutPrepared(ready, generation)
	} else {
		m.block.builder.PutPacked(m.index, s, generation)
	}
}

// prepare compiles the large services among the changes for all blocks that publish
// the owner. A block that joins meanwhile gets them with the rest of the catalog.
func (o *owner) prepare(changes []catalog.Change) prepared {
	ready := make(prepared)
	for _, change := range changes {
		if change.Service.IsZero() {
			continue
		}
		for _, m := range *o.members.Load() {
			ready.add(m, change.Service)
		}
	}
	return ready
}
