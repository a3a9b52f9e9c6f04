// Package storetest tests stores: that they keep the promises of package store.
package storetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// patience bounds each wait, on a machine that is busy.
const patience = time.Minute

// NewNode returns a valid node of the service web-SERVICE.acme.example, in one stream.
// Nodes with the same service and number have the same key.
func NewNode(service, number int, stream uint64) *node.Node {
	name := must.Value(federation.ParseFQDN(fmt.Sprintf("web-%d.acme.example", service)))
	uri := must.Value(node.ParseURI(fmt.Sprintf("https://10.%d.%d.%d:8443", number>>16&255, number>>8&255, number&255), netip.Addr{}))
	provider := must.Value(federation.ParseID("spiffe://acme.example/web"))
	return &node.Node{
		Key: node.Key{Service: name, URI: uri}, Metadata: federation.Pairs(map[string]string{"zone": "a"}), TTL: 30 * time.Second,
		Provider: provider, Rule: "web", Owner: "owner", Stream: stream, Since: time.Unix(1_700_000_000, 0).UTC(),
	}
}

// Recorder is a watcher that keeps what it is told, and fails the test when a store
// breaks the rules of store.Watcher. Its methods may be called from any goroutine.
type Recorder struct {
	tb   testing.TB
	busy sync.Mutex // held while it is told something

	mu       sync.Mutex
	nodes    map[node.Key]store.VersionedNode
	gone     map[node.Key]int64 // versions of deletions
	states   int
	complete bool
	away     error
	awayed   int
	lost     []node.Key // all that were withdrawn, one after the other
}

// NewRecorder returns a recorder that has been told nothing.
func NewRecorder(tb testing.TB) *Recorder {
	return &Recorder{tb: tb, nodes: make(map[node.Key]store.VersionedNode), gone: make(map[node.Key]int64)}
}

// recordCall calls f while nothing else is told.
func (r *Recorder) recordCall(what string, f func()) {
	if !r.busy.TryLock() {
		r.tb.Errorf("%s is called while the watcher is told something else", what)
		return
	}
	defer r.busy.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// SetState is that of store.Watcher.
func (r *Recorder) SetState(nodes []store.VersionedNode, complete bool) {
	r.recordCall("SetState", func() {
		r.states++
		r.complete = complete
		before := r.nodes
		r.nodes = make(map[node.Key]store.VersionedNode, len(nodes))
		clear(r.gone)
		for _, v := range nodes {
			if _, ok := r.nodes[v.Node.Key]; ok {
				r.tb.Errorf("SetState has %v twice", v.Node.Key)
			}
			r.nodes[v.Node.Key] = v
			delete(before, v.Node.Key)
		}
		r.lost = slices.AppendSeq(r.lost, maps.Keys(before))
	})
}

// ApplyChanges is that of store.Watcher.
func (r *Recorder) ApplyChanges(nodes []store.VersionedNode, gone []store.DeletedKey) {
	r.recordCall("ApplyChanges", func() {
		if r.states == 0 {
			r.tb.Error("ApplyChanges is called before SetState")
		}
		for _, v := range nodes {
			if known := max(r.nodes[v.Node.Key].Version, r.gone[v.Node.Key]); v.Version > known {
				r.nodes[v.Node.Key] = v
			}
		}
		for _, g := range gone {
			if g.Version <= r.nodes[g.Key].Version {
				continue
			}
			if _, ok := r.nodes[g.Key]; ok {
				delete(r.nodes, g.Key)
				r.lost = append(r.lost, g.Key)
			}
			r.gone[g.Key] = g.Version
		}
	})
}

// SetAway is that of store.Watcher.
func (r *Recorder) SetAway(reason error) {
	r.recordCall("SetAway", func() {
		if reason == nil && r.away == nil {
			r.tb.Error("the store is back and was not away")
		}
		if reason != nil {
			if r.away != nil {
				r.tb.Errorf("the store is away twice: %v, %v", r.away, reason)
			}
			r.awayed++
		}
		r.away = reason
	})
}

// ToldState is what a store has told so far.
type ToldState struct {
	Nodes    map[node.Key]store.VersionedNode // that are there now
	Lost     []node.Key                       // whenever one was told to be gone, in this order
	States   int                              // calls of SetState
	Complete bool                             // of the last SetState
	Away     error                            // of the last call of SetAway
	Awayed   int                              // calls of SetAway with a reason
}

// Told returns what the store has told so far.
func (r *Recorder) Told() ToldState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ToldState{maps.Clone(r.nodes), slices.Clone(r.lost), r.states, r.complete, r.away, r.awayed}
}

// Wait waits until what the store has told fulfils a condition, as await.Until does.
func (r *Recorder) Wait(what string, condition func(ToldState) bool) {
	r.tb.Helper()
	await.Until(r.tb, patience, func() string {
		told := r.Told()
		if condition(told) {
			return ""
		}
		return fmt.Sprintf("%s: there are %d nodes, %d were lost, %d states, away: %v",
			what, len(told.Nodes), len(told.Lost), told.States, told.Away)
	})
}

// StartStore runs a store until the function that it returns is called, which waits for
// the end, or until the end of the test. It waits for the first SetState.
func StartStore(tb testing.TB, s store.Store) (r *Recorder, stop func()) {
	tb.Helper()
	r = NewRecorder(tb)
	stop = must.Run(tb, func(ctx context.Context) error {
		s.Run(ctx, r)
		return nil
	})
	r.Wait("first State", func(t ToldState) bool { return t.States > 0 })
	return r, stop
}

// PutChange returns a change that puts a node.
func PutChange(n *node.Node, before int64) store.Change {
	return store.Change{Key: n.Key, Node: n, Before: before}
}

// DeleteChange returns a change that deletes a node.
func DeleteChange(key node.Key, before int64) store.Change {
	return store.Change{Key: key, Before: before}
}

// CommitAll commits changes, none of which may be in conflict, and returns their versions.
func CommitAll(tb testing.TB, s store.Store, changes ...store.Change) []int64 {
	tb.Helper()
	outcomes := must.Get(s.Commit(tb.Context(), changes))(tb)
	if len(outcomes) != len(changes) {
		tb.Fatalf("%d outcomes of %d changes", len(outcomes), len(changes))
	}
	versions := make([]int64, len(outcomes))
	for i, o := range outcomes {
		if o.Conflict {
			tb.Fatalf("change %d is in conflict", i)
		}
		versions[i] = o.Version
	}
	return versions
}

// Test tests a kind of store. It calls open with the same subtest whenever it needs a
// store with the same data, after the Run of the one before has ended, and for every
// subtest with no data at first.
func Test(t *testing.T, open func(t *testing.T) store.Store) {
	t.Run("Versions", func(t *testing.T) { testVersions(t, open(t)) })
	t.Run("Conflicts", func(t *testing.T) { testConflicts(t, open(t)) })
	t.Run("Batch", func(t *testing.T) { testBatch(t, open(t)) })
	t.Run("Again", func(t *testing.T) { testAgain(t, open) })
}

func testVersions(t *testing.T, s store.Store) {
	r, _ := StartStore(t, s)
	if told := r.Told(); len(told.Nodes) != 0 || told.Complete {
		t.Errorf("a new store tells of %d nodes, complete: %v", len(told.Nodes), told.Complete)
	}
	if outcomes, err := s.Commit(t.Context(), nil); err != nil || len(outcomes) != 0 {
		t.Errorf("no changes: %v, %v", outcomes, err)
	}
	a, b := NewNode(1, 1, 7), NewNode(1, 1, 8)
	first := CommitAll(t, s, PutChange(a, 0))[0]
	second := CommitAll(t, s, PutChange(b, first))[0]
	deleted := CommitAll(t, s, DeleteChange(a.Key, second))[0]
	third := CommitAll(t, s, PutChange(a, 0))[0]
	if versions := []int64{0, first, second, deleted, third}; !slices.IsSorted(versions) || len(slices.Compact(versions)) != 5 {
		t.Errorf("versions do not grow: %d", []int64{0, first, second, deleted, third})
	}
	if _, err := s.Commit(t.Context(), []store.Change{PutChange(NewNode(1, 2, 7), 0), DeleteChange(a.Key, third)}); err != nil {
		t.Error(err)
	}
}

func testConflicts(t *testing.T, s store.Store) {
	StartStore(t, s)
	a, b, c := NewNode(1, 1, 7), NewNode(1, 2, 7), NewNode(1, 3, 7)
	versions := CommitAll(t, s, PutChange(a, 0), PutChange(b, 0))
	changes := []store.Change{PutChange(a, 0), PutChange(b, versions[1]), DeleteChange(c.Key, versions[1])}
	outcomes := must.Get(s.Commit(t.Context(), changes))(t)
	if o := outcomes[0]; !o.Conflict {
		t.Errorf("put of a key that is there: %+v", o)
	}
	if o := outcomes[1]; o.Conflict || o.Version <= versions[1] {
		t.Errorf("put beside conflicts: %+v", o)
	}
	if o := outcomes[2]; !o.Conflict {
		t.Errorf("deletion of a key that is not there: %+v", o)
	}
	outcomes = must.Get(s.Commit(t.Context(), []store.Change{DeleteChange(a.Key, 0), DeleteChange(b.Key, versions[1])}))(t)
	for i, o := range outcomes {
		if !o.Conflict {
			t.Errorf("deletion %d of an old version: %+v", i, o)
		}
	}
	CommitAll(t, s, DeleteChange(a.Key, versions[0]))
}

func testBatch(t *testing.T, s store.Store) {
	StartStore(t, s)
	const size, taken = 1000, 37 // every so many keys are there already
	changes, before := make([]store.Change, size), make(map[int]int64)
	for i := range changes {
		n := NewNode(i%10, i, uint64(1+i%3))
		changes[i] = PutChange(n, 0)
		if i%taken == 0 {
			before[i] = CommitAll(t, s, PutChange(n, 0))[0]
		}
	}
	outcomes := must.Get(s.Commit(t.Context(), changes))(t)
	for i, o := range outcomes {
		if o.Conflict != (i%taken == 0) || o.Conflict != (o.Version == 0) {
			t.Fatalf("change %d: %+v", i, o)
		}
		changes[i] = DeleteChange(changes[i].Key, cmp.Or(o.Version, before[i]))
	}
	CommitAll(t, s, changes...)
}

func testAgain(t *testing.T, open func(*testing.T) store.Store) {
	s := open(t)
	_, stop := StartStore(t, s)
	want := make(map[node.Key]store.VersionedNode)
	for i := range 20 {
		n := NewNode(1, i, 7)
		version := CommitAll(t, s, PutChange(n, 0))[0]
		if i%3 == 0 {
			CommitAll(t, s, DeleteChange(n.Key, version))
			continue
		}
		want[n.Key] = store.VersionedNode{Node: n, Version: version}
	}
	stop()

	s = open(t)
	r, _ := StartStore(t, s)
	told := r.Told()
	for key, v := range want {
		got, ok := told.Nodes[key]
		if !ok {
			t.Errorf("%v is lost", key)
			continue
		}
		if string(got.Node.AppendStored(nil)) != string(v.Node.AppendStored(nil)) {
			t.Errorf("node is %+v, want %+v", got.Node, v.Node)
		}
		moved := *v.Node
		moved.Stream++
		CommitAll(t, s, PutChange(&moved, got.Version))
	}
	if len(told.Nodes) != len(want) {
		t.Errorf("there are %d nodes, want %d", len(told.Nodes), len(want))
	}
}
