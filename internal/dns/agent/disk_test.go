package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// hangingDisk is a store whose calls hang until it is released, but for Check.
type hangingDisk struct{ released chan struct{} }

func (*hangingDisk) Check(path string) (string, error) { return snapshot.CheckPath(path) }

func (d *hangingDisk) Load(path string, o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
	<-d.released
	return snapshot.Load(path, o)
}

func (d *hangingDisk) Save(path string, s *snapshot.Snapshot) error {
	<-d.released
	return snapshot.Save(path, s)
}

func (*hangingDisk) SetAside(path string) (string, error) { return snapshot.SetAside(path) }

// A disk that hangs keeps nobody from the owner, from the status, or from the end
// of the process.
func TestDiskHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		d := &hangingDisk{make(chan struct{})}
		w.store = d
		w.start()
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		file := filepath.Join(t.TempDir(), "catalog")
		within := func(bound time.Duration, what string, do func()) {
			t.Helper()
			began := time.Now()
			if do(); time.Since(began) > bound {
				t.Errorf("%s took %v", what, time.Since(began))
			}
		}
		var b, next *agent.Block
		within(0, "attach", func() { b = w.attach(w.block(1, w.kept(file))) })
		time.Sleep(11 * time.Second)
		if got := look(b, "web.fed.example"); got != "192.0.2.1 60" || w.state() != "synced 1/0" || !b.Ready() {
			t.Errorf("web is %s, owner is %s", got, w.state())
		}
		time.Sleep(time.Minute)
		c := w.kept(file)
		c.Rules.Retention = time.Minute // another keeper of the same file
		within(0, "attach of a reload", func() { next = w.attach(w.block(2, c)) })
		within(6*time.Second, "detach of a reload", func() { w.agent.Detach(b) })
		within(6*time.Second, "detach", func() { w.agent.Detach(next) })
		failures := len(w.Records("not saved"))
		close(d.released)
		synctest.Wait()
		if n := len(w.Records("not saved")); failures == 0 || n != failures {
			t.Errorf("%d failures, and %d after the owner was forgotten", failures, n-failures)
		}
	})
}

// One file cannot keep two catalogs of a configuration, whatever the paths that lead to it. A reload may
// change who has it.
func TestFileOfTwoOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		dir := t.TempDir()
		must.Do(t, os.Symlink("catalog", filepath.Join(dir, "link")))
		w.attach(w.block(1, w.kept(filepath.Join(dir, "catalog"))))
		other := w.owner("other.example:8008")
		for _, path := range []string{"catalog", "link"} {
			other.Subscription.File = filepath.Join(dir, path)
			if _, err := w.agent.Attach(w.block(1, other)); err == nil || !strings.Contains(err.Error(), "is the file of owner "+ownerAddress) {
				t.Errorf("%s: error is %v", path, err)
			}
		}
		w.attach(w.block(2, other))
	})
}
