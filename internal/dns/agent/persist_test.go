package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// kept is an owner whose catalog is kept in a file for an hour.
func (w *testAgent) kept(file string) agent.OwnerConfig {
	c := w.owner(ownerAddress)
	c.Rules.Retention = time.Hour
	c.Subscription.File = file
	return c
}

// A process that starts while the owner is away answers at once, and for what is
// left of the retention. What is left is known exactly after a shutdown, and
// never more than that after a kill.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lost time.Duration // how long before the end of the process
		kill bool
		away time.Duration // until the next one starts
		web  string        // the first answer
		left time.Duration // of the retention, then
		less time.Duration // by which it may be shorter
	}{
		"shutdown with the owner there": {0, false, 10 * time.Minute, "192.0.2.1 30 stale", 50 * time.Minute, 0},
		"shutdown after the loss":       {20 * time.Minute, false, 10 * time.Minute, "192.0.2.1 30 stale", 30 * time.Minute, 0},
		"shutdown, and too late":        {20 * time.Minute, false, 40*time.Minute + time.Second, "SERVFAIL", 0, 0},
		"kill with the owner there":     {0, true, 10 * time.Minute, "192.0.2.1 30 stale", 50 * time.Minute, 4 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				file := filepath.Join(t.TempDir(), "catalog")
				_, stop := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
				first := w.attach(w.block(1, w.kept(file)))
				time.Sleep(20 * time.Minute)
				if tc.lost > 0 {
					stop()
					time.Sleep(tc.lost)
				}
				if tc.kill {
					content := must.Get(os.ReadFile(file))(t)
					file += " when killed"
					must.Do(t, os.WriteFile(file, content, 0o600))
				}
				w.agent.Detach(first)
				stop()
				time.Sleep(tc.away)

				w.start()
				b := w.attach(w.block(1, w.kept(file)))
				synctest.Wait()
				started := time.Now()
				if got := look(b, "web.fed.example"); got != tc.web {
					t.Errorf("web is %s, want %s", got, tc.web)
				}
				nope := "NXDOMAIN"
				if tc.left == 0 {
					nope = "SERVFAIL"
				}
				if got := look(b, "nope.fed.example"); got != nope || b.Ready() != (tc.left > 0) {
					t.Errorf("nope is %s, want %s; ready is %v", got, nope, b.Ready())
				}
				for strings.HasPrefix(look(b, "web.fed.example"), "192.0.2.1 ") {
					time.Sleep(time.Second)
				}
				if tc.left > 0 {
					tc.less += time.Second // there is no TTL for the last one
				}
				if took := time.Since(started); took > tc.left || took < tc.left-tc.less {
					t.Errorf("answered for %v, want %v and at most %v less", took, tc.left, tc.less)
				}
				if tc.left > 0 && look(b, "web.fed.example") != "NXDOMAIN" {
					t.Errorf("web is %s in the end", look(b, "web.fed.example"))
				}
			})
		})
	}
}

// saves is the store of the machine, and notes whose catalogs are saved.
type saves struct {
	consumer.Store

	mu     sync.Mutex
	owners []string
}

func (s *saves) Save(path string, of *snapshot.Snapshot) error {
	s.mu.Lock()
	s.owners = append(s.owners, of.Owner)
	s.mu.Unlock()
	return s.Store.Save(path, of)
}

// take returns whose catalogs were saved since the last call, one after the other.
func (s *saves) take() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := s.owners
	s.owners = nil
	return strings.Join(slices.Compact(owners), " ")
}

// A reload may give an owner another name and the same file. The owner with the former name
// writes it until the reload is over, and never again; the other one does from then on. If the
// reload fails, nothing has changed.
func TestRenamedOwnerTakesFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		store := &saves{Store: consumer.Files()}
		w.store = store
		w.start()
		file := filepath.Join(t.TempDir(), "catalog")
		registry, _ := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		c, renamed := w.kept(file), w.kept(file)
		c.Name, renamed.Name = "former", "renamed"
		before := w.attach(w.block(1, c))
		time.Sleep(time.Minute)
		store.take()
		expect := func(when, want string) {
			t.Helper()
			must.Get(registry.Upsert(services.At("web.fed.example", fmt.Sprint("192.0.2.", time.Now().Minute()+1))))(t)
			time.Sleep(time.Minute)
			if got := store.take(); got != want {
				t.Errorf("%s the file is written by %q, expected %q", when, got, want)
			}
		}
		failed := w.attach(w.block(2, renamed))
		expect("in a reload", "former")
		w.agent.Detach(failed)
		expect("after a reload that has failed", "former")
		after := w.attach(w.block(3, renamed))
		expect("in another reload", "former")
		w.agent.DetachReplaced(before)
		time.Sleep(time.Second)
		if got := store.take(); got != "former renamed" {
			t.Errorf("with the end of the reload it is written by %q", got)
		}
		expect("after the reload", "renamed")
		w.agent.Detach(after)
		if got := store.take(); got != "renamed" {
			t.Errorf("at last it is written by %q", got)
		}
		if w.Logged.Count("level=ERROR") > 0 {
			t.Errorf("logged is\n%s", w.Logged.String())
		}
	})
}
