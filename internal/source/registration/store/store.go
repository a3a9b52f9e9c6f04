// Package store defines a [Store], which keeps registered nodes through the end of an owner and
// shares them between owners, and a [Watcher], which learns what the store has. The store itself deletes,
// after a while, the nodes of an owner that is gone. An owner never deletes a node that belongs to a
// stream of another owner.
//
// Owners publish what the store has: a node is published once it is stored,
// and withdrawn once it is deleted from the store. While a store is away, nothing is withdrawn.
package store

import (
	"context"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
)

// Patience is how long a store that several owners share may not answer before it calls
// Watcher.SetAway.
const Patience = 6 * time.Second

// Store keeps nodes.
type Store interface {
	// Run keeps the store open until ctx ends, and returns then. It passes to the watcher first the
	// whole state, and then what changes. It runs once.
	Run(ctx context.Context, w Watcher)

	// Commit stores changes. It returns an outcome for each when all are stored, or an error when
	// it does not know that for some: these may be committed again. Their keys are different.
	// Commit is called by one goroutine at a time, while Run runs. The watcher may get the changes
	// that Commit has stored, or not.
	Commit(ctx context.Context, changes []Change) ([]CommitOutcome, error)
}

// Watcher learns what a store has. Its methods must not block for long, and are called one at a
// time.
type Watcher interface {
	// SetState gets everything that the store has now. It is called before ApplyChanges, and again
	// when changes may have been missed. With complete, the store knows that nothing is missing.
	// Complete is false for a store that is new, was damaged or has lost its data, because nodes of
	// living providers may be missing; the versions may have begun anew then.
	SetState(nodes []VersionedNode, complete bool)

	// ApplyChanges gets what has changed since. A change that Commit has stored can be recognized
	// by its version.
	ApplyChanges(nodes []VersionedNode, gone []DeletedKey)

	// SetAway says why the store cannot be asked, or with nil that it can be asked again. Before
	// the first call the store can be asked.
	SetAway(reason error)
}

// VersionedNode is a node with its version: of two versions of a key the larger one is the
// later one, also over deletions.
type VersionedNode struct {
	Node    *node.Node
	Version int64
}

// DeletedKey is a deletion.
type DeletedKey struct {
	Key     node.Key
	Version int64 // of the deletion
}

// Change puts or deletes one key.
type Change struct {
	Key  node.Key
	Node *node.Node // nil: delete

	// Before is the version that the key must have, 0 for none. Otherwise the change
	// is in conflict and not made.
	Before int64
}

// CommitOutcome says whether a change was made.
type CommitOutcome struct {
	Version  int64 // of the key now, or of its deletion; 0 in a conflict
	Conflict bool  // the key has another version than Change.Before, which the watcher has got or will get
}
