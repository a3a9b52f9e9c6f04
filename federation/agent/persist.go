package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
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

// keeper keeps the catalog of an owner in a file.
type keeper struct {
	// Read-only after newKeeper.
	owner  *owner
	config OwnerConfig
	logger *slog.Logger
	wake   chan struct{} // has room for one wake-up

	// Owned by whoever runs load, run or save, one after the other.
	failure string // the last one that was logged
}

func newKeeper(o *owner, c OwnerConfig) *keeper {
	return &keeper{
		owner: o, config: c, wake: make(chan struct{}, 1),
		logger: o.agent.config.Logger.With("owner", o.id, "file", c.Persist),
	}
}

// load restores the catalog. What is wrong with the file is reported, and no
// reason not to start: the owner will send its catalog again.
func (k *keeper) load() {
	if k.owner.status.Load().Known {
		return // only the settings of the owner have changed
	}
	next := time.Now().Add(progressInterval)
	refused := 0
	s, err := snapshot.Load(k.config.Persist, snapshot.Options{
		Owner:  k.owner.key,
		Policy: wire.Policy{AllowAddresses: k.config.AllowAddresses},
		Refused: func(invalid *federation.InvalidError) {
			if refused++; refused == 1 {
				k.logger.Warn("catalog in the file has services that are refused now; this is the first", "reason", invalid)
			}
		},
		Progress: func(done, total int) {
			if now := time.Now(); now.After(next) {
				next = now.Add(progressInterval)
				k.logger.Info("restoring the catalog", "services", done, "of", total)
			}
		},
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		k.report("catalog cannot be restored", err)
		if errors.Is(err, snapshot.ErrFormat) || errors.Is(err, snapshot.ErrForeign) || errors.Is(err, snapshot.ErrNewer) {
			k.keepAside()
		}
		return
	}
	_ = k.owner.agent.do(func(now time.Time) error {
		restored := k.owner.catalog.Restore(s.Services, s.LastUp, now)
		k.logger.Info("catalog restored from its file", "services", len(s.Services), "last_up", s.LastUp, "used", restored)
		return nil
	})
}

// rejectedSuffix is what the name of a file gets that is not this owner's.
const rejectedSuffix = ".rejected"

// keepAside renames the file, which is somebody else's and which the next save
// would write over.
func (k *keeper) keepAside() {
	rejected := k.config.Persist + rejectedSuffix
	if err := os.Rename(k.config.Persist, rejected); err != nil {
		k.report("file cannot be kept aside", err)
		return
	}
	k.logger.Warn("file is kept under another name", "name", rejected)
}

// run saves the catalog after changes until ctx ends.
func (k *keeper) run(ctx context.Context) {
	refresh := time.NewTicker(k.refreshInterval())
	defer refresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-refresh.C:
		}
		k.save()
		pause := time.NewTimer(saveInterval)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
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

// save writes the catalog, if there is one that is worth keeping.
func (k *keeper) save() {
	s := snapshot.Snapshot{Owner: k.owner.key}
	ok := false
	_ = k.owner.agent.do(func(now time.Time) error {
		s.Services, s.LastUp, ok = k.owner.catalog.Snapshot(now)
		return nil
	})
	if !ok {
		return
	}
	if err := snapshot.Save(k.config.Persist, &s); err != nil {
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
	k.owner.agent.config.Observer.PersistFailed(k.owner.id)
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		failure += ": " + number.Error()
	}
	if failure != k.failure {
		k.failure = failure
		k.logger.Error(failure, "error", err)
	}
}
