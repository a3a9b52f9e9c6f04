// Package store says what keeps registered nodes through the end of an owner, and
// shares them between owners. What an owner has stored that is gone the store itself deletes,
// after a while; an owner never deletes what is in the name of another one's stream.
//
// What a store holds is what its owners publish: a node is published once it is stored,
// and withdrawn once it is deleted there. A store that is away withdraws nothing.
package store

import (
	"context"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
)

// Patience is for how long at most a store that several owners share may not be there before
// it says so.
const Patience = 6 * time.Second

// Store keeps nodes.
type Store interface {
	// Run keeps the store open until ctx ends, and returns then. It tells the watcher
	// first the whole state, and then what changes. It runs once.
	Run(ctx context.Context, w Watcher)

	// Commit stores changes. It returns when all of them are stored, with an outcome for each,
	// or with an error when it cannot tell for some: they may be committed again. Keys
	// are different. It is called by one goroutine at a time, while Run runs.
	// What it has stored need not be told to the watcher, and may be.
	Commit(ctx context.Context, changes []Change) ([]CommitOutcome, error)
}

// Watcher is told what a store holds. Its methods do not block for long, and are called
// one at a time.
type Watcher interface {
	// SetState says what the store holds now: everything. It is called before ApplyChanges,
	// and again when changes may have been missed. With complete the store knows that
	// nothing is missing in it: it is false for a store that is new, was damaged, or has lost
	// its data, where providers that live may not be in it yet. Its versions may have
	// begun anew then.
	SetState(nodes []VersionedNode, complete bool)

	// ApplyChanges says what has changed since. Of what Commit has stored the version tells
	// that it is known.
	ApplyChanges(nodes []VersionedNode, gone []DeletedKey)

	// OwnerRestarted says that another owner has begun anew, or this one: what it has stored with versions
	// before this one was left behind, and waits for its providers. It may be said again.
	OwnerRestarted(owner string, version int64)

	// SetAway says why the store cannot be asked, or with nil that it can be again. A store
	// that has said nothing can be asked.
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

// CommitOutcome is what has become of a change.
type CommitOutcome struct {
	Version  int64 // of the key now, or of its deletion
	Conflict bool  // the key has another version than Change.Before: the watcher is or will be told
}
