package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// testNode returns a node of its own for each number.
func testNode(t testing.TB, number int, description string) *node.Node {
	t.Helper()
	service := must.Get(federation.ParseFQDN(fmt.Sprintf("svc-%d.example", number/10)))(t)
	uri := must.Get(node.ParseURI(fmt.Sprintf("https://10.%d.%d.%d:8443", number>>16, number>>8&255, number&255), netip.Addr{}))(t)
	id := must.Get(federation.ParseID("spiffe://west.example/ns/shop/sa/web"))(t)
	return &node.Node{
		Key: node.Key{Service: service, URI: uri}, Description: description, TTL: 30 * time.Second,
		Provider: id, Rule: "pods", Owner: "owner-1", Stream: 7, Since: time.Unix(1_700_000_000, 0).UTC(),
	}
}

// state is what a watcher is told.
type state struct {
	nodes    map[string]int64 // versions, by textOf
	complete bool
}

var _ store.Store = (*Store)(nil)

// textOf returns what tells nodes apart in these tests.
func textOf(n *node.Node) string { return n.URI.String() + " " + n.Description }

func versions(nodes []store.Versioned) map[string]int64 {
	texts := map[string]int64{}
	for _, n := range nodes {
		texts[textOf(n.Node)] = n.Version
	}
	return texts
}

// watcher keeps what it is told.
type watcher struct {
	states chan state
	aways  chan error
}

func (w *watcher) State(nodes []store.Versioned, complete bool) {
	w.states <- state{versions(nodes), complete}
}
func (w *watcher) Changed([]store.Versioned, []store.Gone) {}
func (*watcher) Left(string, int64)                        {}
func (w *watcher) Away(reason error)                       { w.aways <- reason }

// running is a store that runs.
type running struct {
	*Store
	*watcher

	stop func() // waits for its end
}

// run starts a store, whose state it does not wait for.
func run(t testing.TB, c Config) running {
	t.Helper()
	s := New(c)
	w := &watcher{make(chan state, 10), make(chan error, 10)}
	return running{s, w, must.Run(t, func(ctx context.Context) error {
		s.Run(ctx, w)
		return nil
	})}
}

// started is run which checks what the watcher is told first.
func started(t testing.TB, c Config, want state) running {
	t.Helper()
	r := run(t, c)
	if diff := cmp.Diff(want, <-r.states, cmp.AllowUnexported(state{})); diff != "" {
		t.Errorf("the state, -want +got:\n%s", diff)
	}
	return r
}

func configIn(t testing.TB) Config {
	return Config{Path: filepath.Join(t.TempDir(), "nodes"), Lifetime: time.Hour, Convergence: 2 * time.Minute}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	must.Do(t, os.WriteFile(to, must.Get(os.ReadFile(from))(t), 0o600))
}

// TestOlder has a copy of the file put back: whether something was stored since, or it is
// of another file, or nothing is known of it.
func TestOlder(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil    func(t *testing.T, c Config, old string)
		complete bool
	}{
		"as it was": {func(*testing.T, Config, string) {}, true},
		"the copy":  {func(t *testing.T, c Config, old string) { copyFile(t, old, c.Path) }, false},
		"another file": {func(t *testing.T, c Config, _ string) {
			other := configIn(t)
			r := started(t, other, state{map[string]int64{}, false})
			for i := range 20 {
				storetest.Commit(t, r, storetest.Put(testNode(t, i, "other"), 0))
			}
			time.Sleep(5 * time.Minute)
			r.stop()
			copyFile(t, other.Path, c.Path)
		}, false},
		"without the lock": {func(t *testing.T, c Config, _ string) { must.Do(t, os.Remove(c.Path+lockSuffix)) }, false},
		"a damaged lock":   {func(t *testing.T, c Config, _ string) { must.Do(t, os.Truncate(c.Path+lockSuffix, 10)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := configIn(t)
				r := started(t, c, state{map[string]int64{}, false})
				storetest.Commit(t, r, storetest.Put(testNode(t, 0, "a"), 0))
				time.Sleep(5 * time.Minute)
				r.stop()
				old := filepath.Join(t.TempDir(), "copy")
				copyFile(t, c.Path, old)
				r = run(t, c)
				if s := <-r.states; !s.complete {
					t.Error("a file is not complete that nobody has touched")
				}
				for i := range 9 {
					storetest.Commit(t, r, storetest.Put(testNode(t, 1+i, "b"), 0))
				}
				r.stop()
				tt.spoil(t, c, old)
				r = run(t, c)
				if s := <-r.states; s.complete != tt.complete {
					t.Errorf("the file is complete: %t", s.complete)
				}
				time.Sleep(5 * time.Minute)
				r.stop()
				r = run(t, c)
				if s := <-r.states; !s.complete {
					t.Error("the file is not complete when the owner has converged")
				}
			})
		})
	}
}

func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		r := started(t, c, state{map[string]int64{}, false})
		a, b := testNode(t, 1, "a"), testNode(t, 2, "b")
		if diff := cmp.Diff([]int64{1, 2}, storetest.Commit(t, r, storetest.Put(a, 0), storetest.Put(b, 0))); diff != "" {
			t.Error(diff)
		}
		outcomes, err := r.Commit(t.Context(), []store.Change{storetest.Put(a, 0), storetest.Put(testNode(t, 2, "c"), 2), {Key: testNode(t, 3, "").Key, Before: 9}})
		if diff := cmp.Diff([]store.Outcome{{Version: 1, Conflict: true}, {Version: 3}, {Conflict: true}}, outcomes); err != nil || diff != "" {
			t.Errorf("%v, -want +got:\n%s", err, diff)
		}
		storetest.Commit(t, r, store.Change{Key: a.Key, Before: 1})
		r.stop()
		if _, err := r.Commit(t.Context(), []store.Change{storetest.Put(a, 0)}); !errors.Is(err, errNotOpen) {
			t.Errorf("a commit after the end: %v", err)
		}

		want := map[string]int64{"https://10.0.0.2:8443 c": 3}
		r = started(t, c, state{want, false}) // as the convergence was not over
		time.Sleep(4 * time.Minute)
		r.stop()
		r = started(t, c, state{want, true})
		if diff := cmp.Diff([]int64{5}, storetest.Commit(t, r, storetest.Put(a, 0))); diff != "" {
			t.Errorf("the version after a deletion that was the last: %s", diff)
		}
		if info, err := os.Stat(c.Path); err != nil || info.Mode() != mode {
			t.Errorf("the file is %v, %v", info.Mode(), err)
		}
	})
}

// TestLifetime has an owner that is idle for longer than the lifetime, and then one that
// is away for so long.
func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		r := started(t, c, state{map[string]int64{}, false})
		n := testNode(t, 1, "a")
		storetest.Commit(t, r, storetest.Put(n, 0))
		time.Sleep(3 * time.Hour)
		r.stop()
		want := map[string]int64{textOf(n): 1}
		r = started(t, c, state{want, true})
		r.stop()
		time.Sleep(59 * time.Minute)
		r = started(t, c, state{want, true})
		r.stop()
		time.Sleep(61 * time.Minute)
		r = started(t, c, state{map[string]int64{}, false})
		r.stop()
		started(t, c, state{map[string]int64{}, false}).stop() // they are really gone
		c.Lifetime = 0
		time.Sleep(10000 * time.Hour)
		started(t, c, state{map[string]int64{}, false})
	})
}

// TestIdle has an owner that is idle, and is killed then: what it has written is synced,
// and its file is not old.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		r := started(t, c, state{map[string]int64{}, false})
		before := must.Get(os.Stat(c.Path))(t)
		n := testNode(t, 1, "a")
		storetest.Commit(t, r, storetest.Put(n, 0))
		time.Sleep(2 * syncEvery)
		synctest.Wait()
		r.mu.Lock()
		unsaved := r.unsaved
		r.mu.Unlock()
		if unsaved {
			t.Error("a node has not been synced after two seconds")
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		copied := configIn(t)
		copyFile(t, c.Path, copied.Path)
		copyFile(t, c.Path+lockSuffix, copied.Path+lockSuffix)
		want := state{map[string]int64{textOf(n): 1}, true}
		started(t, copied, want).stop()
		// Nothing of that is a reason to write the file anew.
		if after, err := os.Stat(c.Path); err != nil || !os.SameFile(before, after) {
			t.Errorf("the file is another one, %v", err)
		}
		r.stop()
		started(t, c, want).stop()
	})
}

// TestConverged kills the owner of a new file as soon as its convergence is over: from
// then on nothing is missing in it.
func TestConverged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		c.Convergence = stampEvery * 3 / 2
		r := started(t, c, state{map[string]int64{}, false})
		n := testNode(t, 1, "a")
		storetest.Commit(t, r, storetest.Put(n, 0))
		time.Sleep(c.Convergence + 2*syncEvery)
		synctest.Wait()
		copied := configIn(t)
		copyFile(t, c.Path, copied.Path)
		copyFile(t, c.Path+lockSuffix, copied.Path+lockSuffix)
		started(t, copied, state{map[string]int64{textOf(n): 1}, true}).stop()
		r.stop()
	})
}

// TestCompaction has nodes that change all the time.
func TestCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		r := started(t, c, state{map[string]int64{}, false})
		want := map[string]int64{}
		var version int64
		for round := range 100 {
			var changes []store.Change
			for i := range 200 {
				changes = append(changes, storetest.Put(testNode(t, i, strings.Repeat("x", round)), max(0, version-199+int64(i))))
			}
			versions := storetest.Commit(t, r, changes...)
			version = versions[199]
			if round == 99 {
				for i, change := range changes {
					want[textOf(change.Node)] = versions[i]
				}
			}
			time.Sleep(2 * time.Second)
		}
		time.Sleep(compactEvery)
		synctest.Wait()
		info, err := os.Stat(c.Path)
		if err != nil || info.Size() > 2*r.live+slack || info.Size() < r.live {
			t.Errorf("%d bytes for %d that live, %v", info.Size(), r.live, err)
		}
		r.stop()
		started(t, c, state{want, true})
	})
}

// TestCompactionBesideCommits writes the file anew while there are changes.
func TestCompactionBesideCommits(t *testing.T) {
	s := New(configIn(t))
	must.Get(s.open())(t)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := range 3000 {
			if _, err := s.Commit(t.Context(), []store.Change{storetest.Put(testNode(t, i, "a"), 0)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	rounds := 0
	for running := true; running; rounds++ {
		select {
		case <-done:
			running = false
		default:
		}
		if err := s.compact(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	want := versions(s.versioned())
	s.end()
	must.Do(t, s.lock.Close())
	t.Logf("written anew %d times", rounds)
	started(t, s.config, state{want, false})
}

// TestNotAtItsPath removes the file, and replaces it.
func TestNotAtItsPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		c := configIn(t)
		c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		r := started(t, c, state{map[string]int64{}, false})
		want := map[string]int64{}
		for i, vanish := range []func() error{
			func() error { return os.Remove(c.Path) },
			func() error { return errors.Join(os.Remove(c.Path), os.WriteFile(c.Path, nil, 0o600)) },
		} {
			n := testNode(t, i, "a")
			want[textOf(n)] = storetest.Commit(t, r, storetest.Put(n, 0))[0]
			must.Do(t, vanish())
			time.Sleep(stampEvery + 10*time.Second)
			synctest.Wait()
		}
		time.Sleep(2 * time.Minute)
		r.stop()
		started(t, c, state{want, true})
		if count := strings.Count(logged.String(), "the journal was removed or replaced"); count != 2 {
			t.Errorf("it was logged %d times:\n%s", count, &logged)
		}
	})
}

func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		first := started(t, c, state{map[string]int64{}, false})
		n := testNode(t, 1, "a")
		storetest.Commit(t, first, storetest.Put(n, 0))
		link := c
		link.Path = filepath.Join(t.TempDir(), "link")
		must.Do(t, os.Symlink(c.Path, link.Path))
		second := run(t, link)
		if reason := <-second.aways; !errors.Is(reason, errLocked) || !strings.Contains(reason.Error(), c.Path) {
			t.Errorf("away because of: %v", reason)
		}
		if _, err := second.Commit(t.Context(), nil); !errors.Is(err, errNotOpen) {
			t.Errorf("a commit without the file: %v", err)
		}
		time.Sleep(time.Minute)
		first.stop()
		if got := <-second.states; got.nodes[textOf(n)] != 1 {
			t.Errorf("the state is %v", got)
		}
		if reason := <-second.aways; reason != nil {
			t.Errorf("away again: %v", reason)
		}
		if target, err := os.Readlink(link.Path); err != nil || target != c.Path {
			t.Errorf("the link leads to %q, %v", target, err)
		}
	})
}

// TestAway has paths at which there can be no journal, until that is mended.
func TestAway(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil, mend func(path string) error
		err         error
	}{
		"no directory":  {func(path string) error { return os.Remove(filepath.Dir(path)) }, func(path string) error { return os.Mkdir(filepath.Dir(path), 0o700) }, os.ErrNotExist},
		"directory":     {func(path string) error { return os.Mkdir(path, 0o700) }, os.Remove, file.ErrNotRegular},
		"FIFO":          {func(path string) error { return syscall.Mkfifo(path, 0o600) }, os.Remove, file.ErrNotRegular},
		"too large":     {func(path string) error { return sparse(path, maxFile+1) }, os.Remove, file.ErrTooLarge},
		"dangling link": {func(path string) error { return os.Symlink("nowhere", path) }, os.Remove, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := configIn(t)
				must.Do(t, tt.spoil(c.Path))
				r := run(t, c)
				if reason := <-r.aways; reason == nil || tt.err != nil && !errors.Is(reason, tt.err) || !strings.Contains(reason.Error(), filepath.Dir(c.Path)) {
					t.Errorf("away because of %v, want %v", reason, tt.err)
				}
				time.Sleep(10 * time.Second)
				must.Do(t, tt.mend(c.Path))
				if reason := <-r.aways; reason != nil {
					t.Error("it says a second time:", reason)
				}
				if got := <-r.states; len(got.nodes) > 0 || got.complete {
					t.Errorf("the state is %v", got)
				}
				storetest.Commit(t, r, storetest.Put(testNode(t, 1, "a"), 0))
			})
		})
	}
}

func sparse(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// TestNoNewFile has a directory in which the file cannot be written anew, until it can.
func TestNoNewFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := configIn(t)
		inTheWay := filepath.Join(c.Path+newSuffix, "x")
		must.Do(t, os.MkdirAll(inTheWay, 0o700))
		r := started(t, c, state{map[string]int64{}, false})
		n := testNode(t, 1, "a")
		for range 3 {
			if _, err := r.Commit(t.Context(), []store.Change{storetest.Put(n, 0)}); !errors.Is(err, os.ErrExist) {
				t.Errorf("a commit: %v", err)
			}
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Second) // the store does not write it at this moment
		synctest.Wait()
		must.Do(t, os.RemoveAll(c.Path+newSuffix))
		if _, err := r.Commit(t.Context(), []store.Change{storetest.Put(n, 0)}); err != nil { // the next attempt is not due
			time.Sleep(5 * time.Second)
			storetest.Commit(t, r, storetest.Put(n, 0))
		}
		r.stop()
		started(t, c, state{map[string]int64{textOf(n): 1}, false})
	})
}

// TestEndBeforeItIsOpen ends a store that cannot be opened.
func TestEndBeforeItIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, Config{Path: filepath.Join(t.TempDir(), "none", "nodes")})
		<-r.aways
		r.stop()
		if len(r.states) > 0 {
			t.Error("it has a state")
		}
	})
}
