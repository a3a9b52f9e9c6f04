package consumer_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// times returns when there were saves, after start.
func times(saves []saved, start time.Time) string {
	var all []string
	for _, s := range saves {
		all = append(all, s.at.Sub(start).String())
	}
	return strings.Join(all, " ")
}

// What changes is saved at once, but only every five seconds, and last when the
// mirror ends.
func TestSaveAfterChange(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		registry, _ := sim.serve(services.At("web.fed.example", "192.0.2.0"))
		m, stop := sim.run(sim.kept(d, "catalog"))
		sim.await(m, "synced 1/0")
		time.Sleep(time.Minute)
		d.take()
		start := time.Now()
		for i := range 40 {
			must.Get(registry.Upsert(services.At("web.fed.example", fmt.Sprintf("192.0.2.%d", i+1))))(t)
			time.Sleep(300 * time.Millisecond)
		}
		saves := d.take()
		if got := times(saves, start); got != "0s 5s 10s" {
			t.Errorf("saved after %s", got)
		}
		if last := saves[len(saves)-1]; last.Owner != ownerAddress || last.path != "catalog" || len(last.Services) != 1 ||
			!last.Saved.Equal(last.at) || !last.LastUp.Equal(last.at) {
			t.Errorf("saved %+v", last)
		}
		time.Sleep(time.Minute)
		if got := times(d.take(), start); got != "15s" {
			t.Errorf("saved after %s", got)
		}
		stop()
		saves = d.take()
		if got := times(saves, start); got != "1m12s" || saves[0].Services[0].Unpack().Endpoints[0].Address.String() != "192.0.2.40" {
			t.Errorf("saved after %s in the end: %v", got, saves)
		}
	})
}

// A catalog that does not change is saved when a twentieth of its retention has
// passed, but not more often than every five seconds, and at least every hour.
func TestSaveUnchanged(t *testing.T) {
	for retention, want := range map[time.Duration]time.Duration{
		catalog.Forever:    time.Hour,
		time.Minute:        5 * time.Second,
		100 * time.Second:  5 * time.Second,
		time.Hour:          3 * time.Minute,
		20 * time.Hour:     time.Hour,
		7 * 24 * time.Hour: time.Hour,
	} {
		t.Run(retention.String(), func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				d := new(disk)
				sim.serve(services.At("web.fed.example", "192.0.2.1"))
				config := sim.kept(d, "catalog")
				config.Rules.Retention = retention
				m, _ := sim.run(config)
				sim.await(m, "synced 1/0")
				time.Sleep(time.Minute)
				saves := d.take()
				start := saves[len(saves)-1].at
				for len(saves) < 4 || !saves[0].at.After(start) {
					time.Sleep(5 * time.Second)
					saves = append(saves, d.take()...)
					saves = slices.DeleteFunc(saves, func(s saved) bool { return !s.at.After(start) })
				}
				for i, s := range saves[1:] {
					if got := s.at.Sub(saves[i].at); got != want || !s.LastUp.Equal(s.at) {
						t.Errorf("saved after %v, up until %v before", got, s.at.Sub(s.LastUp))
					}
				}
			})
		})
	}
}

// The file says until when the owner was up, as soon as it is lost, although no
// service has changed.
func TestSaveAfterLoss(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		_, stop := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		m, _ := sim.run(sim.kept(d, "catalog"))
		sim.await(m, "synced 1/0")
		time.Sleep(10 * time.Minute)
		d.take()
		stop()
		synctest.Wait()
		lost := time.Now()
		time.Sleep(catalog.Grace)
		synctest.Wait()
		if saves := d.take(); len(saves) != 1 || !saves[0].at.Equal(lost.Add(catalog.Grace)) || !saves[0].LastUp.Equal(lost) {
			t.Errorf("after the loss %+v is saved", saves)
		}
		time.Sleep(10 * time.Minute)
		for _, s := range d.take() {
			if !s.LastUp.Equal(lost) || !s.Saved.Equal(s.at) {
				t.Errorf("up until %v after the loss", s.LastUp.Sub(lost))
			}
		}
	})
}

// A mirror that never knew a catalog, or whose catalog is expired, writes no file.
func TestNothingToSave(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		sim.misbehave("announce\nupsert web web.fed.example 192.0.2.1\nhang")
		m, stop := sim.run(sim.kept(d, "catalog"))
		sim.await(m, "syncing 1/0")
		time.Sleep(2 * time.Hour)
		stop()
		if saves := d.take(); len(saves) > 0 {
			t.Errorf("saved: %+v", saves)
		}
	})
}

// restart runs a mirror with what is on the disk after the owner was synced for an
// hour with two services, and both are down for ten minutes.
func restart(t *testing.T, sim *testMirror, d *disk) (m *consumer.Mirror, stop func()) {
	t.Helper()
	_, stopOwner := sim.serve(services.At("old.fed.example", "192.0.2.2"), services.At("web.fed.example", "192.0.2.1"))
	config := sim.kept(d, "catalog")
	m, stop = sim.run(config)
	sim.await(m, "synced 2/0")
	time.Sleep(time.Hour)
	stopOwner()
	stop()
	time.Sleep(10 * time.Minute)
	sim.services = make(map[string]*federation.Service)
	sim.take()
	sim.Logged.Reset()
	sim.TimesOut(ownerAddress) // so that the first attempt has no end for a while
	return sim.run(config)
}

// What was saved is stale after a start, for what is left of its retention, and
// visible and announced before the owner is asked. The file that has it is not written again at once.
func TestRestore(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		m, _ := restart(t, sim, d)
		if got := sim.names(); got != "old web" {
			t.Errorf("restored: %s", got)
		}
		s := m.Status()
		if !s.Restored.Equal(time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)) {
			t.Errorf("restored is the catalog of %v", s.Restored)
		}
		if s.StateName() != "stale" || s.Services != 2 || s.Stale != 2 || !s.Known || sim.left(m) != 50*time.Minute {
			t.Errorf("status is %+v, %v are left", s, sim.left(m))
		}
		for _, s := range d.take() {
			if s.at.Equal(time.Now()) {
				t.Errorf("saved when it was restored: %+v", s)
			}
		}
		sim.wantLog(
			`INFO msg="catalog restored from its file" file=catalog services=2 last_up=2000-01-01T01:00:00.000Z used=true age=10m0s`,
		)
		time.Sleep(50*time.Minute - 1)
		if got := state(m); got != "stale 2/2" {
			t.Errorf("owner is %s just before the retention ends", got)
		}
		time.Sleep(time.Second)
		if got := state(m); got != "expired 0/0" || sim.names() != "" {
			t.Errorf("owner is %s with %s after the retention", got, sim.names())
		}
	})
}

// The owner has the last word over what is in the file.
func TestOwnerReplacesRestored(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		m, _ := restart(t, sim, new(disk))
		sim.serve(services.At("web.fed.example", "192.0.2.3"))
		sim.await(m, "synced 1/0")
		if at := m.Status().Restored; !at.IsZero() {
			t.Errorf("the catalog counts as restored: %v", at)
		}
		if got := sim.names(); got != "web" {
			t.Errorf("the services are %s", got)
		}
	})
}

// What was saved too long ago is not used.
func TestRestoreTooLate(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		m, stop := restart(t, sim, d)
		if got := state(m); got != "stale 2/2" {
			t.Errorf("owner is %s", got)
		}
		stop()
		time.Sleep(2 * time.Hour)
		sim.wantLog(`INFO msg="catalog restored from its file" file=catalog services=2 last_up=2000-01-01T01:00:00.000Z used=true`)
		sim.services = make(map[string]*federation.Service)
		m, _ = sim.run(sim.kept(d, "catalog"))
		if got := state(m); got != "connecting 0/0" || sim.names() != "" {
			t.Errorf("owner is %s with %s", got, sim.names())
		}
		sim.wantLog(`INFO msg="catalog restored from its file" file=catalog services=2 last_up=2000-01-01T01:00:00.000Z used=false`)
	})
}

// A file that is not this owner's is set aside, and one that cannot be read is not:
// the next save replaces it.
func TestFileIsNotUsed(t *testing.T) {
	for name, tc := range map[string]struct {
		file string
		err  error
		want []string // lines
	}{
		"damaged": {"catalog", snapshot.ErrCorrupt, []string{
			`ERROR msg="catalog cannot be restored" file=catalog error=`,
			`WARN msg="file is kept under another name, so that it can be looked at" file=catalog aside=catalog.rejected`,
		}},
		"no access": {"catalog", fs.ErrPermission, []string{`ERROR msg="catalog cannot be restored" file=catalog error=`}},
		"missing":   {"catalog", fs.ErrNotExist, nil},
		"of another owner": {"catalog", fmt.Errorf("wrapped: %w", snapshot.ErrForeign), []string{
			`ERROR msg="catalog cannot be restored" file=catalog error="wrapped: `,
			`WARN msg="file is kept under another name, so that it can be looked at" file=catalog aside=catalog.rejected`,
		}},
		"cannot be renamed": {"fixed", snapshot.ErrVersion, []string{
			`ERROR msg="catalog cannot be restored" file=fixed error=`,
			`ERROR msg="file cannot be renamed to keep it" file=fixed error="the file cannot be renamed"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				d := &disk{loading: func(string, snapshot.ReadOptions) error { return tc.err }}
				m, _ := sim.run(sim.kept(d, tc.file))
				time.Sleep(time.Second)
				sim.wantLog(append(tc.want, `WARN msg="not connected to owner, still trying"`)...)
				failures := 0
				for _, line := range tc.want {
					if strings.HasPrefix(line, "ERROR") {
						failures++
					}
				}
				if n := sim.counted("file failed"); n != failures {
					t.Errorf("%d failures counted, want %d", n, failures)
				}
				if aside := len(d.aside) > 0; aside != (tc.file == "fixed" || len(tc.want) > 1) {
					t.Errorf("set aside: %v", d.aside)
				}
				if got := m.Status(); state(m) != "connecting 0/0" || (got.Damage == nil) != (len(tc.want) == 0) {
					t.Errorf("owner is %s, and the damage is %v", state(m), got.Damage)
				}
				sim.serve(services.At("web.fed.example", "192.0.2.1"))
				sim.await(m, "synced 1/0")
				if err := m.Status().Damage; err != nil {
					t.Errorf("the damage is %v when the owner has sent its catalog", err)
				}
				time.Sleep(5 * time.Second) // after a catalog that was not worth keeping
				if saves := d.take(); len(saves) == 0 {
					t.Error("the catalog is not saved")
				}
				if strings.Contains(sim.logged(), "saved again") {
					t.Error("a failure to restore is taken for one to save")
				}
			})
		})
	}
}

// The files of the machine: what is wrong is kept under another name, and replaced
// by a catalog that the next process uses.
func TestBrokenFile(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		path := filepath.Join(t.TempDir(), "catalog")
		must.Do(t, os.WriteFile(path, []byte("not a catalog"), 0o600))
		config := sim.config()
		config.Subscription.File = path
		_, stopOwner := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		m, stop := sim.run(config)
		sim.await(m, "synced 1/0")
		stop()
		stopOwner()
		if after, err := os.ReadFile(path + ".rejected"); err != nil || string(after) != "not a catalog" {
			t.Errorf("kept is %q, %v", after, err)
		}
		m, _ = sim.run(config)
		if got := state(m); got != "stale 1/1" {
			t.Errorf("owner is %s after the restart", got)
		}
	})
}

// A disk that cannot be written is one line for each kind of error, however often it
// is tried, and another one when it can be written again.
func TestSaveFails(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		var err error
		d := &disk{saving: func(string) error { return err }}
		registry, _ := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		m, _ := sim.run(sim.kept(d, "catalog"))
		sim.await(m, "synced 1/0")
		time.Sleep(10 * time.Second)
		sim.wantLog(`INFO msg="connected to owner"`, `INFO msg="owner is synced"`)
		change := func(failure error) {
			t.Helper()
			synctest.Wait()
			err = failure
			for i := range 2 {
				must.Get(registry.Upsert(services.At("web.fed.example", fmt.Sprintf("192.0.2.%d", i+2))))(t)
				time.Sleep(10 * time.Second)
			}
			synctest.Wait()
		}
		temporary := func(name string, number syscall.Errno) error {
			return &fs.PathError{Op: "create", Path: name, Err: number}
		}
		change(temporary("a", syscall.ENOSPC))
		sim.wantLog(`ERROR msg="catalog cannot be saved" file=catalog error="create a: no space left on device"`)
		change(temporary("b", syscall.ENOSPC))
		sim.wantLog()
		change(temporary("c", syscall.EIO))
		sim.wantLog(`ERROR msg="catalog cannot be saved" file=catalog error="create c: input/output error"`)
		change(errors.New("odd"))
		sim.wantLog(`ERROR msg="catalog cannot be saved" file=catalog error=odd`)
		if n := sim.counted("file failed"); n != 8 {
			t.Errorf("%d failures counted", n)
		}
		change(nil)
		sim.wantLog(`INFO msg="catalog is saved again" file=catalog`)
		change(errors.New("odd"))
		sim.wantLog(`ERROR msg="catalog cannot be saved" file=catalog error=odd`)
	})
}

// That a catalog cannot be saved is said by the status until it is saved again: a minute after
// the disk is in order at the latest, though nothing changes, and also of a disk that hangs.
func TestUnsaved(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		var failure atomic.Value // of string
		failure.Store(syscall.ENOSPC.Error())
		released := make(chan struct{})
		d := &disk{saving: func(string) error {
			switch text := failure.Load().(string); text {
			case "":
				return nil
			case "hangs":
				<-released
				return nil
			default:
				return errors.New(text)
			}
		}}
		registry, _ := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		m, _ := sim.run(sim.kept(d, "catalog"))
		expect := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			got := ""
			if err := m.Status().Unsaved; err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("the status says %q, expected %q", got, want)
			}
		}
		sim.await(m, "synced 1/0")
		expect(10*time.Second, syscall.ENOSPC.Error())
		expect(10*time.Minute, syscall.ENOSPC.Error())
		failure.Store("")
		expect(61*time.Second, "")
		failure.Store("hangs")
		must.Get(registry.Upsert(services.At("web.fed.example", "192.0.2.2")))(t)
		expect(59*time.Second, "")
		expect(2*time.Second, "save catalog: no answer from the disk within 1m0s")
		close(released)
		expect(0, "")
		failure.Store(syscall.EIO.Error())
		must.Get(registry.Upsert(services.At("web.fed.example", "192.0.2.3")))(t)
		expect(5*time.Second, syscall.EIO.Error())
		next := sim.kept(d, "").Subscription
		must.Do(t, m.Resubscribe(next, catalog.Rules{}))
		expect(5*time.Second, "")
	})
}

// A new subscription may have another file: what is known goes into it, and the
// other one keeps what it had. The files are written one after the other.
func TestResubscribeWithAnotherFile(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		released := make(chan struct{})
		var hangs bool
		d := new(disk)
		d.saving = func(path string) error {
			if path == "first" && hangs {
				<-released
			}
			return nil
		}
		sim.serve(services.At("web.fed.example", "192.0.2.1"))
		config := sim.kept(d, "first")
		m, stop := sim.run(config)
		sim.await(m, "synced 1/0")
		time.Sleep(time.Minute)
		d.take()
		hangs = true
		config.Subscription.File = "second"
		must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		sim.await(m, "synced 1/0")
		time.Sleep(time.Minute)
		if saves := d.take(); len(saves) > 0 {
			t.Errorf("while the disk hangs, %s is saved", saves[0].path)
		}
		close(released)
		time.Sleep(time.Second)
		stop()
		var paths []string
		for _, s := range d.take() {
			paths = append(paths, s.path)
		}
		if got := strings.Join(slices.Compact(paths), " "); got != "first second" || strings.Join(d.loaded, " ") != "first" {
			t.Errorf("saved were %s, loaded %s", got, d.loaded)
		}
		if sim.counted("file failed") > 0 || m.Status().Services != 1 {
			t.Errorf("%d failures, status %+v", sim.counted("file failed"), m.Status())
		}
	})
}

// A file is no better than the services of a stream, even if that was never complete.
// Nor does the time in it matter.
func TestRestoreAfterStream(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		must.Do(t, d.Save("catalog", &snapshot.Snapshot{Owner: ownerAddress, LastUp: time.Now(), Saved: time.Now().Add(48 * time.Hour)}))
		sim.misbehave("announce\nupsert web web.fed.example 192.0.2.1\nhang")
		config := sim.config()
		config.Store = d
		m, _ := sim.run(config)
		sim.await(m, "syncing 1/0")
		config.Subscription.File, config.Subscription.Addresses = "catalog", []string{"nobody.example:8008"}
		must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		time.Sleep(2 * time.Second) // of which the stream may have one to end
		if got := state(m); got != "stale 1/1" || m.Status().Known {
			t.Errorf("owner is %s, known %v", got, m.Status().Known)
		}
		if got := sim.logged(); !strings.Contains(got, `services=0 last_up=2000-01-01T00:00:00.000Z used=false`) {
			t.Errorf("logged is\n%s", got)
		}
	})
}

// A file that is not used any more gets one last catalog. Where it is used again by a reload while
// the owner is away, it gets the catalog that is known at once: what it has is older, and would come
// back with the next process.
func TestFileUsedAgain(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		registry, stopOwner := sim.serve(services.At("old.fed.example", "192.0.2.2"), services.At("web.fed.example", "192.0.2.1"))
		config := sim.kept(d, "catalog")
		m, _ := sim.run(config)
		sim.await(m, "synced 2/0")
		time.Sleep(time.Minute)
		without := config.Subscription
		without.File = ""
		d.take()
		must.Do(t, m.Resubscribe(without, config.Rules))
		if saves := d.take(); len(saves) != 1 {
			t.Errorf("%d last saves", len(saves))
		}
		sim.await(m, "synced 2/0")
		registry.Delete("old")
		time.Sleep(time.Minute)
		stopOwner()
		sim.await(m, "stale 1/1")
		if saves := d.take(); len(saves) > 0 {
			t.Errorf("without a file %+v is saved", saves)
		}
		must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		time.Sleep(5 * time.Second)
		saves := d.take()
		if len(saves) == 0 || len(saves[0].Services) != 1 {
			t.Errorf("saved is %+v", saves)
		}
	})
}
