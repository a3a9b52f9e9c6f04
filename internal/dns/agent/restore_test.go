package agent_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// partDisk is a store with one catalog, whose parts it reads when the test says so.
type partDisk struct {
	lastUp time.Time
	parts  []part

	mu    sync.Mutex
	loads int // guarded by mu
}

// part is some services, after which the disk hangs until more is closed.
type part struct {
	services []packed.Service
	more     chan struct{}
}

// newPartDisk returns a store with parts of one service each.
func newPartDisk(services ...*federation.Service) *partDisk {
	d := &partDisk{lastUp: time.Now()}
	for _, s := range services {
		d.parts = append(d.parts, part{[]packed.Service{packed.PackService(s)}, make(chan struct{})})
	}
	return d
}

// next lets the disk go on after the i-th part, and waits for what comes of it.
func (d *partDisk) next(i int) {
	close(d.parts[i].more)
	synctest.Wait()
}

func (*partDisk) Check(path string) (string, error)      { return path, nil }
func (*partDisk) Save(string, *snapshot.Snapshot) error  { return nil }
func (*partDisk) SetAside(string) (name string, _ error) { return "", fs.ErrNotExist }

func (d *partDisk) Load(_ string, o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
	d.mu.Lock()
	d.loads++
	d.mu.Unlock()
	for _, p := range d.parts {
		if !o.Part(&snapshot.Snapshot{Owner: o.Owner, LastUp: d.lastUp, Saved: d.lastUp, Services: p.services}) {
			return nil, snapshot.ErrStopped
		}
		<-p.more
	}
	return &snapshot.Snapshot{Owner: o.Owner, LastUp: d.lastUp, Saved: d.lastUp}, nil
}

// restoredNames are those that restored looks up: of three services, and of none.
var restoredNames = []string{"a.fed.example", "b.fed.example", "c.fed.example", "nope.fed.example"}

// restored is what the block says of restoredNames.
func restored(b *agent.Block) (all []string) {
	for _, name := range restoredNames {
		all = append(all, look(b, name))
	}
	return all
}

// restoring starts an agent on a disk with the services a, b and c.
func restoring(t *testing.T) (*testAgent, *partDisk) {
	t.Helper()
	w := newTestAgent(t)
	d := newPartDisk(services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"), services.At("c.fed.example", "192.0.2.3"))
	w.store = d
	w.start()
	return w, d
}

// A catalog is restored in parts: a name is answered as soon as it is there, and one
// that is not is not denied before the end, whatever is asked for.
func TestRestoredPartly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, d := restoring(t)
		b := w.attach(w.block(1, w.kept("catalog")))
		synctest.Wait()
		for i, want := range [][]string{
			{"192.0.2.1 30 stale", "SERVFAIL", "SERVFAIL", "SERVFAIL"},
			{"192.0.2.1 30 stale", "192.0.2.2 30 stale", "SERVFAIL", "SERVFAIL"},
			{"192.0.2.1 30 stale", "192.0.2.2 30 stale", "192.0.2.3 30 stale", "SERVFAIL"},
		} {
			if d := cmp.Diff(want, restored(b)); d != "" {
				t.Errorf("with %d parts (-want +got):\n%s", i+1, d)
			}
			if _, synced := b.Zone().OriginSynced("fed.example.", time.Now()); synced || b.Ready() {
				t.Errorf("with %d parts, the zone is synced: %t, ready: %t", i+1, synced, b.Ready())
			}
			d.next(i)
		}
		if d := cmp.Diff([]string{"192.0.2.1 30 stale", "192.0.2.2 30 stale", "192.0.2.3 30 stale", "NXDOMAIN"}, restored(b)); d != "" || !b.Ready() {
			t.Errorf("in the end, ready: %t (-want +got):\n%s", b.Ready(), d)
		}
	})
}

// A reload in the midst of a restoration loses nothing, and nothing comes twice: in
// the new block is what was restored before it came and what is after that.
func TestReloadWhileRestoring(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*agent.BlockConfig)
		ttl    string
		loads  int
	}{
		"another TTL": {func(c *agent.BlockConfig) { c.Zone.Owners[0].TTL = 20 }, "20", 1},
		"another zone": {func(c *agent.BlockConfig) {
			c.Zone.Owners[0].Origins = append(c.Zone.Owners[0].Origins, services.FQDN("more.example"))
		}, "60", 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d := restoring(t)
				before := w.attach(w.block(1, w.kept("catalog")))
				synctest.Wait()
				config := w.block(2, w.kept("catalog"))
				tc.change(&config)
				after := w.attach(config)
				synctest.Wait()
				stale := min(tc.ttl, "30") + " stale"
				want := []string{"192.0.2.1 " + stale, "SERVFAIL", "SERVFAIL", "SERVFAIL"}
				if diff := cmp.Diff(want, restored(after)); diff != "" {
					t.Errorf("when the block has come (-want +got):\n%s", diff)
				}
				d.next(0)
				want[1] = "192.0.2.2 " + stale
				if diff := cmp.Diff(want, restored(after)); diff != "" {
					t.Errorf("with both blocks (-want +got):\n%s", diff)
				}
				w.agent.Detach(before)
				synctest.Wait()
				if diff := cmp.Diff(want, restored(after)); diff != "" {
					t.Errorf("when the reload is over (-want +got):\n%s", diff)
				}
				d.next(1)
				d.next(2)
				want[2], want[3] = "192.0.2.3 "+stale, "NXDOMAIN"
				if diff := cmp.Diff(want, restored(after)); diff != "" {
					t.Errorf("in the end (-want +got):\n%s", diff)
				}
				s := w.agent.OwnerReports(time.Now())[0]
				if s.Services != 3 || s.Stale != 3 || !s.Known || len(s.Conflicts) > 0 || d.loads != tc.loads {
					t.Errorf("%d services, %d stale, known: %t, conflicts %v, %d loads", s.Services, s.Stale, s.Known, s.Conflicts, d.loads)
				}

				w.Owner(ownerAddress, services.At("a.fed.example", "192.0.2.1"), services.At("c.fed.example", "192.0.2.4"))
				time.Sleep(time.Minute)
				want = []string{"192.0.2.1 " + tc.ttl, "NXDOMAIN", "192.0.2.4 " + tc.ttl, "NXDOMAIN"}
				if diff := cmp.Diff(want, restored(after)); diff != "" || w.state() != "synced 2/0" {
					t.Errorf("the owner is %s (-want +got):\n%s", w.state(), diff)
				}
			})
		})
	}
}

// A restart with a configuration that may publish names which the one before has left out or
// refused denies none of them until the owner is synced, also if it is the second or third one
// since. What the one before has published is answered meanwhile.
func TestRestartImportsMore(t *testing.T) {
	t.Parallel()
	const denied, unknown = "NXDOMAIN", "SERVFAIL"
	type start struct {
		names string // that the block imports; none: all
		api   string // what is said of a name that the first process has left out
		nope  string
	}
	for name, starts := range map[string][]start{
		"nothing, narrower": {{"web.fed.example", denied, denied}, {"", unknown, unknown}, {"web.fed.example", denied, denied}},
		"the same":          {{"web.fed.example", denied, denied}, {"web.fed.example", denied, denied}},
		"all, and back":     {{"", unknown, unknown}, {"web.fed.example", denied, denied}},
		"another":           {{"api.fed.example", unknown, unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				file := filepath.Join(t.TempDir(), "catalog")
				block := func(names string) agent.BlockConfig {
					c := w.importing(1, names)
					c.Owners[0].Subscription.File = file
					return c
				}
				published := []*federation.Service{services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2")}
				_, stop := w.Owner(ownerAddress, published...)
				first := "web.fed.example"
				if strings.HasPrefix(name, "nothing") {
					first = ""
				}
				b := w.attach(block(first))
				time.Sleep(time.Minute)
				w.agent.Detach(b)
				stop()

				for i, s := range starts {
					w.start()
					b = w.attach(block(s.names))
					time.Sleep(time.Minute)
					if api, nope := look(b, "api.fed.example"), look(b, "nope.fed.example"); api != s.api || nope != s.nope || !b.Ready() {
						t.Errorf("start %d: api is %s and nope %s, want %s and %s; ready is %v", i, api, nope, s.api, s.nope, b.Ready())
					}
					if web := look(b, "web.fed.example"); web != "192.0.2.1 30 stale" && s.names != "api.fed.example" {
						t.Errorf("start %d: web is %s", i, web)
					}
					w.agent.Detach(b)
				}

				w.Owner(ownerAddress, published...)
				w.start()
				b = w.attach(block(""))
				time.Sleep(time.Minute)
				if api, nope := look(b, "api.fed.example"), look(b, "nope.fed.example"); api != "192.0.2.2 60" || nope != denied {
					t.Errorf("in the end api is %s and nope %s", api, nope)
				}
			})
		})
	}
}
