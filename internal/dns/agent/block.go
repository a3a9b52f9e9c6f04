package agent

import (
	"sync/atomic"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
)

// Block is the agent's side of one server block. It keeps the newest version of the block's zone,
// which only Agent.changeZones replaces and any number of queries read without a lock. Earlier
// versions live for as long as a query or a history of serials uses them.
type Block struct {
	// Read-only after Attach.
	agent    *Agent
	config   BlockConfig
	owners   []*mirroredOwner // in the order of the Corefile
	changed  chan struct{}    // has room for one wake-up
	detached chan struct{}    // closed by Detach

	// Atomic.
	zone atomic.Pointer[zone.Zone]

	// Guarded by Agent.writing.
	builder *zone.Builder
}

// newBlock returns a block that has no zone yet.
func (a *Agent) newBlock(c BlockConfig) *Block {
	return &Block{
		agent:    a,
		config:   c,
		changed:  make(chan struct{}, 1),
		detached: make(chan struct{}),
		builder:  zone.NewBuilder(c.Zone, a.originSerials(c.Zone)),
	}
}

// Zone returns the newest version of the zone, never nil once Attach has returned.
// Everything about one query must come from one version.
func (b *Block) Zone() *zone.Zone { return b.zone.Load() }

// Ask notes that a query has come, so that imports give way. It is called for each query and takes
// no time.
func (b *Block) Ask() { b.agent.pace.noteQuery() }

// Work returns a function for a goroutine that works long for the block. The goroutine calls it now
// and then with how long it has worked since; while queries come, the function pauses.
func (b *Block) Work() func(worked time.Duration) bool { return b.agent.config.Pause() }

// Changed returns a channel that receives a value after the zone has changed, one for any number of
// changes.
func (b *Block) Changed() <-chan struct{} { return b.changed }

// Detached returns a channel that is closed when the block is detached.
func (b *Block) Detached() <-chan struct{} { return b.detached }

// Ready reports what Agent.Ready does, which is about every owner of every block.
func (b *Block) Ready() bool { return b.agent.Ready() }

// publishZone makes the newest version of the zone visible, and reports whether it is a new one.
func (b *Block) publishZone(now time.Time) bool {
	z := b.builder.Publish(now)
	if z == b.zone.Load() {
		return false
	}
	b.zone.Store(z)
	wake.Up(b.changed)
	return true
}
