package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/file"
)

// maxLinks bounds the symbolic links that a path may lead through.
const maxLinks = 40

// resolveLinks returns the absolute path of the file that path leads to, through all
// symbolic links. The directory must exist; the file need not, for which
// filepath.EvalSymlinks fails.
func resolveLinks(path string) (string, error) {
	for range maxLinks {
		dir, base := filepath.Split(path)
		dir, err := filepath.EvalSymlinks(dir + ".") // not cleaned, since "link/.." is above the target of the link
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
			return path, nil //nolint:nilerr // path is not a link, or does not exist
		case !filepath.IsAbs(link):
			link = dir + string(filepath.Separator) + link
		}
		path = link
	}
	return "", &fs.PathError{Op: "readlink", Path: path, Err: syscall.ELOOP}
}

// CheckPath returns the path of the file that path leads to without symbolic links, which is the
// same for all paths to one file, or why no snapshot can be kept there: its directory does not
// exist, no file can be created in it, or path is something other than a file. A full disk is no
// error, because there may be room later.
func CheckPath(path string) (string, error) {
	file, err := resolveLinks(path)
	if err != nil {
		return "", err
	}
	if err := checkReplaceable(file); err != nil {
		return "", err
	}
	f, err := createTemp(file)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return file, nil
	case err != nil:
		return "", err
	}
	return file, errors.Join(f.Close(), os.Remove(f.Name()))
}

// checkReplaceable returns why path must not be replaced, or nil: a directory, a device and a FIFO
// must not.
func checkReplaceable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", path, file.ErrNotRegular)
	}
	return nil
}

// createTemp returns a new temporary file, with mode 0600, in the directory of path, because a
// rename is atomic only within one file system.
func createTemp(path string) (*os.File, error) {
	dir, base := filepath.Split(path)
	return os.CreateTemp(dir, tempPrefix(base)+"*"+tempSuffix)
}

// abandoned is the age at which a temporary file counts as left behind by a process that was
// killed. A file that is being written changes all the time.
const abandoned = 10 * time.Minute

// Save writes the snapshot to a file that only the user of the process may read.
// At every moment, even when the machine fails, the file is either the old snapshot
// or the new one, complete. The directory must exist, and the process must be allowed
// to create files in it. Where path is a symbolic link, the file that it leads to is
// replaced, and the link stays.
func Save(path string, s *Snapshot) error {
	if err := replaceFile(path, s); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}

func replaceFile(path string, s *Snapshot) (err error) {
	if path, err = resolveLinks(path); err != nil {
		return err
	}
	if err := checkReplaceable(path); err != nil {
		return err
	}
	removeAbandoned(filepath.Split(path))
	f, err := createTemp(path)
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
	// The content must be on the disk before the file is renamed, and the new name
	// before Save returns.
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
		return nil // which cannot sync a directory
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

const tempSuffix = ".tmp"

func tempPrefix(base string) string { return "." + base + "." }

// removeAbandoned removes temporary files that were left behind, because a process that is killed
// again and again must not fill the disk. It ignores errors, because they do not keep Save from
// saving.
func removeAbandoned(dir, base string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, tempPrefix(base)) || !strings.HasSuffix(name, tempSuffix) {
			continue
		}
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(filepath.Join(dir, name))
		}
	}
}

// Load returns the snapshot of an owner from a file. The error wraps fs.ErrNotExist when there is
// no file, as for every owner at first. It wraps an error of package file when path is not a
// regular file, or when the file is larger than 16 GiB. For a damaged file, Load returns the error
// and, as Decode does, the part that is whole.
func Load(path string, o ReadOptions) (*Snapshot, error) {
	f, info, err := file.Open(path, maxFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	s, err := Decode(f, info.Size(), o)
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// SetAside renames a file that Load refused, so that the next Save does not overwrite it, and
// returns the new name. That has the suffix ".rejected", and replaces a file that was set aside
// before.
func SetAside(path string) (string, error) {
	path, err := resolveLinks(path)
	if err != nil {
		return "", err
	}
	name := path + ".rejected"
	return name, os.Rename(path, name)
}
