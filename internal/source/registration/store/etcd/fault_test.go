package etcd

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/internal/reconnect"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

var (
	outage = flag.Duration("outage", 2*lease, "how long the quorum of etcd is lost; leases last half of the default")
	soak   = flag.Duration("soak", 20*time.Second, "how long random faults are made")
	seed   = flag.Uint64("seed", 0, "of the random faults; 0: another one each time")
)

// needCluster skips what takes long, unless all servers are wanted.
func needCluster(t *testing.T) {
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("needs a cluster of etcd and minutes: run with REAL_SERVERS=required")
	}
	t.Parallel()
}

func startCluster(t *testing.T) []*realserver.Etcd {
	t.Helper()
	return realserver.StartEtcdCluster(t, t.TempDir(), t.TempDir(), t.TempDir())
}

func urls(members []*realserver.Etcd) []string {
	list := make([]string, len(members))
	for i, e := range members {
		list[i] = e.URL
	}
	return list
}

// owner does with a store what a source does: it puts what its streams have and
// the store has not, and deletes what they have not any more.
type owner struct {
	store   *Store
	name    string
	watcher *storetest.Recorder
	streams []uint64

	mu      sync.Mutex
	want    map[node.Key]*node.Node
	cleared map[node.Key]bool // that were ever taken away
}

// newOwner starts an owner with a number, whose streams have its name and no other's.
func newOwner(t *testing.T, prefix string, number int, endpoints ...string) *owner {
	t.Helper()
	return newOwnerWith(t, prefix, number, func(*Config) {}, endpoints...)
}

func newOwnerWith(t *testing.T, prefix string, number int, change func(*Config), endpoints ...string) *owner {
	t.Helper()
	s := newStore(t, func(c *Config) {
		c.Prefix = prefix
		change(c)
	}, endpoints...)
	o := &owner{
		store: s, name: fmt.Sprint("owner", number), streams: []uint64{uint64(10 * number), uint64(10*number + 1)},
		want: make(map[node.Key]*node.Node), cleared: make(map[node.Key]bool),
	}
	o.watcher, _ = storetest.StartStore(t, s)
	return o
}

// register lets one of the streams have a node.
func (o *owner) register(service, number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := storetest.NewNode(service, number, o.streams[number%len(o.streams)])
	n.Owner = o.name
	o.want[n.Key] = n
}

// clear takes a node away.
func (o *owner) clear(service, number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := storetest.NewNode(service, number, 0).Key
	delete(o.want, key)
	o.cleared[key] = true
}

// pending returns what has to be changed in the store for the streams.
func (o *owner) pending() (changes []store.Change) {
	told := o.watcher.Told()
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, n := range o.want {
		if have, ok := told.Nodes[key]; !ok || have.Node.Stream != n.Stream {
			changes = append(changes, storetest.PutChange(n, have.Version))
		}
	}
	for key, have := range told.Nodes {
		if have.Node.Owner == o.name && o.want[key] == nil {
			changes = append(changes, storetest.DeleteChange(key, have.Version))
		}
	}
	return changes
}

// settle commits what is pending until nothing is.
func (o *owner) settle(ctx context.Context) {
	for ctx.Err() == nil {
		changes := o.pending()
		if len(changes) == 0 {
			return
		}
		outcomes, err := o.store.Commit(ctx, changes)
		if err != nil {
			reconnect.WaitFor(ctx, 200*time.Millisecond)
			continue
		}
		for i := range outcomes { // the watch tells of all of them
			for tries := 0; ctx.Err() == nil && tries < 100; tries++ {
				told := o.watcher.Told()
				have := told.Nodes[changes[i].Key]
				if have.Version >= outcomes[i].Version || changes[i].Node == nil && have.Node == nil {
					break
				}
				reconnect.WaitFor(ctx, 10*time.Millisecond)
			}
		}
	}
}

// owners are several that share an etcd.
type owners []*owner

// newOwners starts three owners, with 100 nodes each, and waits until all see all.
func newOwners(t *testing.T, endpoints ...string) owners {
	t.Helper()
	return newOwnersWith(t, func(*Config) {}, endpoints...)
}

func newOwnersWith(t *testing.T, change func(*Config), endpoints ...string) owners {
	t.Helper()
	all := make(owners, 3)
	for i := range all {
		all[i] = newOwnerWith(t, "/"+t.Name(), i+1, change, endpoints...)
	}
	all.fill(t)
	return all
}

const filled = 100 // nodes of each owner

func (all owners) fill(t *testing.T) {
	t.Helper()
	for i, o := range all {
		for number := range filled {
			o.register(i+1, number)
		}
		o.settle(t.Context())
	}
	for _, o := range all {
		o.watcher.Wait("nodes of all owners", has(filled*len(all)))
	}
}

// busy registers and clears nodes at all owners while f runs.
func (all owners) busy(t *testing.T, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i, o := range all {
		wg.Go(func() {
			for random := rand.New(rand.NewPCG(uint64(i), 1)); ctx.Err() == nil; reconnect.WaitFor(ctx, 50*time.Millisecond) {
				if number := filled + random.IntN(filled); random.IntN(2) == 0 {
					o.register(i+1, number)
				} else {
					o.clear(i+1, number)
				}
				o.settle(ctx)
			}
		})
	}
	f()
	cancel()
	wg.Wait()
}

// agree checks that in the end all owners are told what their streams have, and that
// nobody was told of a withdrawal that was none, but for those owners whose leases were lost.
func (all owners) agree(t *testing.T, cut ...*owner) {
	t.Helper()
	want := make(map[node.Key]uint64)
	cleared := make(map[node.Key]bool)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, o := range all {
		o.settle(ctx)
		for key, n := range o.want {
			want[key] = n.Stream
		}
		for key := range o.cleared {
			cleared[key] = true
		}
	}
	for i, o := range all {
		o.watcher.Wait(fmt.Sprintf("owner %d of %d nodes", i, len(want)), func(told storetest.ToldState) bool {
			if len(told.Nodes) != len(want) || told.Away != nil {
				return false
			}
			for key, have := range told.Nodes {
				if want[key] != have.Node.Stream {
					return false
				}
			}
			return true
		})
		lost := make(map[node.Key]bool)
		for _, b := range cut {
			for key := range b.want {
				lost[key] = true
			}
		}
		for _, key := range o.watcher.Told().Lost {
			if !cleared[key] && !lost[key] {
				t.Errorf("owner %d was told that %v is gone", i, key)
				break
			}
		}
	}
}

// leader returns the member that leads, once there is one.
func leader(t *testing.T, members []*realserver.Etcd) (first *realserver.Etcd) {
	t.Helper()
	await.Until(t, patience, func() string {
		for _, e := range members {
			if leads, err := e.Leads(t.Context()); err == nil && leads {
				first = e
				return ""
			}
		}
		return "no member leads"
	})
	return first
}

func restart(t *testing.T, members ...*realserver.Etcd) {
	t.Helper()
	for _, e := range members {
		must.Do(t, e.Launch())
	}
	for _, e := range members {
		must.Do(t, e.Await(t.Context()))
	}
}

// present checks that no owner was told that etcd was away.
func (all owners) present(t *testing.T) {
	t.Helper()
	for i, o := range all {
		if told := o.watcher.Told(); told.Awayed != 0 {
			t.Errorf("owner %d was told %d times that etcd is away", i, told.Awayed)
		}
	}
}

func TestLeaderKilled(t *testing.T) {
	needCluster(t)
	members := startCluster(t)
	all := newOwners(t, urls(members)...)
	all.busy(t, func() {
		for range 2 {
			first := leader(t, members)
			first.Kill()
			reconnect.WaitFor(t.Context(), lease/2)
			restart(t, first)
		}
	})
	all.agree(t)
	all.present(t)
}

// TestLeaderStopped stops a leader without an end of its connections, so that streams
// to it hang. It is not stopped for as long as leases have left: when it goes on it may still
// take itself for the leader, and end leases that have ended by its own clock.
func TestLeaderStopped(t *testing.T) {
	needCluster(t)
	const long = 3 * lease
	members := startCluster(t)
	all := newOwnersWith(t, func(c *Config) { c.Lease = long }, urls(members)...)
	first := leader(t, members)
	all.busy(t, func() {
		first.Signal(syscall.SIGSTOP)
		reconnect.WaitFor(t.Context(), long*2/3-2*time.Second)
		first.Signal(syscall.SIGCONT)
		reconnect.WaitFor(t.Context(), long/2)
	})
	all.agree(t)
}

func TestQuorumLost(t *testing.T) {
	needCluster(t)
	members := startCluster(t)
	all := newOwners(t, urls(members)...)
	all.busy(t, func() {
		members[0].Kill()
		members[1].Kill()
		for _, o := range all {
			o.watcher.Wait("etcd is away", func(told storetest.ToldState) bool { return told.Away != nil })
		}
		if _, err := all[0].store.Commit(t.Context(), puts(9, 1, 7)); err == nil {
			t.Error("a change is stored without a quorum")
		}
		reconnect.WaitFor(t.Context(), *outage)
		restart(t, members[0], members[1])
	})
	all.agree(t)
	for i, o := range all {
		if told := o.watcher.Told(); told.Awayed != 1 {
			t.Errorf("owner %d was told %d times that etcd is away", i, told.Awayed)
		}
	}
}

// TestCompaction cuts a watcher off, and compacts what it has missed.
func TestCompaction(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	gate := realserver.StartGate(t, strings.TrimPrefix(e.URL, "http://"))
	// The leases of the one that is cut off last for longer than that.
	long := func(c *Config) { c.Lease = 2 * patience }
	near := newOwnerWith(t, "/"+t.Name(), 1, long, e.URL)
	far := newOwnerWith(t, "/"+t.Name(), 2, long, "http://"+gate.Address)
	all := owners{near, far}
	all.fill(t)
	gate.Refuse(true)
	gate.Cut()
	for number := range filled {
		near.register(1, filled+number)
		if number%2 == 0 {
			near.clear(1, number)
		}
		near.settle(t.Context())
	}
	must.Do(t, e.Compact(t.Context()))
	gate.Refuse(false)
	all.agree(t)
	if told := far.watcher.Told(); told.States < 2 {
		t.Errorf("%d states after a compaction", told.States)
	}
}

// TestPartition cuts an owner off from etcd for longer than its leases last: what it has
// is lost, and there again in the end; what others have is never lost to anybody.
func TestPartition(t *testing.T) {
	needCluster(t)
	for _, how := range []string{"refused", "stalled"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			members := startCluster(t)
			gates := make([]*realserver.Gate, len(members))
			behind := make([]string, len(members))
			for i, e := range members {
				gates[i] = realserver.StartGate(t, strings.TrimPrefix(e.URL, "http://"))
				behind[i] = "http://" + gates[i].Address
			}
			all := owners{
				newOwner(t, "/"+t.Name(), 1, behind...),
				newOwner(t, "/"+t.Name(), 2, urls(members)...),
			}
			all.fill(t)
			cut := func(on bool) {
				for _, g := range gates {
					if how == "stalled" {
						g.Stall(on)
						continue
					}
					g.Refuse(on)
					g.Cut()
				}
			}
			all.busy(t, func() {
				cut(true)
				all[1].watcher.Wait("leases end", func(told storetest.ToldState) bool { return len(told.Lost) >= filled })
				all[0].watcher.Wait("etcd is away", func(told storetest.ToldState) bool { return told.Away != nil })
				cut(false)
				all[0].watcher.Wait("etcd is back", func(told storetest.ToldState) bool { return told.Away == nil })
			})
			all.agree(t, all[0])
			if told := all[1].watcher.Told(); told.Awayed != 0 {
				t.Error("the other owner was told that etcd is away")
			}
		})
	}
}

// TestDataLost gives etcd an empty disk.
func TestDataLost(t *testing.T) {
	t.Parallel()
	e := realserver.StartEtcd(t)
	all := owners{newOwner(t, "/"+t.Name(), 1, e.URL), newOwner(t, "/"+t.Name(), 2, e.URL)}
	all.fill(t)
	empty := t.TempDir()
	must.Do(t, e.Restore(t.Context(), empty))
	all.agree(t, all...)
	for i, o := range all {
		if told := o.watcher.Told(); told.Complete {
			t.Errorf("owner %d: an etcd without data is complete", i)
		}
	}
}

// TestSoak makes random faults.
func TestSoak(t *testing.T) {
	needCluster(t)
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 0))
	members := startCluster(t)
	gates := make([]*realserver.Gate, len(members))
	behind := make([]string, len(members))
	for i, e := range members {
		gates[i] = realserver.StartGate(t, strings.TrimPrefix(e.URL, "http://"))
		behind[i] = "http://" + gates[i].Address
	}
	all := newOwners(t, behind...)
	faults := []func(i int, d time.Duration){
		func(i int, d time.Duration) {
			members[i].Kill()
			reconnect.WaitFor(t.Context(), d)
			restart(t, members[i])
		},
		func(i int, d time.Duration) {
			other := (i + 1) % len(members)
			members[i].Kill()
			members[other].Kill()
			reconnect.WaitFor(t.Context(), d)
			restart(t, members[i], members[other])
		},
		func(i int, d time.Duration) {
			members[i].Signal(syscall.SIGSTOP)
			reconnect.WaitFor(t.Context(), d/2) // see TestLeaderStopped
			members[i].Signal(syscall.SIGCONT)
		},
		func(i int, d time.Duration) {
			gates[i].Stall(true)
			reconnect.WaitFor(t.Context(), d)
			gates[i].Stall(false)
		},
		func(i int, _ time.Duration) {
			gates[i].Cut()
			_ = members[i].Compact(t.Context())
		},
		func(_ int, d time.Duration) { // shorter than the leases have left in any case
			for _, g := range gates {
				g.Refuse(true)
				g.Cut()
			}
			reconnect.WaitFor(t.Context(), min(d, lease/4))
			for _, g := range gates {
				g.Refuse(false)
			}
		},
	}
	all.busy(t, func() {
		for end := time.Now().Add(*soak); time.Now().Before(end); {
			fault, member, d := random.IntN(len(faults)), random.IntN(len(members)), time.Duration(random.Int64N(int64(lease)))
			t.Logf("fault %d at member %d for %s", fault, member, d)
			faults[fault](member, d)
			reconnect.WaitFor(t.Context(), time.Duration(random.Int64N(int64(lease/4))))
		}
	})
	all.agree(t)
}
