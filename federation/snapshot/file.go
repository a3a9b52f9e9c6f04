package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
)

// maxLinks bounds the symbolic links that a path may lead through.
const maxLinks = 40

// resolve returns the absolute path of the file that path leads to, through all
// symbolic links. The file need not exist, its directory must.
func resolve(path string) (string, error) {
	for range maxLinks {
		dir, base := filepath.Split(path)
		dir, err := filepath.EvalSymlinks(dir + ".") // not cleaned: ".." is above where a link leads to
		if err != nil {
			return "", err
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return "", err
		}
		path = filepath.Join(dir, base)
		link, err := os.Readlink(path)
		switch {
		case err != nil:
			return path, nil //nolint:nilerr // it is no link, or nothing yet
		case !filepath.IsAbs(link):
			link = dir + string(filepath.Separator) + link
		}
		path = link
	}
	return "", &fs.PathError{Op: "readlink", Path: path, Err: syscall.ELOOP}
}

// Check reports why snapshots cannot be kept at path, before there is one to keep:
// its directory does not exist or takes no new file, or something that is no file
// is there. It returns the path of the file itself, without symbolic links, by which
// two paths to one file can be told. A full disk is no reason: it may have room
// again.
func Check(path string) (string, error) {
	file, err := resolve(path)
	if err != nil {
		return "", err
	}
	if err := replaceable(file); err != nil {
		return "", err
	}
	f, err := create(file)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return file, nil
	case err != nil:
		return "", err
	}
	return file, errors.Join(f.Close(), os.Remove(f.Name()))
}

// replaceable returns an error when something is at path that must not be
// replaced: a directory, a device, a FIFO.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", path, regularfile.ErrNotRegular)
	}
	return nil
}

// create makes a temporary file beside the file at path, with mode 0600: a rename
// is atomic only within one file system.
func create(path string) (*os.File, error) {
	dir, base := filepath.Split(path)
	return os.CreateTemp(dir, prefix(base)+"*"+suffix)
}

// abandoned is the age at which a temporary file is taken for the rest of a
// process that was killed while it wrote. Writing changes a file all the time.
const abandoned = 10 * time.Minute

// Save writes the snapshot to a file, which only the user of the process may
// read. At every moment, also when the machine fails, the path leads to the old
// snapshot or to the new one, each complete. The directory must exist, and be
// one in which files may be made. Where path is a symbolic link, the file that it
// leads to is written, and the link stays.
func Save(path string, s *Snapshot) error {
	if err := save(path, s); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}

func save(path string, s *Snapshot) (err error) {
	if path, err = resolve(path); err != nil {
		return err
	}
	if err := replaceable(path); err != nil {
		return err
	}
	removeAbandoned(filepath.Split(path))
	f, err := create(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := Encode(f, s); err != nil {
		return err
	}
	// The content must be on the disk before the name leads to it, and the
	// name before anyone relies on it.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // has no such thing for directories
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

const suffix = ".tmp"

func prefix(base string) string { return "." + base + "." }

// removeAbandoned removes temporary files that were left behind, so that a
// process that is killed again and again does not fill the disk. That it fails
// is no reason not to save.
func removeAbandoned(dir, base string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, prefix(base)) || !strings.HasSuffix(name, suffix) {
			continue
		}
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(filepath.Join(dir, name))
		}
	}
}

// Load reads the snapshot of an owner from a file. The error wraps fs.ErrNotExist
// when there is none, which is how every owner begins, and one of package
// regularfile for what is no file, which is not read, or larger than MaxFile.
func Load(path string, o Options) (*Snapshot, error) {
	f, _, err := regularfile.Open(path, MaxFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	s, err := Decode(io.LimitReader(f, MaxFile), o) // it may grow
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

const (
	rejectedSuffix = ".rejected"
	maxRejected    = 10 // the last one is replaced by what comes after it
)

// SetAside renames a file that Load refused, and that the next Save would write
// over, so that whoever misses it finds it. It returns the new name: the file's
// with ".rejected" behind it, or with ".rejected.2" and so on up to 10 where files
// have been set aside before.
func SetAside(path string) (string, error) {
	path, err := resolve(path)
	if err != nil {
		return "", err
	}
	name := path + rejectedSuffix
	for n := 2; n <= maxRejected; n++ {
		if _, err := os.Lstat(name); err != nil {
			break
		}
		name = fmt.Sprintf("%s%s.%d", path, rejectedSuffix, n)
	}
	return name, os.Rename(path, name)
}
