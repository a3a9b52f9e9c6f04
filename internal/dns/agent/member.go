package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// publishingBlock is a block that publishes an owner, which is its index-th.
type publishingBlock struct {
	block        *Block
	index        int
	admissionKey string // a word for what the block admits, the same in another process

	// joining is nil once the block has the whole catalog. Until then it has, by name, the
	// generation of what has been confirmed since joinBlock looked, and 0 for what has another
	// version since, or is gone. Agent.writing guards it.
	joining map[string]uint64
}

// noteChange notes what changes while the block joins.
func (m *publishingBlock) noteChange(change *catalog.Change) {
	if m.joining == nil {
		return
	}
	if generation, noted := m.joining[change.Name]; change.Kind() != catalog.Confirmed || noted && generation == 0 {
		m.joining[change.Name] = 0
		return
	}
	m.joining[change.Name] = change.Generation
}

// mayLackNames reports whether names of the block may be missing from the catalog: they may have been left
// out or refused before it came.
func (m *publishingBlock) mayLackNames(s *catalog.Summary) bool {
	return s.Omits && !strings.Contains(s.Covers, m.admissionKey)
}

// setOwnerStatus passes the state of the owner on to the block.
func (m *publishingBlock) setOwnerStatus(o *mirroredOwner) {
	s := &o.status
	var lost time.Time
	if s.State != catalog.Synced {
		lost = s.Lost
	}
	m.block.builder.SetStatus(m.index, zone.Status{
		Live: s.Live, Expires: s.Expires, Soonest: s.Soonest, Known: s.Known && !m.mayLackNames(s), Lost: lost, Grace: o.grace,
	})
}

// publishChanges carries the changes of a catalog into the zones. It returns when queries
// see them. The mirror calls it on the goroutine that received the changes, so
// services cost their owner's time until they are compiled.
//
// Of a block that joins it carries the changes since joinBlock has looked. One that is withdrawn
// meanwhile publishes nothing any more.
func (o *mirroredOwner) publishChanges(changes consumer.Changes) {
	members := *o.members.Load()
	offers := o.prepareServices(members, changes.Services)
	o.agent.changeZones(func() {
		o.status = changes.Status.Summary
		for i, m := range members {
			for n := range changes.Services {
				change := &changes.Services[n]
				m.noteChange(change)
				switch change.Kind() {
				case catalog.Gone:
					m.block.builder.Remove(m.index, change.Was)
				case catalog.Confirmed:
					m.block.builder.Confirm(m.index, change.Packed, change.Generation)
				case catalog.Offered:
					m.block.builder.Put(offers[n][i], change.Was, change.Generation, change.Updated)
				}
			}
			m.setOwnerStatus(o)
		}
	})
	o.log.NotePublished(changes.Services, o.agent.now())
}

// joinTogether is how many services come into the zone of a block that joins at a time: other
// owners have their turn in between.
const joinTogether = 512

// joinBlock makes a block publish the owner: it gets the whole catalog, and all changes from there on.
// The services are compiled when nothing is locked that the stream needs, as that pauses.
func (o *mirroredOwner) joinBlock(b *Block, index int) {
	m := &publishingBlock{block: b, index: index, admissionKey: b.config.admissionKey(index), joining: make(map[string]uint64)}
	type held struct {
		packed.Service
		catalog.LastAnnouncement
	}
	var all []held
	o.mirror.View(func(services iter.Seq2[packed.Service, catalog.LastAnnouncement], s catalog.Summary) {
		all = make([]held, 0, s.Services)
		for service, announced := range services {
			all = append(all, held{service, announced})
		}
		o.agent.changeZones(func() {
			o.status = s
			o.setMembers(append(slices.Clone(*o.members.Load()), m))
			m.setOwnerStatus(o)
		})
	})
	var unpacker packed.Unpacker
	pause := o.agent.config.Pause()
	for some := range slices.Chunk(all, joinTogether) {
		began := time.Now()
		offers := make([]zone.PreparedOffer, len(some))
		for i, h := range some {
			offers[i] = b.builder.Prepare(index, h.Service, unpacker.Unpack(h.Service))
		}
		o.agent.changeZones(func() {
			for i, h := range some {
				generation, changed := m.joining[h.Name()]
				if changed && generation == 0 {
					continue
				}
				b.builder.Put(offers[i], packed.Service{}, max(generation, h.Generation), h.Updated)
			}
		})
		pause(time.Since(began))
	}
	o.agent.changeZones(func() { m.joining = nil })
}

// withdrawBlocks makes blocks no longer publish the owner.
func (o *mirroredOwner) withdrawBlocks(gone func(*Block) bool) {
	o.agent.changeZones(func() {
		o.setMembers(slices.DeleteFunc(slices.Clone(*o.members.Load()), func(m *publishingBlock) bool { return gone(m.block) }))
		o.showConflicts()
	})
}

// showConflicts shows in the status what the zones cannot publish of the owner: by
// kind, the most in any block.
func (o *mirroredOwner) showConflicts() {
	var most map[zone.Fault]int
	for _, m := range *o.members.Load() {
		for kind, n := range m.block.builder.Faults(m.index) {
			if n > most[kind] {
				if most == nil {
					most = make(map[zone.Fault]int)
				}
				most[kind] = n
			}
		}
	}
	if !maps.Equal(most, *o.conflicts.Load()) {
		o.conflicts.Store(&most)
	}
}

func (o *mirroredOwner) setMembers(members []*publishingBlock) { o.members.Store(&members) }

// admissionKey returns a word for what decides which services of the owner at an index are imported
// and admitted: two blocks for which it is equal publish the same ones.
func (c *BlockConfig) admissionKey(index int) string {
	own := &c.Zone.Owners[index]
	var taken []federation.FQDN // zones of others inside of its own
	for i := range c.Zone.Owners {
		for _, origin := range c.Zone.Owners[i].Origins {
			if !slices.Contains(own.Origins, origin) && slices.ContainsFunc(own.Origins, origin.Within) {
				taken = append(taken, origin)
			}
		}
	}
	sum := sha256.Sum256(fmt.Append(nil, own.Import, own.Origins, own.Renames, taken))
	return hex.EncodeToString(sum[:8])
}
