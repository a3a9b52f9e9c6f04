// Package memory is the store of an owner that keeps nothing through its end.
//
// Only packages of this module import it: it is not a stable API.
package memory

import (
	"context"
	"sync"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
)

// Store implements [store.Store]. It is empty when it is new, and so not complete. It keeps
// versions only: the nodes are with its watcher.
type Store struct {
	mu       sync.Mutex
	versions map[node.Key]int64 // guarded by mu
	last     int64              // guarded by mu
}

var _ store.Store = (*Store)(nil)

// New returns a store.
func New() *Store { return &Store{versions: make(map[node.Key]int64)} }

// Run implements [store.Store].
func (*Store) Run(ctx context.Context, w store.Watcher) {
	w.State(nil, false)
	<-ctx.Done()
}

// Commit implements [store.Store].
func (s *Store) Commit(_ context.Context, changes []store.Change) ([]store.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcomes := make([]store.Outcome, len(changes))
	for i, c := range changes {
		if before := s.versions[c.Key]; before != c.Before {
			outcomes[i] = store.Outcome{Version: before, Conflict: true}
			continue
		}
		s.last++
		outcomes[i].Version = s.last
		if c.Node == nil {
			delete(s.versions, c.Key)
		} else {
			s.versions[c.Key] = s.last
		}
	}
	return outcomes, nil
}
