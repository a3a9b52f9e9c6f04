package ownerfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
)

const (
	// pollInterval is how often a file is looked at without having been told to:
	// notifications do not reach over network file systems, and do not tell of a
	// change behind a symbolic link.
	pollInterval = 10 * time.Second

	// settleDelay is how long a file must be left alone after a notification. A
	// writer that does not rename causes many of them, and half of what it writes
	// may look like a whole.
	settleDelay = 100 * time.Millisecond
)

// File is a file that an owner follows.
type File struct {
	// read-only after it was opened
	path   string
	what   string // what it is, as logged
	keeps  string // what happens while it is broken, as logged
	limit  int64  // of its size, in bytes
	apply  func(ctx context.Context, data []byte) error
	logger *slog.Logger

	trouble atomic.Pointer[string] // why the content is not used, as reported; nil when it is

	// Owned by who opened it, then by Run.

	info   os.FileInfo // of the file when it was last read, nil after a failure
	digest [sha256.Size]byte
}

// Err returns why what the file holds now is not used, or nil.
func (f *File) Err() error {
	if trouble := f.trouble.Load(); trouble != nil {
		return errors.New(*trouble)
	}
	return nil
}

// Run follows the file until ctx ends, and returns nil then. A file that is
// broken is reported once and changes nothing. It can be edited in place,
// replaced, or be a symbolic link that is set to another file, as in a volume of
// Kubernetes. What is no regular file, such as a FIFO, or is too large is broken as
// well, and is used when it is one again.
//
// A file that is written in place is read when it has been left alone for a
// tenth of a second, or has not been for ten seconds. A writer that takes longer
// over it should write another file and rename it: half of a list may be a shorter
// list.
func (f *File) Run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	var failures <-chan error
	if watcher, err := watchDirectory(f.path); err != nil {
		f.logger.Warn("no notifications of changes; the "+f.what+" is polled",
			"file", f.path, "interval", pollInterval, "error", err)
	} else {
		defer watcher.Close()
		events, failures = watcher.Events, watcher.Errors
	}
	f.follow(ctx, events, failures)
	return nil
}

// watchDirectory watches the directory of the file, not the file: a rename over
// it would end the watch.
func watchDirectory(path string) (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	return watcher, nil
}

func (f *File) follow(ctx context.Context, events <-chan fsnotify.Event, failures <-chan error) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	settled := time.NewTimer(0) // the file may have changed since it was opened
	defer settled.Stop()
	overdue := false // whether it has not settled since the last poll
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			// The link that Kubernetes swaps in a volume is called ..data.
			if name := filepath.Base(event.Name); name == filepath.Base(f.path) || name == "..data" {
				settled.Reset(settleDelay)
			}
		case err := <-failures:
			f.logger.Debug("notifications of changes were lost", "error", err)
			settled.Reset(settleDelay)
		case <-settled.C:
			overdue = false
			f.reload(ctx)
		case <-poll.C:
			switch {
			case !f.changed():
			case overdue: // who never leaves it alone is taken at their word
				f.reload(ctx)
			default:
				overdue = true
				settled.Reset(settleDelay)
			}
		}
	}
}

// reload loads the file if it has changed, and reports what is wrong once.
func (f *File) reload(ctx context.Context) {
	if !f.changed() {
		return
	}
	err, before := f.load(ctx), f.trouble.Load()
	switch {
	case ctx.Err() != nil: // which is no trouble of the file
	case err == nil && before != nil:
		f.trouble.Store(nil)
		f.logger.Info(f.what+" is in order again", "file", f.path)
	case err != nil && (before == nil || err.Error() != *before):
		trouble := err.Error()
		f.trouble.Store(&trouble)
		f.logger.Error(f.what+" is not used, "+f.keeps+": mend the file", "error", err)
	}
}

// changed reports whether the file may be another than the one that was read.
func (f *File) changed() bool {
	info, err := os.Stat(f.path)
	return err != nil || f.info == nil || !os.SameFile(info, f.info) ||
		!info.ModTime().Equal(f.info.ModTime()) || info.Size() != f.info.Size()
}

// load reads the file and applies it.
func (f *File) load(ctx context.Context) error {
	data, info, err := regularfile.Read(f.path, f.limit)
	if err != nil {
		f.info = nil
		return fmt.Errorf("%s: %w", f.what, err)
	}
	f.info = info
	digest := sha256.Sum256(data)
	if digest == f.digest {
		return nil
	}
	if err := f.apply(ctx, data); err != nil {
		return fmt.Errorf("%s %s: %w", f.what, f.path, err)
	}
	f.digest = digest
	return nil
}
