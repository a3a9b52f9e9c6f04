package ownerfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

const (
	// pollInterval is how often the catalog file is looked at without having been
	// told to: notifications do not reach over network file systems, and do not
	// tell of a change behind a symbolic link.
	pollInterval = 10 * time.Second

	// settleDelay is how long a file must be left alone after a notification. A
	// writer that does not rename causes many of them.
	settleDelay = 100 * time.Millisecond
)

// FileConfig is what a FileSource needs. Every field is required but Policy.
type FileConfig struct {
	Path     string
	Registry *owner.Registry
	Policy   wire.Policy // of the consumers, as far as the owner knows it
	Logger   *slog.Logger
}

// FileSource keeps an [owner.Registry] as a catalog file says.
type FileSource struct {
	config FileConfig // read-only after OpenFile

	// Owned by OpenFile, then by Run.

	info     os.FileInfo // of the file when it was last read, nil after a failure
	digest   [sha256.Size]byte
	broken   string // the error that was reported last, "" when the file is fine
	doubtful string // the warnings that were reported last
}

// OpenFile reads the catalog file and sets the registry to it. It fails when
// the file cannot be read or has a problem, and names all it can of it.
func OpenFile(c FileConfig) (*FileSource, error) {
	f := &FileSource{config: c}
	if err := f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// Run follows the file until ctx ends, and returns nil then. A changed file is
// applied as a difference. One that is broken is reported once and changes
// nothing; it can be edited in place, replaced, or be a symbolic link that is
// set to another file, as in a volume of Kubernetes.
func (f *FileSource) Run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	var failures <-chan error
	if watcher, err := watchDirectory(f.config.Path); err != nil {
		f.config.Logger.Warn("no notifications of changes; the catalog file is polled",
			"file", f.config.Path, "interval", pollInterval, "error", err)
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

func (f *FileSource) follow(ctx context.Context, events <-chan fsnotify.Event, failures <-chan error) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	settled := time.NewTimer(0) // the file may have changed since it was opened
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			// The link that Kubernetes swaps in a volume is called ..data.
			if name := filepath.Base(event.Name); name == filepath.Base(f.config.Path) || name == "..data" {
				settled.Reset(settleDelay)
			}
		case err := <-failures:
			f.config.Logger.Debug("notifications of changes were lost", "error", err)
			settled.Reset(settleDelay)
		case <-settled.C:
			f.reload()
		case <-poll.C:
			f.reload()
		}
	}
}

// reload loads the file if it has changed, and reports what is wrong once.
func (f *FileSource) reload() {
	if info, err := os.Stat(f.config.Path); err == nil && f.info != nil && os.SameFile(info, f.info) &&
		info.ModTime().Equal(f.info.ModTime()) && info.Size() == f.info.Size() {
		return
	}
	err := f.load()
	switch {
	case err == nil && f.broken != "":
		f.broken = ""
		f.config.Logger.Info("catalog file is in order again", "file", f.config.Path)
	case err != nil && err.Error() != f.broken:
		f.broken = err.Error()
		f.config.Logger.Error("catalog file is not used, the catalog stays as it was: mend the file", "error", err)
	}
}

// load reads the file and applies it.
func (f *FileSource) load() error {
	data, info, err := readFile(f.config.Path)
	if err != nil {
		f.info = nil
		return fmt.Errorf("catalog file: %w", err)
	}
	f.info = info
	digest := sha256.Sum256(data)
	if digest == f.digest {
		return nil
	}
	catalog := ParseCatalog(data, f.config.Policy)
	if err := catalog.Err(); err != nil {
		return fmt.Errorf("catalog file %s: %w", f.config.Path, err)
	}
	f.digest = digest
	d := f.config.Registry.Set(catalog.Services)
	f.config.Logger.Info("catalog applied", "file", f.config.Path, "services", len(catalog.Services),
		"added", d.Added, "changed", d.Changed, "removed", d.Removed)
	if doubtful := summary(catalog.Warnings); doubtful != f.doubtful {
		f.doubtful = doubtful
		if doubtful != "" {
			f.config.Logger.Warn("catalog has what is probably not meant", "file", f.config.Path, "warnings", doubtful)
		}
	}
	return nil
}

// readFile returns the content of a file, and what the file was before it was
// read: one that changes meanwhile will be seen to be another.
func readFile(path string) ([]byte, os.FileInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, nil, err
	}
	return data, info, nil
}
