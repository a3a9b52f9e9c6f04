// Package agent turns mirrors into zones: it runs one mirror for each owner, and
// applies the changes of that mirror to the zones of all server blocks that publish the
// owner.
//
// An [Agent] lives as long as the process. Server blocks attach to it with the
// owners that they name, and get a [Block] from whose Zone they answer. An owner
// that several blocks name is one mirror, with one stream and one catalog. It runs
// for as long as any block names it, so a reload, which attaches the new blocks
// before it detaches the old ones, keeps streams and catalogs.
//
// Changes to zones are made one after the other, by the goroutine that received them. All owners
// wait for each other there, so nothing that takes long is done at that point: services are
// judged and compiled before.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Observer gets reports of what happens, for metrics. Its methods are called from several
// goroutines, must not block, and must not call the Agent.
type Observer interface {
	// Responded counts a response of an owner by its operation.
	Responded(owner string, op wire.Operation)
	// Refused counts a response that was answered with a NACK.
	Refused(owner string, reason federation.Reason)
	// Ended counts a session or an attempt by the gRPC code it ended with.
	Ended(owner, code string)
	// Visible reports how long it took from the receipt of an update until queries
	// were answered by it.
	Visible(d time.Duration)
	// PersistFailed counts a catalog that could not be saved or restored.
	PersistFailed(owner string)
	// Forgotten reports that the configuration no longer has the owner.
	Forgotten(owner string)
}

// Config is what an Agent needs.
type Config struct {
	Logger   *slog.Logger
	Observer Observer

	// Dial opens a connection to an address of an owner; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Follow keeps the certificates of an owner up to date until ctx ends;
	// default: (*mtls.Source).Run.
	Follow func(ctx context.Context, source *mtls.Source) error

	// Pause returns a function for one import, or for other long work. The work calls that function
	// now and then with how long it has worked: see Block.Work, which is the default.
	Pause func() func(worked time.Duration) bool

	// Clock and Store are those of consumer.Config; default: those of the machine.
	Clock func() (wall time.Time, elapsed time.Duration)
	Store consumer.Store
}

// gather is how long changes of zones are collected before conflicts are logged, because a catalog
// comes bit by bit.
const gather = 5 * time.Second

// grace is how long answers wait for a new owner. After the start of the process, readiness waits
// for all owners for as long.
const grace = 30 * time.Second

// Agent holds all owners and blocks of a process. Attach and Detach add and remove them, one call
// at a time; mirrors change the zones, one change at a time. Owners and blocks are as many as the
// Corefile has. An agent does not queue changes: a mirror that has some waits for its turn, and its
// owner waits for the mirror.
type Agent struct {
	// Read-only after New.
	config  Config
	readyAt time.Time

	// Atomic.
	ready  atomic.Bool                      // once true, always true
	owners atomic.Pointer[[]*mirroredOwner] // sorted by ID; setOwners replaces the list, and nobody writes to it

	pace importPacer // of imports

	// Guarded by lifecycle. Attach and Detach, which start and stop goroutines, take it, and nobody else
	// does. It is held while blocks join, but not while the agent waits for a disk.
	lifecycle sync.Mutex
	fileLocks map[string]*semaphore.Weighted // of persist, by the file that its path leads to; also those of earlier configurations

	// Guarded by writing, the innermost of the locks: whoever holds it waits for nothing.
	writing sync.Mutex
	blocks  []*Block    // in the order of attachment; changed under lifecycle as well
	due     *time.Timer // for changes of zones that time makes; nil: there were none
	look    *time.Timer // for logConflicts; nil: no zone has changed since

	logging sync.Mutex // held by logConflicts
}

// New returns an agent without blocks, which runs nothing yet.
func New(config Config) *Agent {
	config.Logger = loglimit.NewLogger(config.Logger)
	if config.Store == nil {
		config.Store = consumer.Files()
	}
	a := &Agent{config: config, fileLocks: make(map[string]*semaphore.Weighted), readyAt: time.Now().Add(grace)}
	if config.Pause == nil {
		a.config.Pause = func() func(time.Duration) bool { return (&importWork{importPacer: &a.pace}).pauseAfter }
	}
	a.setOwners(nil)
	return a
}

// BlockConfig is one server block.
type BlockConfig struct {
	// Configuration is one value for all blocks that were read together. It
	// is only compared.
	Configuration any
	Owners        []OwnerConfig // in the order of the Corefile
	Zone          zone.Config   // its Owners belong to Owners, index by index
}

// AddOwner adds an owner, and what that owner may publish in the zones. It fills in ID, Retention
// and Admits of z from o.
func (c *BlockConfig) AddOwner(o OwnerConfig, z zone.Owner) {
	z.ID, z.Retention, z.Admits = o.Name, o.Rules.Retention, o.Policy.Admits
	c.Owners, c.Zone.Owners = append(c.Owners, o), append(c.Zone.Owners, z)
}

// OwnerError says why a block cannot have one of its owners.
type OwnerError struct {
	Index int // in BlockConfig.Owners
	ID    string
	Err   error
}

// Error returns the owner and the reason.
func (e *OwnerError) Error() string { return fmt.Sprintf("owner %s: %v", e.ID, e.Err) }

// Unwrap returns the reason.
func (e *OwnerError) Unwrap() error { return e.Err }

// Attach starts what the block needs and is not running yet, and returns the block with a zone of
// what is known at this moment. It waits neither for an owner nor for certificate files that cannot
// be used: such an owner is connected once its files can be used. Attach fails with an *OwnerError,
// and changes nothing, when the catalog of an owner cannot be kept in its file, or when two blocks
// of one configuration configure one owner differently.
//
// Where a block of an earlier configuration names an owner, the settings of that owner stay as they
// are until that block is detached, because a reload may still fail.
func (a *Agent) Attach(c BlockConfig) (*Block, error) {
	var found []ownerFiles // before the lock: a disk may be slow
	for i := range c.Owners {
		f, err := a.readOwnerFiles(&c.Owners[i])
		if err != nil {
			return nil, &OwnerError{Index: i, ID: c.Owners[i].Name, Err: err}
		}
		found = append(found, f)
	}

	a.lifecycle.Lock()
	defer a.lifecycle.Unlock()
	b := a.newBlock(c)
	var members []*publishingBlock
	for i := range c.Owners {
		m, err := a.newMember(b, i, found[i], members)
		if err != nil {
			return nil, &OwnerError{Index: i, ID: c.Owners[i].Name, Err: err}
		}
		members, b.owners = append(members, m), append(b.owners, m.owner)
	}
	a.setOwners(slices.Concat(*a.owners.Load(), b.owners))
	for _, m := range members {
		m.owner.joinBlock(m)
	}
	a.changeZones(func() { a.blocks = append(a.blocks, b) })
	for _, o := range b.owners {
		o.configureMirror()
	}
	return b, nil
}

// Detach removes blocks, and every owner that no other block names. When it returns, the streams of
// these owners have ended, their catalogs are saved, and their records and metrics are gone. The
// owners end at the same time, within a second, or within a few seconds where a disk is slow.
func (a *Agent) Detach(blocks ...*Block) { a.detachAll(blocks) }

// DetachReplaced detaches blocks that a reload has replaced. It logs the removed owners whose
// services were answered, because their removal may be a mistake.
func (a *Agent) DetachReplaced(blocks ...*Block) {
	for _, o := range a.detachAll(blocks) {
		if n := o.mirror.Status().Services; n > 0 {
			a.config.Logger.Warn("owner has left the configuration with a reload, and its records are gone", "owner", o.id, "services", n)
		}
	}
}

// RetainConfigurations detaches every block whose configuration is not retained. So it
// removes the blocks of a configuration that failed to start.
func (a *Agent) RetainConfigurations(retains func(configuration any) bool) {
	a.lifecycle.Lock()
	blocks := slices.Clone(a.blocks)
	a.lifecycle.Unlock()
	a.detachAll(slices.DeleteFunc(blocks, func(b *Block) bool { return retains(b.config.Configuration) }))
}

// detachAll detaches blocks, waits for the mirrors of the owners that no block names any more, and
// returns these owners.
func (a *Agent) detachAll(blocks []*Block) (left []*mirroredOwner) {
	a.lifecycle.Lock()
	left = a.removeBlocks(blocks)
	a.lifecycle.Unlock()

	for _, o := range left {
		<-o.done
	}

	a.lifecycle.Lock()
	defer a.lifecycle.Unlock()
	for _, o := range left {
		if a.findOwner(o.id) == nil {
			a.config.Observer.Forgotten(o.id) // now that nothing more is counted
		}
	}
	return left
}

// removeBlocks removes blocks and returns the owners that no block names any more, whose mirrors
// are about to end. An owner of several of the blocks keeps in its file what each of them
// publishes.
func (a *Agent) removeBlocks(blocks []*Block) (left []*mirroredOwner) {
	blocks = slices.DeleteFunc(slices.Clone(blocks), func(b *Block) bool { return !slices.Contains(a.blocks, b) })
	gone := func(b *Block) bool { return slices.Contains(blocks, b) }
	var stay []*mirroredOwner
	for _, o := range *a.owners.Load() {
		switch withdrawn, others := o.withdrawBlocks(gone); {
		case !withdrawn:
		case others:
			stay = append(stay, o)
		default:
			left = append(left, o)
			o.cancel()
		}
	}
	a.setOwners(slices.DeleteFunc(slices.Clone(*a.owners.Load()), func(o *mirroredOwner) bool { return slices.Contains(left, o) }))
	a.changeZones(func() { a.blocks = slices.DeleteFunc(a.blocks, gone) })
	for _, o := range stay {
		o.configureMirror()
	}
	for _, b := range blocks {
		close(b.detached)
	}
	return left
}

// setOwners replaces the owners, each of which may be in the list several times.
func (a *Agent) setOwners(owners []*mirroredOwner) {
	slices.SortFunc(owners, func(x, y *mirroredOwner) int { return strings.Compare(x.id, y.id) })
	owners = slices.Compact(owners)
	a.owners.Store(&owners)
}

// findOwner returns the owner with an ID, or nil.
func (a *Agent) findOwner(id string) *mirroredOwner {
	for _, o := range *a.owners.Load() {
		if o.id == id {
			return o
		}
	}
	return nil
}

// Ready reports whether the server may be sent queries: there are owners, and each of them is known
// or has had its time to become known. Once true, Ready stays true, because a reload must not take
// a server out of service that has answered so far.
func (a *Agent) Ready() bool {
	if a.ready.Load() {
		return true
	}
	owners := *a.owners.Load()
	known := len(owners) > 0
	for _, o := range owners {
		known = known && o.mirror.Status().Known
	}
	if !known && time.Now().Before(a.readyAt) {
		return false
	}
	a.ready.Store(true)
	return true
}

// originSerials returns the serials that the origins of a zone have in the blocks so far, by
// origin.
func (a *Agent) originSerials(c zone.Config) map[string]uint32 {
	serials := make(map[string]uint32)
	for _, b := range a.blocks {
		for i := range c.Owners {
			for _, origin := range c.Owners[i].Origins {
				if soa := b.Zone().SOA(origin.String()); soa != nil {
					serials[origin.String()] = soa.Serial
				}
			}
		}
	}
	return serials
}

// now returns the wall clock.
func (a *Agent) now() time.Time {
	if a.config.Clock == nil {
		return time.Now()
	}
	wall, _ := a.config.Clock()
	return wall
}

// changeZones runs f, which changes zones, and returns when queries see the change. It is the only
// writer of zones, and one f runs at a time.
func (a *Agent) changeZones(f func()) {
	a.writing.Lock()
	defer a.writing.Unlock()
	f()
	a.publishZones(a.now())
}

// publishZones makes visible what has changed in zones, and sets the timers for what is due next.
func (a *Agent) publishZones(now time.Time) {
	var due time.Time
	changed := false
	for _, b := range a.blocks {
		changed = b.publishZone(now) || changed
		next, _ := b.builder.Due()
		due = moment.Earlier(due, next)
	}
	a.noteRivals()
	if a.due != nil {
		a.due.Stop()
	}
	if !due.IsZero() {
		a.due = time.AfterFunc(due.Sub(now), func() { a.changeZones(func() {}) })
	}
	if changed && a.look == nil {
		a.look = time.AfterFunc(gather, a.logConflicts)
	}
}

// noteRivals tells the zones of one configuration about those of another, which have the same
// origins during a reload.
func (a *Agent) noteRivals() {
	differ := func(b *Block) bool { return b.config.Configuration != a.blocks[0].config.Configuration }
	if !slices.ContainsFunc(a.blocks, differ) {
		return // as mostly
	}
	for _, b := range a.blocks {
		for _, other := range a.blocks {
			if b.config.Configuration != other.config.Configuration {
				b.builder.NoteRival(other.Zone())
			}
		}
	}
}

// logConflicts logs, for each owner, that others have some of its names.
func (a *Agent) logConflicts() {
	a.writing.Lock()
	a.look = nil
	a.writing.Unlock()
	a.logging.Lock()
	defer a.logging.Unlock()
	for _, o := range *a.owners.Load() {
		o.logConflicts()
	}
}

// logConflicts logs that other owners have names of the owner, with the first of these names, or
// that they have none any more. It logs only a change of that.
func (o *mirroredOwner) logConflicts() {
	logger, has := o.agent.config.Logger.With("owner", o.id), false
	count := o.countFaults()[zone.FaultFQDN]
	if count == o.conflicts {
		return // as mostly
	}
	o.conflicts = count
	for z, m := range o.publishedZones() {
		if has || count == 0 {
			break
		}
		var c zone.NameConflict
		if c, has = z.FirstConflict(m.index, o.agent.now()); has && !o.conflicting {
			logger.Warn("names of the owner are not answered from its services, because other owners have them",
				"services", count, "fqdn", c.FQDN, "service", safetext.Printable(c.Service), "by", m.block.owners[c.By].id)
		}
	}
	if o.conflicting && !has {
		logger.Info("the owner has all of its names again")
	}
	o.conflicting = has
}
