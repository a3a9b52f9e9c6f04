// Package file reads files of the operator, such as certificates, catalogs and lists of
// identities, follows them, and keeps their last good content in force. The caller decides what the
// content means.
//
// [Open] and [Read] take regular files up to a size: a FIFO would block its reader forever,
// a device such as /dev/zero has no end, and a file may be larger than memory.
//
// A [Watch] calls back when a file may have changed. It watches the directories with
// fsnotify, not the files: a rename over a file, or the swap of the ..data link in a volume
// of Kubernetes, would end the watch of the file. As notifications do not arrive from every
// file system, nor for what is behind a symbolic link, it polls the files as well.
//
// A [File] keeps the last good content of one. A broken file is reported and changes
// nothing: one that is gone, empty or half written withdraws no service, turns nobody away
// and lets nobody in.
package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
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

// Config says which file to follow. Every field is required up to Read.
type Config struct {
	Path   string
	What   string // what the file is, as logged: "catalog file"
	Keeps  string // what happens while it is broken, as logged: "the catalog stays as it was"
	Limit  int64  // of its size, in bytes
	Logger *slog.Logger

	// Read reads the content, of about size bytes, to its end. It returns a function that puts the
	// content in force, or what is wrong with it. The function is not called when the file changes
	// meanwhile. It is called again for a file that was written with the content that is in force.
	Read func(ctx context.Context, content io.Reader, size int64) (apply func(), err error)

	// Trouble gets why the content of the file is not in force, once for each reason, and nil when
	// it is in force again. Run calls it.
	Trouble func(reason error)

	// Group, if set, has the files that may change in one edit with this one. It is not running
	// yet.
	Group *Group

	// Events, if set, replace the notifications of the system, in tests: in a bubble of
	// testing/synctest, time stands still while a goroutine waits for the system.
	Events <-chan fsnotify.Event
}

// File is a file that is followed. It keeps the FileInfo of the last content, and not the content
// itself, which the caller has. Only Load and the Run of its group
// change it. New makes one.
type File struct {
	config Config // read-only after New

	trouble atomic.Pointer[string] // why the content is not used, as reported; nil when it is

	// owned by Load, then by the Run of the group

	info os.FileInfo // of the file when it was last read, nil after a failure
}

// New returns a File that has not been read yet.
func New(c Config) *File {
	if c.Group == nil {
		c.Group = NewGroup(nil)
	}
	if c.Trouble == nil {
		c.Trouble = func(error) {}
	}
	f := &File{config: c}
	c.Group.addFile(f)
	return f
}

// Err returns why the current content of the file is not used, or nil.
func (f *File) Err() error {
	if trouble := f.trouble.Load(); trouble != nil {
		return errors.New(*trouble)
	}
	return nil
}

// Run follows the file, and all of its group, until ctx ends, and then returns nil. It reads the
// file first, unless Load has and the file has not changed. A broken file is reported once and
// changes nothing. The file can be edited in place, replaced, or be a symbolic link that is set to
// another file, as in a volume of Kubernetes. Anything but a regular file, such as a FIFO, is
// broken, and so is a file that is too large; either is used again once it is a file of allowed
// size.
//
// A file that is written in place is read when nobody has written to it for a tenth of a second, or
// after ten seconds. A writer that takes longer should write another file and rename it, because
// half of a list may be a shorter list. Content of a file that was written while it was read is not
// used.
func (f *File) Run(ctx context.Context) error { return f.config.Group.Run(ctx) }

// applyOrReport puts the content that was read in force, or reports once what is wrong with it.
func (f *File) applyOrReport(r readResult) {
	if r.err == nil {
		r.apply()
	}
	switch err, before := r.err, f.trouble.Load(); {
	case err == nil && before != nil:
		f.trouble.Store(nil)
		f.config.Logger.Info("file is in order again", "what", f.config.What, "file", f.config.Path)
		f.config.Trouble(nil)
	case err != nil && (before == nil || err.Error() != *before):
		trouble := err.Error()
		f.trouble.Store(&trouble)
		f.config.Logger.Error("file is not used: fix it", "what", f.config.What, "file", f.config.Path, "meanwhile", f.config.Keeps, "error", err)
		f.config.Trouble(err)
	}
}

// hasChanged reports whether the file may have changed since it was read.
func (f *File) hasChanged() bool {
	info, err := os.Stat(f.config.Path)
	return err != nil || f.info == nil || !os.SameFile(info, f.info) ||
		!info.ModTime().Equal(f.info.ModTime()) || info.Size() != f.info.Size()
}

// attempts is how often a file that changes while it is read is read again.
const attempts = 3

// errChanging is the trouble of a file that changes each time that it is read. A large
// one takes seconds, and half of what was read may be of another version.
var errChanging = errors.New("it changes while it is read")

// readResult is the result of reading a file.
type readResult struct {
	apply func()
	err   error // why the content cannot be used
}

// Load reads the file and puts it in force. It fails when the file cannot be read or
// Read says that something is wrong. It is called before Run or not at all.
func (f *File) Load(ctx context.Context) error {
	var r readResult
	for attempt := 0; attempt < attempts && f.hasChanged(); attempt++ {
		r = f.readContent(ctx)
	}
	if r.err == nil {
		r.apply()
	}
	return r.err
}

// changingResult returns the result for a file that has changed while it was read.
func (f *File) changingResult() readResult {
	f.info = nil
	return readResult{err: fmt.Errorf("%s %s: %w", f.config.What, f.config.Path, errChanging)}
}

// readContent reads the file. If it has changed meanwhile, the next attempt says what is wrong.
func (f *File) readContent(ctx context.Context) readResult {
	f.info = nil
	file, info, err := Open(f.config.Path, f.config.Limit)
	if err != nil {
		return readResult{err: fmt.Errorf("%s: %w", f.config.What, err)}
	}
	defer file.Close()
	c := limitedContent{file: file, limit: f.config.Limit, left: f.config.Limit}
	apply, err := f.config.Read(ctx, &c, info.Size())
	if c.err != nil {
		return readResult{err: fmt.Errorf("%s: %w", f.config.What, c.err)}
	}
	if now, failure := file.Stat(); failure != nil || now.Size() != info.Size() || !now.ModTime().Equal(info.ModTime()) {
		return f.changingResult()
	}
	f.info = info
	if err != nil {
		return readResult{err: fmt.Errorf("%s %s: %w", f.config.What, f.config.Path, err)}
	}
	return readResult{apply: apply}
}

// limitedContent reads a file up to a limit.
type limitedContent struct {
	file        *os.File
	limit, left int64
	err         error // why reading failed
}

// Read implements io.Reader. It fails with [ErrTooLarge] when the file has
// grown beyond the limit.
func (c *limitedContent) Read(p []byte) (int, error) {
	n, err := c.file.Read(p)
	if c.left -= int64(n); c.left < 0 {
		err = fmt.Errorf("%s %w: the limit is %d bytes", c.file.Name(), ErrTooLarge, c.limit)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
