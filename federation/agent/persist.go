package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
	"github.com/hamlet-federation/coredns-federation/federation/snapshot"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

const (
	// saveInterval is the least time between two saves.
	saveInterval = 5 * time.Second

	// A catalog that does not change is saved again when a part of its
	// retention has passed, as the file says until when the owner was up: a
	// process that is killed cannot say it.
	saveShare       = 20
	maxSaveInterval = time.Hour

	// progressInterval is the least time between two lines about a long load.
	progressInterval = 5 * time.Second
)

// keeper keeps the catalog of an owner in a file. Nobody holds a lock while it
// waits for the disk, and who waits for it does so for a bounded time.
type keeper struct {
	// Read-only after newKeeper.
	owner  *owner
	config OwnerConfig
	logger *slog.Logger
	before *keeper                 // the owner's last one, which may still be at the file; or nil
	wake   chan struct{}           // has room for one wake-up
	last   chan *snapshot.Snapshot // has room for what is saved last; nil: nothing
	done   chan struct{}           // closed when run has returned

	// Atomic.
	abandoned atomic.Bool // nobody cares any more for what comes of it

	// Owned by whoever runs load or run, one after the other.
	failure string // the last one that was logged
}

func newKeeper(o *owner, c OwnerConfig, before *keeper) *keeper {
	return &keeper{
		owner: o, config: c, before: before,
		wake: make(chan struct{}, 1), last: make(chan *snapshot.Snapshot, 1), done: make(chan struct{}),
		logger: o.agent.config.Logger.With("owner", o.id, "file", c.Persist),
	}
}

// loaded is what became of a file.
type loaded struct {
	*snapshot.Snapshot

	err      error
	aside    string // the new name of a file that is somebody else's
	asideErr error
}

// load restores the catalog. What is wrong with the file is reported, and no
// reason not to start: the owner will send its catalog again.
func (k *keeper) load(ctx context.Context) {
	if k.owner.status.Load().Known {
		return // only the settings of the owner have changed
	}
	progress := make(chan struct{}, 1)
	l, ok := within(ctx, loadPatience, progress, func() loaded { return k.read(progress) })
	switch {
	case ctx.Err() != nil:
		return
	case !ok:
		k.report("catalog cannot be restored", errors.New("the disk hangs; the owner is asked without it"))
		return
	case errors.Is(l.err, fs.ErrNotExist):
		return
	case l.err != nil:
		k.report("catalog cannot be restored", l.err)
		if l.asideErr != nil {
			k.report("file cannot be kept aside", l.asideErr)
		} else if l.aside != "" {
			k.logger.Warn("file is kept under another name", "name", l.aside)
		}
		return
	}
	ready := k.owner.prepare(slices.Values(l.Services))
	_ = k.owner.agent.do(func(now time.Time) error {
		k.owner.ready = ready
		restored := k.owner.restore(l.Snapshot, now)
		k.logger.Info("catalog restored from its file", "services", len(l.Services), "last_up", l.LastUp, "used", restored)
		return nil
	})
}

// read loads the file, and sets it aside when it is somebody else's: the next save
// would write over it. It may go on when nobody waits for it any more.
func (k *keeper) read(progress chan<- struct{}) loaded {
	next := time.Now().Add(progressInterval)
	refused := 0
	store := k.owner.agent.config.Store
	s, err := store.Load(k.config.Persist, snapshot.Options{
		Owner:  k.owner.key,
		Policy: wire.Policy{AllowAddresses: k.config.AllowAddresses},
		Refused: func(invalid *federation.InvalidError) {
			if refused++; refused == 1 {
				k.logger.Warn("catalog in the file has services that are refused now; this is the first", "reason", invalid)
			}
		},
		Progress: func(done, total int) {
			select {
			case progress <- struct{}{}:
			default:
			}
			if now := time.Now(); now.After(next) {
				next = now.Add(progressInterval)
				k.logger.Info("restoring the catalog", "services", done, "of", total)
			}
		},
	})
	l := loaded{Snapshot: s, err: err}
	for _, theirs := range []error{snapshot.ErrFormat, snapshot.ErrForeign, snapshot.ErrNewer, regularfile.ErrTooLarge} {
		if errors.Is(err, theirs) {
			l.aside, l.asideErr = store.SetAside(k.config.Persist)
		}
	}
	return l
}

// restore fills the catalog, which is the writer's, and tells whether it did.
func (o *owner) restore(s *snapshot.Snapshot, now time.Time) bool {
	if status := o.catalog.Status(); status.Known || status.State != catalog.Connecting {
		return false
	}
	for _, t := range []time.Time{s.LastUp, s.Saved} {
		o.since(t, now)
	}
	return o.catalog.Restore(s.Services, s.LastUp, o.time(now))
}

// run saves the catalog after changes until ctx ends, and then once more what end
// hands over.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	if k.before != nil {
		<-k.before.done // or its last save would replace ours
		k.before = nil
	}
	refresh := time.NewTicker(k.refreshInterval())
	defer refresh.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-k.wake:
		case <-refresh.C:
		}
		var s *snapshot.Snapshot
		if !k.owner.agent.doUntil(ctx, func(now time.Time) error { s = k.owner.snapshot(now); return nil }) {
			continue
		}
		k.save(s)
		pause := time.NewTimer(saveInterval)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
	k.save(<-k.last)
}

// end hands over what is saved last. The context of run must have ended.
func (k *keeper) end() {
	_ = k.owner.agent.do(func(now time.Time) error {
		k.last <- k.owner.snapshot(now)
		return nil
	})
}

// abandon leaves a keeper alone whose disk hangs.
func (k *keeper) abandon() {
	k.abandoned.Store(true)
	k.owner.agent.config.Observer.PersistFailed(k.owner.id)
	k.logger.Error("catalog may not be saved: the disk hangs")
}

func (k *keeper) refreshInterval() time.Duration {
	if k.config.Retention == 0 {
		return maxSaveInterval
	}
	return min(max(k.config.Retention/saveShare, saveInterval), maxSaveInterval)
}

// changed asks for a save. It does not block.
func (k *keeper) changed() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// snapshot returns the catalog, which is the writer's, or nil when there is none
// that is worth keeping.
func (o *owner) snapshot(now time.Time) *snapshot.Snapshot {
	services, lastUp, ok := o.catalog.Snapshot(o.time(now))
	if !ok {
		return nil
	}
	return &snapshot.Snapshot{Owner: o.key, LastUp: lastUp, Saved: o.time(now), Services: services}
}

// save writes the catalog, if there is one.
func (k *keeper) save(s *snapshot.Snapshot) {
	if s == nil {
		return
	}
	if err := k.owner.agent.config.Store.Save(k.config.Persist, s); err != nil {
		k.report("catalog cannot be saved", err)
		return
	}
	if k.failure != "" {
		k.failure = ""
		k.logger.Info("catalog is saved again")
	}
}

// report logs a failure when it is of another kind than the one before, and
// counts it. The texts are never the same: they hold names of temporary files.
func (k *keeper) report(failure string, err error) {
	if k.abandoned.Load() {
		return
	}
	k.owner.agent.config.Observer.PersistFailed(k.owner.id)
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		failure += ": " + number.Error()
	}
	if failure != k.failure {
		k.failure = failure
		k.logger.Error(failure, "error", err)
	}
}
