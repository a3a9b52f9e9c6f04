package agent

import (
	"iter"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// largeService is how many endpoints and instances a service has that is compiled before
// it comes to the writer: one of 1,000 of each takes tens of milliseconds, and the
// writer is everybody's. Smaller ones are compiled there, in less than one.
const largeService = 32

// target is a service on its way into a block.
type target struct {
	block   *Block
	service *federation.Service
}

// prepared are services that are compiled already.
type prepared map[target]*zone.Prepared

// isLarge reports whether a service is compiled before it comes to the writer.
func isLarge(s *federation.Service) bool { return len(s.Endpoints)+len(s.Instances) >= largeService }

// add compiles a service, unless that is nothing to do beforehand.
func (p prepared) add(b *Block, index int, s *federation.Service) {
	if !isLarge(s) {
		return
	}
	if ready := b.builder.Prepare(b.Zone(), index, s); ready != nil {
		p[target{b, s}] = ready
	}
}

// put offers a service, prepared or not, to a block.
func (p prepared) put(m member, s *federation.Service, generation uint64) {
	if ready := p[target{m.block, s}]; ready != nil {
		m.block.builder.PutPrepared(ready, generation)
	} else {
		m.block.builder.Put(m.index, s, generation)
	}
}

// prepare compiles large services for the blocks that publish the owner. It runs
// on a goroutine of the owner, so one whose services are expensive takes its own
// time for them. What a block needs that is attached meanwhile, the writer compiles.
func (o *owner) prepare(services iter.Seq[*federation.Service]) prepared {
	ready := make(prepared)
	for s := range services {
		for _, m := range *o.targets.Load() {
			ready.add(m.block, m.index, s)
		}
	}
	return ready
}

// prepare compiles the large services of all its owners for a block that is about
// to be attached. Nobody but the caller knows the block.
func (b *Block) prepare() prepared {
	ready := make(prepared)
	all := make([][]*federation.Service, len(b.owners))
	_ = b.agent.do(func(time.Time) error {
		for i, o := range b.owners {
			for s := range o.catalog.All() {
				if isLarge(s) {
					all[i] = append(all[i], s)
				}
			}
		}
		return nil
	})
	for i, services := range all {
		for _, s := range services {
			ready.add(b, i, s)
		}
	}
	return ready
}

// accepted yields the services that come with updates.
func accepted(updates []consumer.Update) iter.Seq[*federation.Service] {
	return func(yield func(*federation.Service) bool) {
		for i := range updates {
			if u := &updates[i]; u.Service != nil && u.Refusal == nil && !yield(u.Service) {
				return
			}
		}
	}
}

// withdraw removes a block that publishes the owner. It is the writer's, as join is.
func (o *owner) withdraw(b *Block) {
	o.setMembers(slices.DeleteFunc(slices.Clone(o.members), func(m member) bool { return m.block == b }))
}

// setMembers makes members those of the owner. What prepare sees is never written.
func (o *owner) setMembers(members []member) {
	targets := slices.Clone(members)
	o.members = members
	o.targets.Store(&targets)
}
