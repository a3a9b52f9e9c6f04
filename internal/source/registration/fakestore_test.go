package registration_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
)

// cluster is what several owners store their nodes in, without any network.
type cluster struct {
	mu       sync.Mutex
	revision int64
	nodes    map[node.Key]store.VersionedNode
	stores   []*fakeStore
	complete bool
}

func newCluster() *cluster {
	return &cluster{nodes: make(map[node.Key]store.VersionedNode), complete: true}
}

// fakeStore is the cluster as one owner sees it.
type fakeStore struct {
	*cluster

	wake     chan struct{}
	events   []any // store.VersionedNode, store.DeletedKey
	state    bool  // whether a state is to be told before them
	away     bool
	told     bool // whether the watcher knows that it is away
	failures int  // of the next commits: the first half is stored all the same
	echo     bool // whether the watcher is told of what the owner has stored itself
	lag      func() time.Duration
	commits  int
}

// mostCommits are more than any test needs: an owner that writes the same again and again
// gets no further, and the test fails instead of running for ever.
const mostCommits = 10_000

var errFake = errors.New("the store is away")

func (c *cluster) store(echo bool) *fakeStore {
	s := &fakeStore{cluster: c, wake: make(chan struct{}, 1), state: true, echo: echo}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stores = append(c.stores, s)
	return s
}

func (s *fakeStore) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *fakeStore) Run(ctx context.Context, w store.Watcher) {
	s.rouse()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		if s.lag != nil {
			timer := time.NewTimer(s.lag())
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
		s.tell(w)
	}
}

func (s *fakeStore) tell(w store.Watcher) {
	s.mu.Lock()
	away, events, state, all, told, complete := s.away, s.events, s.state, slices.Collect(maps.Values(s.nodes)), s.told, s.complete
	if s.told = away; !away {
		s.events, s.state = nil, false
	}
	s.mu.Unlock()
	switch {
	case away && !told:
		w.SetAway(errFake)
		return
	case away:
		return
	case state:
		w.SetState(all, complete)
	case len(events) > 0:
		for _, event := range events {
			switch event := event.(type) {
			case store.VersionedNode:
				w.ApplyChanges([]store.VersionedNode{event}, nil)
			case store.DeletedKey:
				w.ApplyChanges(nil, []store.DeletedKey{event})
			}
		}
	}
	if told {
		w.SetAway(nil)
	}
}

// setAway has the owner lose the store, or find it again. With gap it misses what
// changes meanwhile.
func (s *fakeStore) setAway(away, gap bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
	if gap {
		s.state, s.events = true, nil
	}
	s.rouse()
}

// fail has the next commits fail.
func (s *fakeStore) fail(commits int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = commits
}

// count returns how often the owner has called Commit.
func (s *fakeStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

func (s *fakeStore) Commit(_ context.Context, changes []store.Change) ([]store.CommitOutcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away || s.commits >= mostCommits {
		return nil, errFake
	}
	s.commits++
	if s.failures > 0 {
		s.failures--
		for _, c := range changes[:len(changes)/2] {
			s.apply(c, nil)
		}
		return nil, errFake
	}
	outcomes := make([]store.CommitOutcome, len(changes))
	for i, c := range changes {
		outcomes[i] = s.apply(c, s)
	}
	return outcomes, nil
}

// apply makes a change, and tells all owners but by of it.
func (c *cluster) apply(change store.Change, by *fakeStore) store.CommitOutcome {
	before := c.nodes[change.Key]
	if before.Version != change.Before {
		return store.CommitOutcome{Conflict: true}
	}
	c.revision++
	var event any
	if change.Node == nil {
		delete(c.nodes, change.Key)
		event = store.DeletedKey{Key: change.Key, Version: c.revision}
	} else {
		// As every store does that keeps bytes.
		parsed, err := node.ParseStored(change.Node.AppendStored(nil))
		if err != nil {
			panic(err)
		}
		v := store.VersionedNode{Node: parsed, Version: c.revision}
		c.nodes[change.Key] = v
		event = v
	}
	for _, s := range c.stores {
		if s != by || s.echo {
			s.events = append(s.events, event)
			s.rouse()
		}
	}
	return store.CommitOutcome{Version: c.revision}
}

// drop loses what the filter names, as the end of a lease does.
func (c *cluster) drop(filter func(*node.Node) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, v := range c.nodes {
		if filter(v.Node) {
			c.apply(store.Change{Key: key, Before: v.Version}, nil)
		}
	}
}

// lose loses everything, as etcd does whose disk is replaced: it counts anew.
func (c *cluster) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.nodes)
	c.revision, c.complete = 0, false
	for _, s := range c.stores {
		s.state, s.events = true, nil
		s.rouse()
	}
}

func (c *cluster) has() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes)
}

// anyLag returns delays from a random source.
func anyLag(random *rand.Rand, most time.Duration) func() time.Duration {
	return func() time.Duration { return time.Duration(random.Int64N(int64(most))) }
}
