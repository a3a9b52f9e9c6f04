// Package agent is where the parts meet and where goroutines live: consumers
// feed catalogs, catalogs feed zones, and one writer does all of it.
//
// An [Agent] lives as long as the process. Server blocks attach to it with the
// owners they name and get a [Block], from whose Zone they answer. An owner
// that several blocks name is one consumer and one catalog. It goes on for as
// long as any block names it, so a reload, which attaches the new blocks before
// it detaches the old ones, keeps streams and catalogs.
//
// The writer is everybody's, so nothing is done there that takes long for one owner:
// large services are compiled before they come to it, and files are read and
// written beside it, by a goroutine that nobody waits for without an end.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/loglimit"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// Observer is told what happens, for metrics. Its methods are called from
// several goroutines, must not block, and must not call the Agent.
type Observer interface {
	// Responded counts a response of an owner by its operation.
	Responded(owner string, op federation.Operation)
	// Refused counts a response that was answered with a NACK.
	Refused(owner string, reason federation.Reason)
	// Ended counts a session or an attempt by the gRPC code it ended with.
	Ended(owner, code string)
	// Visible is the time from the receipt of an update to the publication
	// of the zone that holds it.
	Visible(d time.Duration)
	// PersistFailed counts a catalog that could not be saved or restored.
	PersistFailed(owner string)
	// Forgotten tells that the owner has left the configuration.
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

	// Clock returns the wall-clock, without a monotonic reading, and a clock that
	// is never set, from any moment on; default: those of the machine.
	Clock func() (wall time.Time, ran time.Duration)

	// Store keeps catalogs; default: files, by package snapshot.
	Store Store
}

// grace is how long answers wait for a new owner, and readiness for all of them
// after the start of the process.
const grace = 30 * time.Second

// Agent holds all owners and blocks of a process.
type Agent struct {
	// Read-only after New.
	config  Config
	ops     chan op // to the writer
	readyAt time.Time

	// Atomic.
	ready atomic.Bool // once true, always true

	shown atomic.Pointer[[]*owner] // those of owners, for Status and Ready, which wait for nobody

	// Guarded by lifecycle, which makes Attach and Detach, that start and
	// stop goroutines, one at a time. It is not held while a disk is waited for.
	lifecycle sync.Mutex
	owners    map[string]*owner // by OwnerConfig.key
	blocks    []*Block          // in the order of attachment
	saving    []*keeper         // that write for the last time
	stop      func()            // ends the writer and waits for it; nil when it does not run

	// Owned by the writer.
	looked   reading // of the clocks, the last one
	active   []*owner
	attached []*Block
	received []time.Time // of the updates that are not published yet
	answers  []answer    // that leave once everything is published
}

// op is work for the writer.
type op struct {
	run  func(now time.Time) error
	done chan<- error // has room for the result; gets it after the zones that show it
}

// answer is the result of an op.
type answer struct {
	done chan<- error
	err  error
}

// New returns an agent without blocks. It runs nothing yet.
func New(config Config) *Agent {
	config.Logger = loglimit.Logger(config.Logger)
	if config.Follow == nil {
		config.Follow = func(ctx context.Context, source *mtls.Source) error { return source.Run(ctx) }
	}
	if config.Clock == nil {
		config.Clock = systemClock()
	}
	if config.Store == nil {
		config.Store = files{}
	}
	a := &Agent{
		config: config, owners: make(map[string]*owner), ops: make(chan op), readyAt: time.Now().Add(grace),
	}
	a.show()
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

// OwnerError says why one of the owners of a block cannot be had.
type OwnerError struct {
	Index int // in BlockConfig.Owners
	ID    string
	Err   error
}

// Error returns the owner and the reason.
func (e *OwnerError) Error() string { return fmt.Sprintf("owner %s: %v", e.ID, e.Err) }

// Unwrap returns the reason.
func (e *OwnerError) Unwrap() error { return e.Err }

// Attach starts what the block needs and is not running yet, and returns the
// block with a zone that holds what is known at this moment. It does not wait
// for an owner. It fails with an *OwnerError, and changes nothing, when the files
// of an owner cannot be used, when its catalog cannot be kept where Persist says,
// or when two blocks of one configuration want one owner differently.
//
// Where a block of an earlier configuration names an owner, the owner's
// settings stay what they are until that block is detached: a reload may still
// fail.
func (a *Agent) Attach(c BlockConfig) (*Block, error) {
	var found []found // before the lock: a disk may be slow
	for i := range c.Owners {
		f, err := a.find(&c.Owners[i])
		if err != nil {
			return nil, &OwnerError{Index: i, ID: c.Owners[i].ID(), Err: err}
		}
		found = append(found, f)
	}

	a.lifecycle.Lock()
	defer a.lifecycle.Unlock()
	b := a.newBlock(c)
	var claims []*claim
	for i := range c.Owners {
		cl, err := a.claim(b, &c.Owners[i], found[i], claims)
		if err != nil {
			return nil, &OwnerError{Index: i, ID: c.Owners[i].ID(), Err: err}
		}
		claims = append(claims, cl)
	}
	if a.stop == nil {
		a.start()
	}
	for _, cl := range claims {
		a.owners[cl.owner.key] = cl.owner
		cl.owner.claims = append(cl.owner.claims, cl)
		b.owners = append(b.owners, cl.owner)
	}
	a.blocks = append(a.blocks, b)
	a.show()
	ready := b.prepare()
	_ = a.do(func(now time.Time) error {
		a.attached = append(a.attached, b)
		for i, o := range b.owners {
			if !slices.Contains(a.active, o) {
				a.active = append(a.active, o)
			}
			o.join(b, i)
		}
		for i, o := range b.owners {
			o.configure(now)
			o.fill(member{block: b, index: i}, ready)
			o.tell()
		}
		b.publish(now)
		return nil
	})
	for _, o := range b.owners {
		o.settle()
	}
	return b, nil
}

// Detach takes a block back. Owners that no other block names are left: their
// streams have ended, their catalogs are saved and their records and metrics are
// gone when it returns. For a disk it waits no longer than a few seconds.
func (a *Agent) Detach(b *Block) { a.detachAll([]*Block{b}) }

// Retain detaches every block whose configuration is not one of those given. A
// configuration that failed to start leaves its blocks to this.
func (a *Agent) Retain(configurations []any) {
	a.lifecycle.Lock()
	blocks := slices.Clone(a.blocks)
	a.lifecycle.Unlock()
	a.detachAll(slices.DeleteFunc(blocks, func(b *Block) bool {
		return slices.Contains(configurations, b.config.Configuration)
	}))
}

func (a *Agent) detachAll(blocks []*Block) {
	var left []*owner
	a.lifecycle.Lock()
	for _, b := range blocks {
		left = append(left, a.detach(b)...)
	}
	saving := a.saving
	a.saving = nil
	a.lifecycle.Unlock()

	await(saving)

	a.lifecycle.Lock()
	defer a.lifecycle.Unlock()
	for _, o := range left {
		if !slices.ContainsFunc(*a.shown.Load(), func(other *owner) bool { return other.id == o.id }) {
			a.config.Observer.Forgotten(o.id) // now that nothing more is counted
		}
	}
}

// detach returns the owners that nobody names any more.
func (a *Agent) detach(b *Block) (left []*owner) {
	i := slices.Index(a.blocks, b)
	if i < 0 {
		return nil
	}
	a.blocks = slices.Delete(a.blocks, i, i+1)
	for _, o := range b.owners {
		o.claims = slices.DeleteFunc(o.claims, func(c *claim) bool { return c.block == b })
		if len(o.claims) == 0 {
			left = append(left, o)
			o.leave() // all at once: each may take a moment to end its stream
		}
	}
	for _, o := range left {
		o.halt()
		delete(a.owners, o.key)
	}
	a.show()
	_ = a.do(func(now time.Time) error {
		a.attached = slices.DeleteFunc(a.attached, func(other *Block) bool { return other == b })
		for _, o := range b.owners {
			o.withdraw(b)
			if len(o.members) > 0 {
				o.configure(now)
			}
		}
		a.active = slices.DeleteFunc(a.active, func(o *owner) bool { return len(o.members) == 0 })
		return nil
	})
	for _, o := range b.owners {
		if len(o.claims) > 0 {
			o.settle()
		}
	}
	close(b.detached)
	if len(a.blocks) == 0 {
		a.stop()
		a.stop = nil
	}
	return left
}

// show lets Status and Ready see the owners as they are now.
func (a *Agent) show() {
	owners := slices.Collect(maps.Values(a.owners))
	a.shown.Store(&owners)
}

// Status returns the state of every owner, sorted by ID, each ID once.
func (a *Agent) Status() []OwnerStatus {
	owners := *a.shown.Load()
	all := make([]OwnerStatus, 0, len(owners))
	for _, o := range owners {
		all = append(all, o.report())
	}
	slices.SortFunc(all, func(x, y OwnerStatus) int { return strings.Compare(x.ID, y.ID) })
	// A reload that changes owner_id has two of them for a moment.
	return slices.CompactFunc(all, func(x, y OwnerStatus) bool { return x.ID == y.ID })
}

// Ready tells whether the server may be sent queries: there are owners and each of
// them is known, or they had the time to be. Once true it stays so: a reload must
// not take a server out of service that has answered so far.
func (a *Agent) Ready() bool {
	if a.ready.Load() {
		return true
	}
	owners := *a.shown.Load()
	known := len(owners) > 0
	for _, o := range owners {
		known = known && o.status.Load().Known
	}
	if !known && time.Now().Before(a.readyAt) {
		return false
	}
	a.ready.Store(true)
	return true
}

// serials returns the serials that the origins have in the blocks so far.
func (a *Agent) serials(c zone.Config) map[string]uint32 {
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

// do runs f on the writer, and returns what f does once queries see it.
func (a *Agent) do(f func(now time.Time) error) error {
	done := make(chan error, 1)
	a.ops <- op{f, done}
	return <-done
}

// doUntil is do, but gives up, and returns false, when ctx ends before the writer
// takes f.
func (a *Agent) doUntil(ctx context.Context, f func(now time.Time) error) bool {
	done := make(chan error, 1)
	select {
	case a.ops <- op{f, done}:
		<-done
		return true
	case <-ctx.Done():
		return false
	}
}

// start starts the writer.
func (a *Agent) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { a.write(ctx) })
	a.stop = func() {
		cancel()
		wg.Wait()
	}
}

const (
	// maxBatch bounds the work between two publications, so that an owner
	// that floods does not hide the updates of others.
	maxBatch = 64

	// idle is how long the writer sleeps when nothing is due.
	idle = time.Hour
)

// write is the one writer: it applies what comes, the first at once and then what
// is already waiting. Then it publishes all of that, answers whoever waits for it,
// and announces it, in this order: an acknowledgement must find queries answered
// by what it acknowledges, and neither may wait for logs and metrics.
//
// It waits for nobody but for what comes to it, so Attach and Detach may wait for
// it with their lock held.
func (a *Agent) write(ctx context.Context) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case op := <-a.ops:
			a.apply(op)
		case <-timer.C:
		}
		// Before publish, which takes for silence what it does not know of.
		a.batch()
		wait := a.publish(a.now())
		a.answer()
		a.announce()
		timer.Reset(wait)
	}
}

func (a *Agent) apply(op op) {
	a.answers = append(a.answers, answer{op.done, op.run(a.now())})
}

// batch applies what is waiting.
func (a *Agent) batch() {
	for range maxBatch {
		select {
		case op := <-a.ops:
			a.apply(op)
		default:
			return
		}
	}
}

// publish carries what changed from the catalogs into the zones. It returns how
// long there is nothing to do by itself.
func (a *Agent) publish(now time.Time) time.Duration {
	wait := idle
	for _, o := range a.active {
		o.catalog.Advance(o.time(now))
		o.flush()
		wait = min(wait, o.watch(now))
		if at, waits := o.renew(o.time(now)); waits {
			wait = min(wait, at.Sub(o.time(now)))
		}
	}
	for _, b := range a.attached {
		b.publish(now)
		if due, ok := b.builder.Due(); ok {
			wait = min(wait, due.Sub(now))
		}
	}
	return max(wait, 0)
}

// answer lets go on whoever waits for what is published.
func (a *Agent) answer() {
	for _, ans := range a.answers {
		ans.done <- ans.err
	}
	a.answers = slices.Delete(a.answers, 0, len(a.answers))
}

// announce says what has happened: to status and readiness, logs and metrics.
func (a *Agent) announce() {
	for _, o := range a.active {
		o.announce()
	}
	for _, at := range a.received {
		a.config.Observer.Visible(time.Since(at))
	}
	a.received = a.received[:0]
}
