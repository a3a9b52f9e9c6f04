package journal

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

// What is beside the file. The lock is a file of its own, as the file is replaced. It has
// the last version that was stored, with a mark of the file: an older file that is put back
// in the place of the newest one is known by that.
const (
	lockSuffix    = ".lock"
	newSuffix     = ".new" // while it is written
	damagedSuffix = ".damaged"
	mode          = 0o600
)

// resolve returns the path of the file that path leads to.
func resolve(path string) (string, error) {
	file, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%s is a symbolic link to a file that does not exist", path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// open locks and reads the file, writes it anew, and reports whether nothing is missing in
// it. The lock is to be closed.
func (s *Store) open() (complete bool, err error) {
	path, err := resolve(s.config.Path)
	if err != nil {
		return false, err
	}
	lock, err := lockFile(path + lockSuffix)
	if err != nil {
		return false, err
	}
	found := contents{lost: "there was no file"}
	data, _, err := file.Read(path, maxFile)
	switch {
	case err == nil:
		found.lost = ""
		found.read(data)
	case !errors.Is(err, fs.ErrNotExist):
		return false, errors.Join(err, lock.Close())
	}
	s.path, s.lock = path, lock
	s.use(&found)
	s.complain("cannot rewrite the journal", s.compact())
	s.note()
	return found.lost == "", nil
}

// use makes what was found in the file that of the store, but for what is too old.
func (s *Store) use(found *contents) {
	age := time.Since(found.last.At)
	tooOld := s.config.Lifetime > 0 && age > s.config.Lifetime
	switch {
	case found.lost != "":
	case tooOld:
		found.lost = fmt.Sprintf("it is %v old, and its nodes are not used", age.Round(time.Second))
	case !s.isNewest(found):
		found.lost = "it may be older than what was stored last, such as a copy that was put back"
	case found.last.Partial:
		found.lost = "the owner before had not converged"
	case !found.last.Ended && found.last.Boot != boot():
		found.lost = "the machine has failed, which may have taken what was stored last"
	}
	s.partial = time.Time{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = make(map[node.Key]entry, len(found.entries))
	for key, e := range found.entries {
		// Every owner puts anew what its providers have: what this one has not was last heard
		// of with the owner before, or with the one of which that knew.
		e.heard = cmp.Or(e.heard, found.last.At.Unix())
		if s.config.Lifetime == 0 || time.Since(time.Unix(e.heard, 0)) <= s.config.Lifetime {
			s.entries[key] = e
		}
	}
	s.version, s.damaged, s.id = found.version, found.damaged, cmp.Or(found.last.File, rand.Text())
	if found.lost != "" {
		s.partial = time.Now().Add(s.config.Convergence)
		s.logger.Info("the journal may not be complete", "reason", found.lost, "nodes", len(s.entries))
	}
}

// isNewest reports whether the lock has no later version than the file, and is of that file.
func (s *Store) isNewest(found *contents) bool {
	var lock contents
	says := make([]byte, frameBytes+mostPayload)
	n, _ := s.lock.ReadAt(says, 0)
	payload, err := record(says[:n])
	return err == nil && lock.add(payload) == nil && lock.last.File == found.last.File && lock.version <= found.version
}

// note has the lock say what the last version is. It is not synced: what a machine that
// fails loses is found out by its boot.
func (s *Store) note() {
	s.mu.Lock()
	says, open := mark{File: s.id}.append(nil, s.version), s.file != nil
	s.mu.Unlock()
	if open {
		_, err := s.lock.WriteAt(says, 0)
		s.complain("cannot record the last stored change", err)
	}
}

// compact writes the file anew: beside the old one, which it replaces when all of it is
// on the disk. Commit waits meanwhile, as it does for the file: at most once in compactEvery.
func (s *Store) compact() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted, s.stamped = time.Now(), time.Now()
	_ = os.Remove(s.path + newSuffix) // of a process that was killed
	f, err := os.OpenFile(s.path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err == nil {
		if err = s.replaceBy(f); err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		s.broken = err
		return err
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.broken, s.damaged, s.unsaved = f, nil, false, false
	return syncDir(filepath.Dir(s.path))
}

// replaceBy fills a new file, and puts it in the place of the old one.
func (s *Store) replaceBy(f *os.File) error {
	w := bufio.NewWriterSize(f, 1<<20)
	b := s.mark(false).append([]byte(magic), s.version)
	var size, live int64
	for key, e := range s.entries {
		if _, err := w.Write(b); err != nil {
			return err // which every later one would be
		}
		size += int64(len(b))
		b = e.append(b[:0])
		e.bytes = int64(len(b))
		live += e.bytes
		s.entries[key] = e
	}
	_, err := w.Write(b)
	if err = cmp.Or(err, w.Flush(), f.Sync()); err != nil {
		return err
	}
	if s.damaged {
		s.logger.Warn("the journal is damaged; it is set aside", "aside", setAside(s.path))
	}
	if err := os.Rename(f.Name(), s.path); err != nil {
		return err
	}
	s.size, s.live = size+int64(len(b)), live
	return nil
}

// setAside keeps a damaged file under another name, for people, and returns that name.
// The former one goes.
func setAside(path string) string {
	aside := path + damagedSuffix
	_ = os.Remove(aside)
	if err := os.Link(path, aside); err != nil { // so that there always is a file at path
		_ = os.Rename(path, aside)
	}
	return aside
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
