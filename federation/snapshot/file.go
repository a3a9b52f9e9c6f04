package snapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// abandoned is the age at which a temporary file is taken for the rest of a
// process that was killed while it wrote. Writing changes a file all the time.
const abandoned = 10 * time.Minute

// Save writes the snapshot to a file, which only the user of the process may
// read. At every moment, also when the machine fails, the path leads to the old
// snapshot or to the new one, each complete. The directory must exist, and be
// one in which files may be made.
func Save(path string, s *Snapshot) error {
	if err := save(path, s); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}

func save(path string, s *Snapshot) (err error) {
	// A rename is atomic only within one file system.
	dir, base := filepath.Dir(path), filepath.Base(path)
	removeAbandoned(dir, base)
	f, err := os.CreateTemp(dir, prefix(base)+"*"+suffix) // mode 0600
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
	return syncDir(dir)
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
// when there is none, which is how every owner begins.
func Load(path string, o Options) (*Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	s, err := Decode(f, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}
