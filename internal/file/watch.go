package file

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// WatchConfig says which files to follow, and which functions to call. These are called one at a
// time, and nothing else happens while one of them runs.
type WatchConfig struct {
	Paths []string

	// Interval is the time between two polls. Directories are watched anew in
	// each, as one may have been replaced.
	Interval time.Duration

	// Reload is called once nobody has written to the files for Quiet, or after Patience, counted
	// from the first notification. Where both are the same, later notifications never delay it.
	Quiet, Patience time.Duration

	// Changed reports whether a file differs from the content that was read last. It is called
	// where no notification names one of the files: in each poll, and when something else has
	// changed in their directories. Nil stands for a function that always returns true.
	Changed func() bool

	// Reload reads the files. It is called when Run begins, too, as they may have
	// changed since the caller read them. ctx is that of Run.
	Reload func(ctx context.Context)

	// Logger gets a line when a directory cannot be watched, once for each error, and one when all of
	// them are watched again.
	Logger *slog.Logger

	// Events, if set, replace the notifications of the system, in tests: in a bubble of
	// testing/synctest, time stands still while a goroutine waits for the system.
	Events <-chan fsnotify.Event
}

// Watch calls back when one of its files may have changed. One Run follows the files at a time, as
// turn says, and the others wait to take over. It keeps no content and no list of changes: many
// notifications become one call of Reload. NewWatch makes one.
type Watch struct {
	config  WatchConfig   // read-only after New
	turn    chan struct{} // of capacity 1, full while one of the Runs follows the files
	trouble string        // the last error that was logged; owned by the Run whose turn it is
}

// NewWatch returns a Watch, which does nothing until it runs. Changed and Events may be left out.
func NewWatch(c WatchConfig) *Watch { return &Watch{config: c, turn: make(chan struct{}, 1)} }

// Run follows the files until ctx ends, and then returns nil. It may run several times at once: one
// Run follows, and when that ends another one takes over.
func (w *Watch) Run(ctx context.Context) error {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
		w.followFiles(ctx)
	case <-ctx.Done():
	}
	return nil
}

func (w *Watch) followFiles(ctx context.Context) {
	d := watchedDirectories{events: w.config.Events}
	defer d.closeWatcher()
	watch := func() {
		if w.config.Events == nil {
			w.logTrouble(d.watchPaths(w.config.Paths))
		}
	}
	watch()

	poll := time.NewTicker(w.config.Interval)
	defer poll.Stop()
	due := time.NewTimer(0) // when the files are to be read
	defer due.Stop()
	var since time.Time // when the first notification arrived that is waiting for due; zero for none
	changed := func() {
		if since.IsZero() && (w.config.Changed == nil || w.config.Changed()) {
			since = time.Now()
			due.Reset(w.config.Quiet)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-d.events:
			if !w.namesFile(event) {
				changed()
				continue
			}
			now := time.Now()
			if since.IsZero() {
				since = now
			}
			due.Reset(min(w.config.Quiet, since.Add(w.config.Patience).Sub(now)))
		case <-d.failures: // notifications were lost
			changed()
		case <-poll.C:
			watch()
			changed()
		case <-due.C:
			since = time.Time{}
			w.config.Reload(ctx)
		}
	}
}

// namesFile reports whether a notification is about one of the files, or about the
// link that Kubernetes swaps in a volume.
func (w *Watch) namesFile(event fsnotify.Event) bool {
	name := filepath.Base(event.Name)
	return name == "..data" || slices.ContainsFunc(w.config.Paths, func(path string) bool { return filepath.Base(path) == name })
}

// logTrouble logs an error that is not the last one, and its end.
func (w *Watch) logTrouble(err error) {
	switch {
	case err == nil && w.trouble != "":
		w.trouble = ""
		w.config.Logger.Info("files can be watched again", "files", w.config.Paths)
	case err != nil && err.Error() != w.trouble:
		w.trouble = err.Error()
		w.config.Logger.Warn("files cannot be watched; they are polled", "files", w.config.Paths, "interval", w.config.Interval, "error", err)
	}
}

// watchedDirectories are the directories that the system watches.
type watchedDirectories struct {
	watcher  *fsnotify.Watcher // nil while the system cannot make one
	events   <-chan fsnotify.Event
	failures <-chan error
}

// watchPaths watches the directories of the paths, and returns why one cannot be watched. A
// directory that is watched already stays so, and a replaced one is watched in place of the old.
func (d *watchedDirectories) watchPaths(paths []string) (err error) {
	if d.watcher == nil {
		if d.watcher, err = fsnotify.NewWatcher(); err != nil {
			return err
		}
		d.events, d.failures = d.watcher.Events, d.watcher.Errors
	}
	for _, path := range paths {
		if failure := d.watcher.Add(filepath.Dir(path)); failure != nil {
			err = fmt.Errorf("%s: %w", filepath.Dir(path), failure)
		}
	}
	return err
}

func (d *watchedDirectories) closeWatcher() {
	if d.watcher != nil {
		d.watcher.Close()
	}
}
