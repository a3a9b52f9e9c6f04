// Package journal keeps registered nodes in memory, and in a file for the restart of an
// owner. It is no database: every change is a record at the end of the file, and the file is
// written anew at every start, and when it is more than twice what lives in it.
//
// What Commit has stored outlives the process, however it ends. What the machine loses
// when it fails is what was stored in the last second; the next owner says then that
// what it has may not be complete. The file takes up to three times what lives in it,
// while it is written anew. Beside it stand a file with the suffix ".lock", which keeps
// other processes away and knows what was stored last, and, after damage, one with the
// suffix ".damaged". A file that was put back is known by the lock, unless both are.
//
// Only packages of this module import it: it is not a stable API.
package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
)

// Config says where a journal is.
type Config struct {
	Path string // of the file; its directory must exist. A symbolic link is followed.

	// Lifetime is how long nodes outlive the owner that has stored them, however often others
	// begin and end meanwhile. Those of an older file are not used. 0: for ever.
	Lifetime time.Duration

	// Convergence is how long the providers have to come back to an owner whose journal
	// is not complete. One that starts anew before has none that is complete either. 0: two minutes.
	Convergence time.Duration

	Logger *slog.Logger // nil: none
}

// How often what is done.
const (
	syncEvery    = time.Second      // while there are changes; and opened, while it cannot be
	stampEvery   = time.Minute      // so that the file of an idle owner is not old
	compactEvery = 10 * time.Second // at most
)

const defaultConvergence = 2 * time.Minute

// maxFile bounds the file, and with it what is read into memory.
const maxFile = 1 << 30

// slack is how much larger than twice what lives the file may be, so that a small one is
// not written anew all the time.
const slack = 1 << 20

// The reasons for which nothing can be stored.
var (
	errNotOpen = errors.New("the journal is not open")
	errFull    = fmt.Errorf("the journal would be larger than %d bytes", maxFile)
	errLocked  = errors.New("another process uses the journal")
)

// Store is a journal. It implements [store.Store].
type Store struct {
	config Config
	logger *slog.Logger

	mu      sync.Mutex
	file    *os.File // nil: it must be written anew first, which is for Run
	broken  error    // why there is no file
	size    int64    // of the file, up to the end of the last record
	id      string   // of the file
	entries map[node.Key]entry
	live    int64 // bytes of the records of entries
	version int64 // the last one given
	unsaved bool  // whether something has been written since the last sync

	// Owned by Run.
	path       string    // without symbolic links
	lock       *os.File  // see file.go
	partial    time.Time // until when nodes may be missing; zero if none are
	damaged    bool      // whether the file is to be set aside when it is written anew
	compacted  time.Time
	stamped    time.Time
	complaints map[string]string // the last error of each kind that was logged
}

// New returns a journal. The file is opened by Run.
func New(c Config) *Store {
	c.Convergence = cmp.Or(c.Convergence, defaultConvergence)
	logger := cmp.Or(c.Logger, slog.New(slog.DiscardHandler)).With("file", c.Path)
	return &Store{config: c, logger: logger, broken: errNotOpen, complaints: map[string]string{}}
}

// Run implements [store.Store]. While the file cannot be opened, because another process
// has it for example, it tries again each second.
func (s *Store) Run(ctx context.Context, w store.Watcher) {
	ticker := time.NewTicker(syncEvery)
	defer ticker.Stop()
	complete, err := s.open()
	var away string // as the watcher was told
	for ; err != nil; complete, err = s.open() {
		if err.Error() != away {
			away = err.Error()
			w.Away(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	defer s.lock.Close()
	if away != "" {
		w.Away(nil)
	}
	w.State(s.versioned(), complete)
	for {
		select {
		case <-ctx.Done():
			s.end()
			return
		case <-ticker.C:
			s.keep()
		}
	}
}

// Commit implements [store.Store].
func (s *Store) Commit(ctx context.Context, changes []store.Change) ([]store.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil, s.broken
	}
	var (
		outcomes = make([]store.Outcome, len(changes))
		sizes    = make([]int64, len(changes)) // of the records
		records  []byte
		version  = s.version
	)
	for i, c := range changes {
		before := s.entries[c.Key].version
		if before != c.Before {
			outcomes[i] = store.Outcome{Version: before, Conflict: true}
			continue
		}
		version++
		outcomes[i].Version = version
		length := len(records)
		switch {
		case c.Node != nil:
			records = entry{node: c.Node, version: version}.append(records)
		case before != 0:
			records = appendRecord(records, gone, version, []byte(c.Key.Text()))
		}
		sizes[i] = int64(len(records) - length)
	}
	if err := s.write(records); err != nil {
		return nil, err
	}
	s.version = version
	for i, c := range changes {
		if !outcomes[i].Conflict {
			s.apply(c.Key, entry{node: c.Node, version: outcomes[i].Version, bytes: sizes[i]})
		}
	}
	return outcomes, nil
}

// apply puts an entry in the place of that of the key, or deletes it when there is no
// node.
func (s *Store) apply(key node.Key, e entry) {
	s.live -= s.entries[key].bytes
	if e.node == nil {
		delete(s.entries, key)
		return
	}
	s.live += e.bytes
	s.entries[key] = e
}

// write appends records to the file: with one write, so that they outlive the process
// when it returns. The next ones take the place of what an error leaves of them.
func (s *Store) write(records []byte) error {
	if s.size+int64(len(records)) > maxFile {
		return errFull
	}
	if _, err := s.file.WriteAt(records, s.size); err != nil {
		_ = s.file.Truncate(s.size)
		return err
	}
	s.size += int64(len(records))
	s.unsaved = s.unsaved || len(records) > 0
	return nil
}

// keep stamps, rewrites and syncs the file, as far as that is due.
func (s *Store) keep() {
	every := stampEvery
	if s.config.Lifetime > 0 { // a node is as old as the last stamp
		every = min(every, max(s.config.Lifetime/4, syncEvery))
	}
	now := time.Now()
	converged := !s.partial.IsZero() && !now.Before(s.partial) // nothing is missing any more
	if converged || now.Sub(s.stamped) >= every {
		s.stamp(false)
		s.find()
	}
	s.mu.Lock()
	missing := s.file == nil
	due := s.size > 2*s.live+slack || s.size > maxFile/4*3 && s.size-s.live > maxFile/8
	s.mu.Unlock()
	if missing || due && now.Sub(s.compacted) >= compactEvery {
		s.complain("cannot rewrite the journal", s.compact())
	}
	s.mu.Lock()
	file, unsaved := s.file, s.unsaved
	s.unsaved = false
	s.mu.Unlock()
	if file == nil || !unsaved {
		return
	}
	s.note()
	if s.complain("cannot sync the file", file.Sync()) {
		s.mu.Lock()
		s.unsaved = true
		s.mu.Unlock()
	}
}

// complain logs an error, unless it is the same as before, and reports whether there is
// one.
func (s *Store) complain(what string, err error) bool {
	if err == nil {
		delete(s.complaints, what)
		return false
	}
	if s.complaints[what] != err.Error() {
		s.complaints[what] = err.Error()
		s.logger.Warn(what, "error", err)
	}
	return true
}

// stamp writes when the owner was there, and whether it is at its end.
func (s *Store) stamp(ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !now.Before(s.partial) {
		s.partial = time.Time{}
	}
	s.stamped = now
	if s.file != nil {
		// An error is that of the next Commit, too, which returns it.
		_ = s.write(s.mark(ended).append(nil, s.version))
	}
}

// mark returns what there is to say of the file now.
func (s *Store) mark(ended bool) mark {
	return mark{File: s.id, At: time.Now(), Boot: boot(), Partial: !s.partial.IsZero(), Ended: ended}
}

// find has the file written anew when it is not at its path any more.
func (s *Store) find() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return
	}
	there, err := os.Stat(s.path)
	is, failure := s.file.Stat()
	if failure == nil && (errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(there, is)) {
		s.logger.Warn("the journal was removed or replaced; it is written again")
		_ = s.file.Close()
		s.file, s.broken = nil, errNotOpen
	}
}

// end leaves a file that says that nothing is missing in it.
func (s *Store) end() {
	s.stamp(true)
	s.note()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		s.complain("cannot sync the file", errors.Join(s.file.Sync(), s.file.Close()))
	}
	s.file, s.broken, s.entries = nil, errNotOpen, nil
}

// versioned returns all nodes.
func (s *Store) versioned() []store.Versioned {
	nodes := make([]store.Versioned, 0, len(s.entries))
	for _, e := range s.entries {
		v := store.Versioned{Node: e.node, Version: e.version}
		if s.config.Lifetime > 0 && e.heard != 0 {
			v.Until = time.Unix(e.heard, 0).Add(s.config.Lifetime)
		}
		nodes = append(nodes, v)
	}
	return nodes
}
