package ownerfile

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/federation/filewatch"
	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
)

const (
	// pollInterval is how often a file is looked at without a notification, and
	// the longest time for which one that is written all the time is left unread.
	pollInterval = 10 * time.Second

	// quiet is how long a file must be left alone before it is read. A writer
	// that does not rename causes many notifications, and half of what it writes
	// may look like a whole.
	quiet = 100 * time.Millisecond
)

// File is a file that an owner follows.
type File struct {
	// read-only after it was opened
	path   string
	what   string // what it is, as logged
	keeps  string // what happens while it is broken, as logged
	limit  int64  // of its size, in bytes
	logger *slog.Logger
	watch  *filewatch.Watch

	// read reads the content, of about size bytes, to its end. It returns what the
	// content says, for apply, or what is wrong with it.
	read func(ctx context.Context, content io.Reader, size int64) (apply func(), err error)

	trouble atomic.Pointer[string] // why the content is not used, as reported; nil when it is

	// owned by open, then by the Run that follows the file

	info   os.FileInfo // of the file when it was last read, nil after a failure
	digest uint64      // of the content that was applied last
	once   bool        // whether any was applied
	seed   maphash.Seed
}

// open reads the file, applies it, and prepares Run.
func (f *File) open(ctx context.Context) (*File, error) {
	f.seed = maphash.MakeSeed()
	if err := f.load(ctx); err != nil {
		return nil, err
	}
	f.watch = f.newWatch(nil)
	return f, nil
}

// newWatch returns what follows the file. In tests, events take the place of the
// system's notifications.
func (f *File) newWatch(events <-chan fsnotify.Event) *filewatch.Watch {
	return filewatch.New(filewatch.Config{
		Paths:    []string{f.path},
		Interval: pollInterval,
		Quiet:    quiet,
		Patience: pollInterval,
		Changed:  f.changed,
		Reload:   f.reload,
		Trouble:  f.logWatching,
		Events:   events,
	})
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
// Kubernetes. Anything but a regular file, such as a FIFO, is broken, and so is a
// file that is too large; either is used again once it is a file of allowed size.
//
// A file that is written in place is read when it has been left alone for a
// tenth of a second, or has not been for ten seconds. A writer that takes longer
// should write another file and rename it: half of a list may be a shorter list. What
// was read of a file that was written meanwhile is not used.
func (f *File) Run(ctx context.Context) error { return f.watch.Run(ctx) }

// logWatching logs that the directory of the file cannot be watched, or that it
// is watched again.
func (f *File) logWatching(err error) {
	if err != nil {
		f.logger.Warn("no notifications of changes; the "+f.what+" is polled",
			"file", f.path, "interval", pollInterval, "error", err)
	} else {
		f.logger.Info("notifications of changes of the "+f.what+" arrive again", "file", f.path)
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
		f.logger.Error(f.what+" is not used, "+f.keeps+": fix the file", "error", err)
	}
}

// changed reports whether the file may be another than the one that was read.
func (f *File) changed() bool {
	info, err := os.Stat(f.path)
	return err != nil || f.info == nil || !os.SameFile(info, f.info) ||
		!info.ModTime().Equal(f.info.ModTime()) || info.Size() != f.info.Size()
}

// attempts is how often a file is read that changes while it is read.
const attempts = 3

// errChanging is the trouble of a file that changes each time that it is read. A large
// one takes seconds, and half of what was read may be of another version.
var errChanging = errors.New("it changes while it is read")

// load reads the file and applies it.
func (f *File) load(ctx context.Context) error {
	for range attempts {
		done, err := f.attempt(ctx)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s %s: %w", f.what, f.path, errChanging)
}

// attempt reads the file and applies it, unless the file changes meanwhile. It reports
// whether it has not.
func (f *File) attempt(ctx context.Context) (done bool, err error) {
	f.info = nil
	file, info, err := regularfile.Open(f.path, f.limit)
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.what, err)
	}
	defer file.Close()
	c := content{file: file, limit: f.limit, left: f.limit}
	c.hash.SetSeed(f.seed)
	apply, err := f.read(ctx, &c, info.Size())
	if c.err != nil {
		return false, fmt.Errorf("%s: %w", f.what, c.err)
	}
	if now, failure := file.Stat(); failure != nil || now.Size() != info.Size() || !now.ModTime().Equal(info.ModTime()) {
		return false, nil // the next attempt says what is wrong
	}
	f.info = info
	if err != nil {
		return false, fmt.Errorf("%s %s: %w", f.what, f.path, err)
	}
	if digest := c.hash.Sum64(); !f.once || digest != f.digest {
		apply()
		f.once, f.digest = true, digest
	}
	return true, nil
}

// content is what stands in a file, up to a limit.
type content struct {
	file        *os.File
	limit, left int64
	hash        maphash.Hash // of what was read
	err         error        // with which reading failed
}

// Read implements io.Reader. It fails with [regularfile.ErrTooLarge] when the file has
// grown beyond the limit.
func (c *content) Read(p []byte) (int, error) {
	n, err := c.file.Read(p)
	c.hash.Write(p[:n])
	if c.left -= int64(n); c.left < 0 {
		err = fmt.Errorf("%s %w: the limit is %d bytes", c.file.Name(), regularfile.ErrTooLarge, c.limit)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
