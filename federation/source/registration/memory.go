package registration

import (
	"context"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
)

// memory is the store of an owner that keeps nothing through its end: the table has the nodes,
// and nobody else changes them, so nothing is ever in conflict.
type memory struct {
	last int64 // the last version; owned by the committer
}

// Run implements [store.Store]. A store that is new is not complete.
func (*memory) Run(ctx context.Context, w store.Watcher) {
	w.State(nil, false)
	<-ctx.Done()
}

// Commit implements [store.Store].
func (m *memory) Commit(_ context.Context, changes []store.Change) ([]store.Outcome, error) {
	outcomes := make([]store.Outcome, len(changes))
	for i := range outcomes {
		m.last++
		outcomes[i].Version = m.last
	}
	return outcomes, nil
}
