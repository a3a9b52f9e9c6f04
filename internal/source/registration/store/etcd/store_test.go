package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// lease is that of the stores of tests: longer than an election and a busy machine take.
const lease = 10 * time.Second

const patience = time.Minute // bounds each wait, on a machine that is busy

// newStore returns a store that is quicker than usual to see what has become of etcd.
func newStore(tb testing.TB, change func(*Config), endpoints ...string) *Store {
	tb.Helper()
	config := Config{
		Endpoints: endpoints, Prefix: "/" + tb.Name(), Lease: lease,
		Logger: slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	if change != nil {
		change(&config)
	}
	s := New(config)
	s.timing.probe, s.timing.retry = time.Second, 200*time.Millisecond
	return s
}

// patient has stores take an etcd that does not answer for slow, as a machine is that is busy.
func patient(stores ...*Store) {
	for _, s := range stores {
		s.timing.patience, s.timing.call = patience, patience
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	storetest.Test(t, func(t *testing.T) store.Store {
		s := newStore(t, nil, e.URL)
		patient(s)
		return s
	})
}

func TestSharedByOwners(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	a := newStore(t, nil, e.URL)
	b := newStore(t, nil, e.URL)
	patient(a, b)
	ra, _ := storetest.StartStore(t, a)
	rb, _ := storetest.StartStore(t, b)
	n := storetest.NewNode(1, 1, 7)
	is := func(stream uint64, version int64) func(storetest.ToldState) bool {
		return func(told storetest.ToldState) bool {
			v, ok := told.Nodes[n.Key]
			return ok && v.Node.Stream == stream && v.Version == version
		}
	}
	version := storetest.CommitAll(t, a, storetest.PutChange(n, 0))[0]
	rb.Wait("node of the other owner", is(7, version))
	moved := *n
	moved.Stream = 8
	version = storetest.CommitAll(t, b, storetest.PutChange(&moved, version))[0]
	ra.Wait("takeover", is(8, version))

	storetest.CommitAll(t, b, storetest.DeleteChange(n.Key, version))
	for _, r := range []*storetest.Recorder{ra, rb} {
		r.Wait("deletion", func(told storetest.ToldState) bool { return len(told.Nodes) == 0 })
	}
	if told := ra.Told(); told.Awayed != 0 || told.States != 1 || len(told.Lost) != 1 {
		t.Errorf("in a quiet etcd: away %d times, %d states, lost %v", told.Awayed, told.States, told.Lost)
	}
}

// nodes returns n nodes of one stream, and the changes that put them.
func puts(service, n int, stream uint64) []store.Change {
	changes := make([]store.Change, n)
	for i := range changes {
		changes[i] = storetest.PutChange(storetest.NewNode(service, i, stream), 0)
	}
	return changes
}

// has is the condition that there are so many nodes, and the store is there.
func has(n int) func(storetest.ToldState) bool {
	return func(told storetest.ToldState) bool { return len(told.Nodes) == n && told.Away == nil }
}

// TestOwnerDies checks that what an owner leaves behind goes with its leases, not
// earlier, and that what has moved to another owner stays.
func TestOwnerDies(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	a := newStore(t, nil, e.URL)
	b := newStore(t, nil, e.URL)
	patient(a, b)
	_, die := storetest.StartStore(t, a)
	rb, _ := storetest.StartStore(t, b)
	versions := storetest.CommitAll(t, a, puts(1, 5, 7)...)
	rb.Wait("all", has(5))
	died := time.Now()
	die()
	taken := storetest.NewNode(1, 0, 9)
	storetest.CommitAll(t, b, storetest.PutChange(taken, versions[0]))
	rb.Wait("those left behind are gone", has(1))
	if after := time.Since(died); after < lease*2/3-time.Second {
		t.Errorf("nodes are gone %s after the end of their owner, with leases of %s", after, lease)
	}
	if told := rb.Told(); told.Nodes[taken.Key].Node == nil || told.States != 1 || told.Awayed != 0 {
		t.Errorf("the node that has moved: %v; %d states, away %d times", told.Nodes[taken.Key], told.States, told.Awayed)
	}
}

// TestCrashLoop checks that what an owner has left behind is there for a lease, and not for longer,
// although owners of its name start again and again, each of which would wait for its providers.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	short := func(c *Config) { c.Lease = 4 * time.Second }
	first := newStore(t, short, e.URL)
	_, die := storetest.StartStore(t, first)
	storetest.CommitAll(t, first, puts(1, 3, 7)...)
	die()
	died := time.Now()
	for left := 3; left > 0; {
		if time.Since(died) > patience {
			t.Fatalf("%d nodes are there %s after the end of their owner, with leases of 4s", left, patience)
		}
		s := newStore(t, short, e.URL)
		patient(s)
		r, stop := storetest.StartStore(t, s)
		left = len(r.Told().Nodes)
		reconnect.WaitFor(t.Context(), 2*s.timing.keep) // it renews its leases
		stop()
	}
	if after := time.Since(died); after < 2*time.Second {
		t.Errorf("nodes are gone %s after the end of their owner, with leases of 4s", after)
	}
}

// TestBegun checks that an etcd is complete when an owner has listened for a lease.
func TestBegun(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	short := func(c *Config) { c.Lease = minLease }
	a := newStore(t, short, e.URL)
	r, stop := storetest.StartStore(t, a)
	if r.Told().Complete {
		t.Error("a new etcd is complete")
	}
	await.Until(t, patience, func() string {
		value := must.Get(e.Get(t.Context(), a.markerKey()))(t)
		if value == "" {
			return "the marker is not there"
		}
		return ""
	})
	stop()
	r, _ = storetest.StartStore(t, newStore(t, short, e.URL))
	if !r.Told().Complete {
		t.Error("an etcd that has been used is not complete")
	}
}

// TestBusyWatch checks that an etcd in which much changes is not taken for one whose data has
// been replaced: the watch tells of changes while the answer to a probe is on its way.
func TestBusyWatch(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	s := newStore(t, nil, e.URL)
	patient(s)
	s.timing.probe = 50 * time.Millisecond
	r, _ := storetest.StartStore(t, s)
	n := storetest.NewNode(1, 1, 7)
	version := storetest.CommitAll(t, s, storetest.PutChange(n, 0))[0]
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		version = storetest.CommitAll(t, s, storetest.PutChange(n, version))[0]
	}
	r.Wait("the last version", func(told storetest.ToldState) bool { return told.Nodes[n.Key].Version == version })
	if told := r.Told(); told.States != 1 {
		t.Errorf("%d lists of all that etcd has", told.States)
	}
}

// TestLeaseLost checks that every owner is told what has gone with a lease that is lost while
// its owner lives, and that a new one takes its place.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	s := newStore(t, nil, e.URL)
	r, _ := storetest.StartStore(t, s)
	other, _ := storetest.StartStore(t, newStore(t, nil, e.URL))
	changes := puts(1, 200, 7)
	storetest.CommitAll(t, s, changes...)
	s.mu.Lock()
	lost, client := s.lease.id, s.client.Load()
	s.mu.Unlock()
	must.Get(client.Revoke(t.Context(), lost))(t)
	if _, err := s.Commit(t.Context(), changes); !errors.Is(err, rpctypes.ErrLeaseNotFound) { // at once: the store does not know yet that the lease is lost
		t.Errorf("a commit with a lost lease: %v", err)
	}
	storetest.CommitAll(t, s, changes...)
	for _, r := range []*storetest.Recorder{r, other} {
		r.Wait("the loss, and what was put again", func(told storetest.ToldState) bool {
			return len(told.Lost) == 200 && len(told.Nodes) == 200
		})
	}
	s.mu.Lock()
	again := s.lease.id
	s.mu.Unlock()
	must.Get(client.Revoke(t.Context(), again))(t)
	r.Wait("the loss", has(0))
	await.Until(t, patience, func() string {
		if s.currentLease().id != clientv3.NoLease {
			return "the store has not noticed by itself that the lease is lost"
		}
		return ""
	})
	storetest.CommitAll(t, s, changes...)
	other.Wait("what was put again", has(200))
}

// TestForeignKeys checks that what is not a node of ours is ignored and left alone.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	s := newStore(t, nil, e.URL)
	good := storetest.NewNode(1, 1, 7)
	foreign := map[string]string{
		s.nodesPrefix() + "garbage":                        "garbage",
		s.nodeKey(storetest.NewNode(1, 2, 7).Key):          "garbage",
		s.nodeKey(storetest.NewNode(1, 3, 7).Key):          string(good.AppendStored(nil)), // of another key
		s.config.Prefix + "/nodesbeside/x":                 "garbage",
		fmt.Sprintf("%sweb.example/\xff", s.nodesPrefix()): "",
	}
	must.Do(t, e.Put(t.Context(), foreign))
	r, _ := storetest.StartStore(t, s)
	storetest.CommitAll(t, s, storetest.PutChange(good, 0))
	must.Do(t, e.Put(t.Context(), map[string]string{s.nodesPrefix() + "later": "garbage"}))
	storetest.CommitAll(t, s, storetest.PutChange(storetest.NewNode(1, 4, 7), 0))
	r.Wait("the nodes", has(2))
	for key, want := range foreign {
		if got, err := e.Get(t.Context(), key); got != want || err != nil {
			t.Errorf("%q is %q, %v, want %q", key, got, err, want)
		}
	}
}
