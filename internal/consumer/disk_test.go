package consumer_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// disk is a Store in memory that remembers what was saved, and fails or hangs where
// the test says so.
type disk struct {
	// Set by the test before the mirror runs; may be nil.
	loading func(path string, o snapshot.ReadOptions) error
	saving  func(path string) error

	mu     sync.Mutex // guards the fields below
	files  map[string]*snapshot.Snapshot
	saves  []saved
	aside  []string // paths that were set aside
	loaded []string // paths that were asked for
}

// saved is a snapshot and when it was saved.
type saved struct {
	*snapshot.Snapshot

	at   time.Time
	path string
}

func (d *disk) Check(path string) (string, error) { return "checked " + path, nil }

func (d *disk) Load(path string, o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
	d.mu.Lock()
	d.loaded = append(d.loaded, path)
	d.mu.Unlock()
	if d.loading != nil {
		if err := d.loading(path, o); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.files[path]
	switch {
	case !ok:
		return nil, fs.ErrNotExist
	case s.Owner != o.Owner:
		return nil, snapshot.ErrForeign
	}
	return s, nil
}

func (d *disk) Save(path string, s *snapshot.Snapshot) error {
	if d.saving != nil {
		if err := d.saving(path); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		d.files = make(map[string]*snapshot.Snapshot)
	}
	d.files[path] = s
	d.saves = append(d.saves, saved{s, time.Now(), path})
	return nil
}

func (d *disk) SetAside(path string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aside = append(d.aside, path)
	if strings.HasPrefix(path, "fixed") {
		return "", errors.New("the file cannot be renamed")
	}
	return path + ".rejected", nil
}

// take returns the saves since the last call, once what is under way has come to
// rest.
func (d *disk) take() []saved {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	saves := d.saves
	d.saves = nil
	return saves
}

// kept is a configuration with a file on the disk.
func (sim *testMirror) kept(d consumer.Store, file string) consumer.Config {
	c := sim.config()
	c.Subscription.File, c.Store = file, d
	return c
}

// CheckFile returns what the disk says, and waits for ten seconds.
func TestCheckFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if file, err := consumer.CheckFile(t.Context(), new(disk), "catalog"); file != "checked catalog" || err != nil {
			t.Errorf("CheckFile returns %q, %v", file, err)
		}
		if time.Since(start) > 0 {
			t.Errorf("CheckFile took %v", time.Since(start))
		}
		for wait, ok := range map[time.Duration]bool{10*time.Second - 1: true, 10*time.Second + 1: false} {
			start := time.Now()
			file, err := consumer.CheckFile(t.Context(), slowCheck{wait: wait}, "catalog")
			if ok && (file != "slow catalog" || err != nil) {
				t.Errorf("after %v CheckFile returns %q, %v", wait, file, err)
			}
			if !ok && (file != "" || err == nil || err.Error() != `no answer from the disk of "catalog" within 10s` || time.Since(start) != 10*time.Second) {
				t.Errorf("after %v CheckFile returns %q, %v", time.Since(start), file, err)
			}
			synctest.Wait()
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err := consumer.CheckFile(ctx, slowCheck{wait: time.Minute}, "catalog"); err == nil || time.Since(start) != time.Second {
			t.Errorf("CheckFile returns %v %v after the start of a context of 1 s", err, time.Since(start))
		}
		time.Sleep(time.Minute) // until all goroutines have ended
	})
}

// slowCheck takes a while for an answer.
type slowCheck struct {
	*disk
	wait time.Duration
}

func (s slowCheck) Check(path string) (string, error) {
	time.Sleep(s.wait)
	return "slow " + path, nil
}

// Loading is given up after ten seconds without progress. The owner is asked without
// what the file has, and nothing that comes later changes anything.
func TestLoadHangs(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		released := make(chan struct{})
		d := &disk{loading: func(string, snapshot.ReadOptions) error { <-released; return errors.New("the disk is gone") }}
		sim.serve(services.At("web.fed.example", "192.0.2.1"))
		m, _ := sim.run(sim.kept(d, "catalog"))
		time.Sleep(10*time.Second - 1)
		if n := sim.attempts(); n != 0 {
			t.Errorf("%d attempts while the disk is waited for", n)
		}
		time.Sleep(2 * time.Nanosecond)
		if got := state(m); got != "synced 1/0" {
			t.Errorf("owner is %s", got)
		}
		const want = `level=ERROR msg="catalog cannot be restored" owner=owner.example:8008 file=catalog error="the disk does not answer, so the owner is asked for its whole catalog"`
		if !strings.HasPrefix(sim.logged(), want) {
			t.Errorf("logged is\n%s", sim.logged())
		}
		if n := sim.counted("file failed"); n != 1 {
			t.Errorf("%d failures counted", n)
		}
		close(released)
		if n := strings.Count(sim.logged(), "cannot be restored"); n != 1 || sim.counted("file failed") != 1 {
			t.Errorf("%d lines, %d failures counted when the disk answers", n, sim.counted("file failed"))
		}
	})
}

// A mirror that is stopped while it loads neither waits for the disk nor reports it.
func TestStopWhileLoading(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		released := make(chan struct{})
		d := &disk{loading: func(string, snapshot.ReadOptions) error { <-released; return nil }}
		_, stop := sim.run(sim.kept(d, "catalog"))
		time.Sleep(time.Second)
		start := time.Now()
		stop()
		if took := time.Since(start); took > 0 {
			t.Errorf("Run returned after %v", took)
		}
		sim.wantLog()
		if n := sim.counted("file failed"); n != 0 {
			t.Errorf("%d failures counted", n)
		}
		close(released)
	})
}

// A slow disk is waited for as long as it goes on. A line every five seconds says how
// far it is.
func TestLoadProgress(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		must.Do(t, d.Save("catalog", &snapshot.Snapshot{Owner: ownerAddress, LastUp: time.Now(), Saved: time.Now()}))
		d.loading = func(_ string, o snapshot.ReadOptions) error {
			for i := range 13 {
				o.Progress(i, 13)
				time.Sleep(time.Second)
			}
			time.Sleep(9*time.Second - 1)
			o.Progress(13, 13)
			return nil
		}
		sim.run(sim.kept(d, "catalog"))
		time.Sleep(21 * time.Second)
		sim.wantLog( // at the first service that comes after more than five seconds
			`INFO msg="restoring the catalog" file=catalog restored=6 services=13`,
			`INFO msg="restoring the catalog" file=catalog restored=12 services=13`,
		)
		time.Sleep(time.Second)
		sim.wantLog(`INFO msg="restoring the catalog" file=catalog restored=13 services=13`,
			`INFO msg="catalog restored from its file" file=catalog services=0 last_up=2000-01-01T00:00:00.000Z used=true`,
			`WARN msg="not connected to owner, still trying"`)
	})
}

// A catalog is there part by part, and is not known before its end. When the file
// turns out to be damaged, or the disk hangs, what is there stays, and is never known.
func TestRestoreParts(t *testing.T) {
	web, api := services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2")
	broken := errors.New("the disk is gone")
	for name, tc := range map[string]struct {
		rest  time.Duration // until the end is read
		err   error
		known bool
		names string
	}{
		"whole":  {rest: 9 * time.Second, known: true, names: "api web"},
		"broken": {rest: 9 * time.Second, err: broken, names: "api web"},
		"hangs":  {rest: 11 * time.Second, names: "api web"},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				d := new(disk)
				kept := &snapshot.Snapshot{Owner: ownerAddress, LastUp: time.Now(), Saved: time.Now()}
				must.Do(t, d.Save("catalog", kept))
				taken := true
				d.loading = func(_ string, o snapshot.ReadOptions) error {
					for _, s := range []*federation.Service{web, api} {
						part := *kept
						part.Services = []packed.Service{packed.PackService(s)}
						taken = o.Part(&part) && taken
						time.Sleep(time.Second)
					}
					time.Sleep(tc.rest - time.Second)
					taken = o.Part(kept) && taken
					return tc.err
				}
				m, _ := sim.run(sim.kept(d, "catalog"))
				if got, s := sim.names(), m.Status(); got != "web" || s.Known {
					t.Errorf("after the first part there are %q, and the catalog is known: %v", got, s.Known)
				}
				time.Sleep(time.Second)
				if got := sim.names(); got != "api web" {
					t.Errorf("after the second part there are %q", got)
				}
				time.Sleep(13 * time.Second)
				if got, s := sim.names(), m.Status(); got != tc.names || s.Known != tc.known || (s.Damage == nil) != tc.known {
					t.Errorf("in the end there are %q, the catalog is known: %v, and the damage is %v", got, s.Known, s.Damage)
				}
				if want := tc.rest < 10*time.Second; taken != want {
					t.Errorf("all parts are taken: %v, want %v", taken, want)
				}
			})
		})
	}
}

// A subscription that takes the place of another one in the midst of a restoration
// begins anew.
func TestResubscribeWhileRestoring(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		kept := &snapshot.Snapshot{Owner: ownerAddress, LastUp: time.Now(), Saved: time.Now()}
		kept.Services = []packed.Service{packed.PackService(services.At("web.fed.example", "192.0.2.1"))}
		must.Do(t, d.Save("catalog", kept))
		d.loading = func(_ string, o snapshot.ReadOptions) error {
			part := *kept
			part.Services = []packed.Service{packed.PackService(services.At("old.fed.example", "192.0.2.2"))}
			if len(d.loaded) == 1 {
				o.Part(&part)
			}
			time.Sleep(5 * time.Second)
			return nil
		}
		config := sim.kept(d, "catalog")
		m, _ := sim.run(config)
		if got := sim.names(); got != "old" {
			t.Errorf("after the first part there are %q", got)
		}
		must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		if got, s := sim.names(), m.Status(); got != "old" || s.Known {
			t.Errorf("after the change there are %q, and the catalog is known: %v", got, s.Known)
		}
		time.Sleep(time.Minute)
		if got, s := sim.names(), m.Status(); got != "web" || !s.Known {
			t.Errorf("in the end there are %q, and the catalog is known: %v", got, s.Known)
		}
	})
}

// The end waits five seconds for the last save. What becomes of it later is nobody's
// concern.
func TestLastSaveHangs(t *testing.T) {
	for wait, reported := range map[time.Duration]bool{5*time.Second - 1: false, 5*time.Second + 1: true} {
		simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
			var slow bool
			d := new(disk)
			d.saving = func(string) error {
				if slow {
					time.Sleep(wait)
					return errors.New("the disk is gone")
				}
				return nil
			}
			sim.serve(services.At("web.fed.example", "192.0.2.1"))
			m, stop := sim.run(sim.kept(d, "catalog"))
			time.Sleep(time.Minute)
			if got := state(m); got != "synced 1/0" {
				t.Fatalf("owner is %s", got)
			}
			sim.wantLog(`INFO msg="connected to owner"`, `INFO msg="owner is synced"`)
			slow = true
			start := time.Now()
			stop()
			if took := time.Since(start); took != min(wait, 5*time.Second) {
				t.Errorf("Run returned after %v", took)
			}
			want := `ERROR msg="catalog cannot be saved" file=catalog error="the disk is gone"`
			if reported {
				want = `ERROR msg="catalog may not be saved, because the disk does not answer" file=catalog`
			}
			sim.wantLog(want)
			time.Sleep(time.Minute)
			sim.wantLog()
			if n := sim.counted("file failed"); n != 1 {
				t.Errorf("%d failures counted", n)
			}
		})
	}
}

// Mirrors with one lock write their file one after the other: the second saves its catalog when
// the first has ended, and leaves alone what is not its own until then. One that ends before
// writes nothing.
func TestFileLock(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		d := new(disk)
		sim.serve(services.At("web.fed.example", "192.0.2.1"))
		config := sim.kept(d, "catalog")
		config.Subscription.FileLock = semaphore.NewWeighted(1)
		run := func(name string) func() {
			config.Name = name
			m, stop := sim.run(config)
			sim.await(m, "synced 1/0")
			time.Sleep(time.Minute)
			return stop
		}
		saved := func(want string) {
			t.Helper()
			var owners []string
			for _, s := range d.take() {
				owners = append(owners, s.Owner)
			}
			if got := strings.Join(slices.Compact(owners), " "); got != want {
				t.Errorf("saved are the catalogs of %q, expected %q", got, want)
			}
		}
		first := run("first")
		second := run("second")
		third := run("third")
		saved("first")
		third()
		saved("")
		first()
		time.Sleep(time.Second)
		saved("first second")
		time.Sleep(time.Hour)
		second()
		saved("second")
		if len(d.aside) > 0 || sim.Logged.Count("level=ERROR") > 0 {
			t.Errorf("set aside is %q, and logged\n%s", d.aside, sim.Logged.String())
		}
	})
}
