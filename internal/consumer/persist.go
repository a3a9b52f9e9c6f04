package consumer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
)

const (
	// saveInterval is the least time between two saves.
	saveInterval = 5 * time.Second

	// A catalog that does not change is saved again when a part of its
	// retention has passed, as the file says until when the owner was up: a
	// process that is killed cannot say it.
	saveShare       = 20
	maxSaveInterval = time.Hour

	// retryInterval is the time after which a save that has failed is tried again.
	retryInterval = time.Minute

	// progressInterval is the least time between two lines about a long load.
	progressInterval = 5 * time.Second
)

// snapshotKeeper keeps the catalog of a mirror in a file: it restores the catalog before the first
// stream, and writes it after changes and from time to time. Its one goroutine writes, and only
// while it holds the lock of the file. Others wake it by requestSave, and give it the last snapshot
// through last.
//
// Changes are not queued: each save is the whole catalog as it is then, at most every saveInterval.
// No lock of the mirror is held while the keeper waits for the disk, and whoever waits for the
// keeper does so for a bounded time, because a disk may hang for ever.
type snapshotKeeper struct {
	// Read-only after newSnapshotKeeper.
	mirror *Mirror
	file   string
	lock   *semaphore.Weighted
	held   bool // lock was free: the file is this keeper's from the beginning
	logger *slog.Logger
	wake   chan struct{}           // has room for one wake-up
	last   chan *snapshot.Snapshot // has room for what is saved last; nil: nothing
	done   chan struct{}           // closed when saveChanges has returned

	// Atomic.
	abandoned atomic.Bool           // nobody waits any more for the last save
	unsaved   atomic.Pointer[error] // why the last save has failed; nil: it has not
	waits     atomic.Int64          // since when the keeper waits for the disk, in nanoseconds; 0: it does not

	// Owned by whoever runs restoreCatalog or saveChanges, one after the other.
	failure string // the kind of failure that was logged last
}

// newSnapshotKeeper returns a keeper of a file, which the caller runs. Requests to save reach the
// keeper once m.keeper has it.
func (m *Mirror) newSnapshotKeeper(file string, lock *semaphore.Weighted) *snapshotKeeper {
	k := &snapshotKeeper{
		mirror: m, file: file, lock: lock, held: lock.TryAcquire(1),
		wake: make(chan struct{}, 1), last: make(chan *snapshot.Snapshot, 1), done: make(chan struct{}),
		logger: m.logger.With("file", file),
	}
	m.lastKeeper = k
	return k
}

// loadResult is the result of reading a file.
type loadResult struct {
	*snapshot.Snapshot

	err      error
	aside    string // the new name of a file that is damaged, or somebody else's
	asideErr error
}

// restoreCatalog restores the catalog from the file, and reports a file that it cannot use. Such a
// file is no reason not to start, because the owner will send its catalog again.
func (k *snapshotKeeper) restoreCatalog(ctx context.Context) {
	if k.mirror.Status().Known { // only the subscription is new, and the file may be an older one
		k.wake <- struct{}{}
		return
	}
	r := catalogRestoration{mirror: k.mirror}
	steps, left := make(chan func()), make(chan struct{})
	defer close(left)
	l, ok := callWithin(ctx, loadPatience, steps, func() loadResult {
		return k.readFile(steps, func(part *snapshot.Snapshot) bool {
			select {
			case steps <- func() { r.addPart(part) }:
				return true
			case <-left:
				return false
			}
		})
	})
	switch {
	case ctx.Err() != nil, errors.Is(l.err, fs.ErrNotExist):
		return
	case !k.held && errors.Is(l.err, snapshot.ErrForeign):
		return // it is of the mirror that writes it until it ends
	case !ok:
		l.err = errors.New("the disk does not answer, so the owner is asked for its whole catalog")
	case l.Snapshot != nil:
		r.addPart(l.Snapshot)
	}
	r.endRestore(l.err)
	if l.err != nil {
		k.reportFailure("catalog cannot be restored", l.err)
		if l.asideErr != nil {
			k.reportFailure("file cannot be renamed to keep it", l.asideErr)
		} else if l.aside != "" {
			k.logger.Warn("file is kept under another name, so that it can be looked at", "aside", l.aside)
		}
	}
	if !r.begun {
		return
	}
	wall, _ := k.mirror.config.Clock()
	k.logger.Info("catalog restored from its file", "services", r.services, "last_up", r.lastUp, "used", r.used, "age", wall.Sub(r.lastUp).Round(time.Second))
}

// readFile returns what is in the file, and sets the file aside when it is damaged or of another
// owner, because the next save would write over it. A file that another mirror still writes is left
// alone. Part gets the services. Reading goes on as long as part reports true, even when nobody
// waits any more.
func (k *snapshotKeeper) readFile(steps chan<- func(), part func(*snapshot.Snapshot) bool) loadResult {
	next := time.Now().Add(progressInterval)
	store := k.mirror.config.Store
	s, err := store.Load(k.file, snapshot.ReadOptions{
		Owner: k.mirror.config.Name,
		Part:  part,
		Progress: func(done, total int) {
			select {
			case steps <- func() {}:
			default:
			}
			if now := time.Now(); now.After(next) {
				next = now.Add(progressInterval)
				k.logger.Info("restoring the catalog", "restored", done, "services", total)
			}
		},
	})
	l := loadResult{Snapshot: s, err: err}
	for _, theirs := range []error{snapshot.ErrCorrupt, snapshot.ErrFormat, snapshot.ErrForeign, snapshot.ErrVersion, file.ErrTooLarge} {
		if k.held && errors.Is(err, theirs) {
			l.aside, l.asideErr = store.SetAside(k.file)
		}
	}
	return l
}

// catalogRestoration restores a catalog part by part, so that queries are answered from the
// services that are there already. A name that is missing may still come, and so is not denied. One
// goroutine uses it.
type catalogRestoration struct {
	mirror   *Mirror
	begun    bool
	used     bool // the catalog accepts the services
	small    bool // others want the processor
	partial  bool // the rules may admit more now than when the file was written
	services int  // that were restored so far
	lastUp   time.Time
}

// smallPart is how many services are restored at a time while others want the processor.
const smallPart = 256

// addPart restores a part of the services.
func (r *catalogRestoration) addPart(s *snapshot.Snapshot) {
	m := r.mirror
	for services := s.Services; !r.begun || len(services) > 0; {
		n := len(services)
		if r.small {
			n = min(n, smallPart)
		}
		began := time.Now()
		m.changeAndPublish(func(time.Time) {
			if !r.begun {
				r.begun, r.used, r.lastUp = true, m.beginRestore(s), s.LastUp
				if r.used {
					r.partial = m.catalog.RestoreOmitted(s.Admits)
				}
			}
			r.services += n
			if r.used {
				m.catalog.RestoreMore(services[:n])
			}
		})
		services = services[n:]
		r.small = m.config.Pause(time.Since(began))
	}
}

// endRestore ends the restoration. The catalog is known then, unless the file was damaged.
func (r *catalogRestoration) endRestore(damage error) {
	m := r.mirror
	m.changeAndPublish(func(time.Time) {
		if m.own.Damage, m.outdated = damage, true; r.used {
			m.catalog.EndRestore(damage == nil && !r.partial)
		}
	})
	m.announceStatus()
}

// beginRestore prepares the catalog for the services of a file, and reports whether it did. The
// caller holds m.mu.
func (m *Mirror) beginRestore(s *snapshot.Snapshot) bool {
	status := m.catalog.Summary()
	if !status.Known {
		m.own.Restored = s.LastUp
	}
	if status.Known || status.Generation > 0 {
		return false
	}
	for _, t := range []time.Time{s.LastUp, s.Saved} {
		m.clock.atLeast(t)
	}
	return m.catalog.BeginRestore(s.LastUp, m.currentTime())
}

// saveChanges saves the catalog after changes until ctx ends, and then once more the snapshot from
// last. It begins when no other keeper writes the file.
func (k *snapshotKeeper) saveChanges(ctx context.Context) {
	defer close(k.done)
	k.waits.Store(time.Now().UnixNano())
	if !k.held && !k.lock.TryAcquire(1) && k.lock.Acquire(ctx, 1) != nil { // a lock that is free is taken even if ctx has ended
		return // a reload has failed: the file stays the other mirror's
	}
	defer k.lock.Release(1)
	k.waits.Store(0)
	k.failure = "" // to restoreCatalog: a save that succeeds is no recovery from it
	for ctx.Err() == nil {
		wait := k.mirror.refreshInterval()
		if k.unsaved.Load() != nil {
			wait = min(wait, retryInterval)
		}
		refresh := time.NewTimer(wait)
		select {
		case <-k.wake:
			k.saveSnapshot(k.mirror.currentSnapshot())
			refresh.Reset(saveInterval)
			select {
			case <-refresh.C:
			case <-ctx.Done():
			}
		case <-refresh.C:
			k.saveSnapshot(k.mirror.currentSnapshot())
		case <-ctx.Done():
		}
		refresh.Stop()
	}
	last := <-k.last
	k.saveSnapshot(last) // nobody is told any more
}

// abandon reports that the disk of the keeper hangs, and that nobody waits for the last save any
// more.
func (k *snapshotKeeper) abandon() {
	k.abandoned.Store(true)
	k.mirror.config.Observer.FileFailed()
	k.logger.Error("catalog may not be saved, because the disk does not answer")
}

// refreshInterval returns the time after which a catalog is saved although it has not changed.
func (m *Mirror) refreshInterval() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	retention := m.catalog.Rules().Retention
	if retention <= 0 {
		return maxSaveInterval
	}
	return min(max(retention/saveShare, saveInterval), maxSaveInterval)
}

// requestSave wakes the keeper of the file, if there is one, and does not block.
func (m *Mirror) requestSave() {
	if k := m.keeper.Load(); k != nil {
		wake.Up(k.wake)
	}
}

// currentSnapshot returns the catalog as it is now, or nil when there is none that is worth
// keeping.
func (m *Mirror) currentSnapshot() *snapshot.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshotLocked(m.currentTime())
}

// snapshotLocked returns what currentSnapshot does. The caller holds m.mu.
func (m *Mirror) snapshotLocked(now time.Time) *snapshot.Snapshot {
	services, lastUp, ok := m.catalog.Snapshot(now)
	if !ok {
		return nil
	}
	s := &snapshot.Snapshot{Owner: m.config.Name, LastUp: lastUp, Saved: now, Services: services}
	if summary := m.catalog.Summary(); summary.Omits {
		s.Admits = summary.Covers
	}
	return s
}

// saveSnapshot writes a snapshot to the file, unless it is nil.
func (k *snapshotKeeper) saveSnapshot(s *snapshot.Snapshot) {
	if s == nil {
		return
	}
	k.waits.Store(time.Now().UnixNano())
	err := k.mirror.config.Store.Save(k.file, s)
	k.waits.Store(0)
	if err != nil {
		k.unsaved.Store(&err)
		k.reportFailure("catalog cannot be saved", err)
		return
	}
	k.unsaved.Store(nil)
	if k.failure != "" {
		k.failure = ""
		k.logger.Info("catalog is saved again")
	}
}

// saveError returns why the catalog cannot be saved, or nil. A disk that does not answer for
// retryInterval is such a reason, although the keeper goes on waiting for it.
func (k *snapshotKeeper) saveError() error {
	if since := k.waits.Load(); since > 0 && time.Since(time.Unix(0, since)) > retryInterval {
		return fmt.Errorf("save %s: no answer from the disk within %v", k.file, retryInterval)
	}
	if err := k.unsaved.Load(); err != nil {
		return *err
	}
	return nil
}

// reportFailure counts a failure, and logs it when it is of another kind than the one before. The
// texts are no measure for that, because they hold names of temporary files.
func (k *snapshotKeeper) reportFailure(failure string, err error) {
	if k.abandoned.Load() {
		return
	}
	k.mirror.config.Observer.FileFailed()
	kind := failure
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		kind += ": " + number.Error()
	}
	if kind != k.failure {
		k.failure = kind
		k.logger.Error(failure, "error", err)
	}
}
