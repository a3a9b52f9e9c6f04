package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// publishingBlock is a block that publishes an owner, and says how it wants to have the owner. While
// the block joins, the changes that come meanwhile are in joining, which the writer of zones fills and
// joinBlock empties. It has at most one entry for each name that changes during that time.
type publishingBlock struct {
	ownerFiles

	block        *Block
	index        int // of the owner in the block
	owner        *mirroredOwner
	subscription consumer.Subscription // which a mirror accepts
	admissionKey string                // a word for what the block admits: see BlockConfig.admissionKey

	// joining is nil once the block has the whole catalog. Until then it has, by name, the
	// generation of a service that was confirmed since joinBlock looked, and 0 for a service that
	// has another version since or is gone. Agent.writing guards it.
	joining map[string]uint64
}

// config returns the configuration of the owner in the block.
func (m *publishingBlock) config() *OwnerConfig { return &m.block.config.Owners[m.index] }

// noteChange records a change that happens while the block joins.
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

// mayLackNames reports whether names of the block may be missing from the catalog, because services
// were left out or refused before the block came.
func (m *publishingBlock) mayLackNames(s *catalog.Summary) bool {
	return s.Omits && !strings.Contains(s.Covers, m.admissionKey)
}

// setOwnerStatus passes the state of the owner to the zone of the block.
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

// publishChanges applies the changes of a catalog to the zones, and returns when queries see them.
// The mirror calls it on the goroutine that received the changes, so that compiling services takes
// time only from their owner.
//
// A block that joins gets the changes since joinBlock has looked. A block that is withdrawn
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

// joinTogether is how many services are put at a time into the zone of a block that joins. Other
// owners have their turn in between.
const joinTogether = 512

// joinBlock makes a block publish the owner: the block gets the whole catalog, and all changes from
// there on. Compiling pauses for queries, and so happens while no lock is held that the stream
// needs.
func (o *mirroredOwner) joinBlock(m *publishingBlock) {
	m.joining = make(map[string]uint64)
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
			members := append(slices.Clone(*o.members.Load()), m)
			o.members.Store(&members)
			m.setOwnerStatus(o)
		})
	})
	var unpacker packed.Unpacker
	pause := o.agent.config.Pause()
	for some := range slices.Chunk(all, joinTogether) {
		began := time.Now()
		offers := make([]zone.PreparedOffer, len(some))
		for i, h := range some {
			offers[i] = m.block.builder.Prepare(m.index, h.Service, unpacker.Unpack(h.Service))
		}
		o.agent.changeZones(func() {
			for i, h := range some {
				generation, changed := m.joining[h.Name()]
				if changed && generation == 0 {
					continue
				}
				m.block.builder.Put(offers[i], packed.Service{}, max(generation, h.Generation), h.Updated)
			}
		})
		pause(time.Since(began))
	}
	o.agent.changeZones(func() { m.joining = nil })
}

// withdrawBlocks makes blocks stop publishing the owner. It reports whether any of them did publish
// the owner, and whether others do.
func (o *mirroredOwner) withdrawBlocks(gone func(*Block) bool) (withdrawn, others bool) {
	before := *o.members.Load()
	after := slices.DeleteFunc(slices.Clone(before), func(m *publishingBlock) bool { return gone(m.block) })
	o.agent.changeZones(func() { o.members.Store(&after) })
	return len(after) < len(before), len(after) > 0
}

// publishedZones returns the newest zone of each block that publishes the owner. A block that is
// being attached has none yet.
func (o *mirroredOwner) publishedZones() iter.Seq2[*zone.Zone, *publishingBlock] {
	return func(yield func(*zone.Zone, *publishingBlock) bool) {
		for _, m := range *o.members.Load() {
			if z := m.block.Zone(); z != nil && !yield(z, m) {
				return
			}
		}
	}
}

// countFaults returns how much zones cannot publish of the owner: by kind, the highest count of any
// block.
func (o *mirroredOwner) countFaults() map[zone.Fault]int {
	most := make(map[zone.Fault]int)
	for z, m := range o.publishedZones() {
		for kind, n := range z.Faults(m.index) {
			most[kind] = max(most[kind], n)
		}
	}
	return most
}

// admissionKey returns a word for which services of the owner at an index are imported and
// admitted. Two blocks with the same word publish the same services, in another process as well.
func (c *BlockConfig) admissionKey(index int) string {
	own := &c.Zone.Owners[index]
	var taken []federation.FQDN // zones of other owners inside of the owner's zones
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
