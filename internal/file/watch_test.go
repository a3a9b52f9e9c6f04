package file_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// run runs the watch until the test ends, or stop is called.
func run(t *testing.T, w *file.Watch) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("Run failed with %v, expected nil", err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// counted is a watch of /d/file in a bubble.
type counted struct {
	*file.Watch

	events  chan fsnotify.Event
	changed atomic.Bool
	reloads atomic.Int32
}

const (
	interval = 10 * time.Second
	quiet    = 100 * time.Millisecond
	patience = time.Second
)

func newCounted() *counted {
	c := &counted{events: make(chan fsnotify.Event)}
	c.Watch = file.NewWatch(file.WatchConfig{
		Paths: []string{"/d/file"}, Interval: interval, Quiet: quiet, Patience: patience,
		Changed: c.changed.Load,
		Reload:  func(context.Context) { c.reloads.Add(1) },
		Events:  c.events,
	})
	return c
}

// expect fails unless the files have been read so many times since the last call.
func (c *counted) expect(t *testing.T, when string, want int32) {
	t.Helper()
	synctest.Wait()
	if n := c.reloads.Swap(0); n != want {
		t.Errorf("%s: read %d times, expected %d", when, n, want)
	}
}

func TestBurstIsReadOnceAndNotTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted()
		run(t, c.Watch)
		c.expect(t, "at the start", 1)
		for _, name := range []string{"/d/file", "/d/file", "/d/..data"} {
			c.events <- fsnotify.Event{Name: name}
			time.Sleep(quiet - time.Millisecond)
			c.expect(t, "while it is written", 0)
		}
		time.Sleep(quiet)
		c.expect(t, "when it has been left alone", 1)
		begun := time.Now()
		for time.Since(begun) < 5*patience/2 {
			c.events <- fsnotify.Event{Name: "/d/file"}
			time.Sleep(quiet / 2)
		}
		c.expect(t, "when it is never left alone", 2)
	})
}

func TestOtherFilesOnlyRaiseTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted()
		run(t, c.Watch)
		c.expect(t, "at the start", 1)
		c.events <- fsnotify.Event{Name: "/d/other"}
		time.Sleep(quiet)
		c.expect(t, "nothing changed", 0)
		c.changed.Store(true)
		for range 4 {
			c.events <- fsnotify.Event{Name: "/d/other"}
			time.Sleep(quiet / 4) // does not delay it
		}
		c.expect(t, "a link behind the file changed", 1)
	})
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted()
		run(t, c.Watch)
		c.expect(t, "at the start", 1)
		time.Sleep(interval + quiet)
		c.expect(t, "nothing changed", 0)
		c.changed.Store(true)
		time.Sleep(interval)
		c.expect(t, "changed", 1)
	})
}

func TestWithoutChangedEachPollReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reloads atomic.Int32
		run(t, file.NewWatch(file.WatchConfig{
			Paths: []string{"/d/file"}, Interval: interval,
			Reload: func(context.Context) { reloads.Add(1) },
			Events: make(chan fsnotify.Event),
		}))
		time.Sleep(3*interval + quiet)
		if n := reloads.Load(); n != 4 {
			t.Errorf("read %d times, expected 4", n)
		}
	})
}

func TestOneOfSeveralRunsFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted()
		change := func() {
			c.events <- fsnotify.Event{Name: "/d/file"}
			time.Sleep(quiet)
		}
		var stops [3]func()
		for i := range stops {
			stops[i] = run(t, c.Watch)
			synctest.Wait() // they wait for their turn in this order
		}
		c.expect(t, "at the start of all", 1)
		change()
		c.expect(t, "while all run", 1)
		stops[1]()
		c.expect(t, "after the end of one that waited", 0)
		stops[0]()
		c.expect(t, "when another one takes over", 1)
		change()
		c.expect(t, "while the last one runs", 1)
		stops[2]()
		run(t, c.Watch)
		c.expect(t, "at a later start", 1)
	})
}

// notified is a file that is followed with the notifications of the system, and nothing
// else: a poll finds no change.
type notified struct {
	file    string
	reloads chan struct{} // of capacity 1
	polls   chan struct{}
	log     testlog.Buffer
}

func newNotified(t *testing.T, opened string) *notified {
	t.Helper()
	w := &notified{file: opened, reloads: make(chan struct{}, 1), polls: make(chan struct{})}
	w.write(t)
	run(t, file.NewWatch(file.WatchConfig{
		Paths: []string{w.file}, Interval: 20 * time.Millisecond, Quiet: time.Millisecond, Patience: time.Millisecond,
		Changed: func() bool {
			signal(w.polls)
			return false
		},
		Reload: func(context.Context) { signal(w.reloads) },
		Logger: w.log.Logger(),
	}))
	<-w.reloads // at the start
	return w
}

// signal lets one who waits go on.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *notified) write(t *testing.T) {
	t.Helper()
	must.Do(t, os.WriteFile(w.file, []byte("a"), 0o600))
}

// follows waits until what is written from now on is read; go test ends a test that
// waits for ever.
func (w *notified) follows(t *testing.T) {
	t.Helper()
	for seen := 0; seen < 3; { // polls, after which nothing from before is under way
		select {
		case <-w.polls:
			seen++
		case <-w.reloads:
		}
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		w.write(t)
		select {
		case <-w.reloads:
			return
		case <-again.C:
		}
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	must.Do(t, os.Rename(from, to))
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	must.Do(t, os.Mkdir(dir, 0o700))
}

func TestFollowsReplacedDirectories(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, parent, dir string){
		"directory": func(t *testing.T, _, dir string) {
			mkdir(t, dir+".new")
			rename(t, dir, dir+".old")
			rename(t, dir+".new", dir)
		},
		"directory above": func(t *testing.T, parent, _ string) {
			rename(t, parent, parent+".old")
			mkdir(t, parent)
			mkdir(t, filepath.Join(parent, "d"))
		},
		"directory that was removed": func(t *testing.T, _, dir string) {
			must.Do(t, os.RemoveAll(dir))
			mkdir(t, dir)
		},
		"directory that becomes a link": func(t *testing.T, _, dir string) {
			rename(t, dir, dir+".old")
			mkdir(t, dir+".new")
			must.Do(t, os.Symlink(dir+".new", dir))
		},
		"link that is swapped": func(t *testing.T, _, dir string) {
			rename(t, dir, dir+".old")
			must.Do(t, os.Symlink(dir+".old", dir))
			mkdir(t, dir+".new")
			must.Do(t, os.Symlink(dir+".new", dir+".link"))
			rename(t, dir+".link", dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			parent := filepath.Join(t.TempDir(), "p")
			dir := filepath.Join(parent, "d")
			mkdir(t, parent)
			mkdir(t, dir)
			w := newNotified(t, filepath.Join(dir, "file"))
			w.follows(t)
			replace(t, parent, dir)
			w.follows(t)
		})
	}
}

func TestTroubleAndItsEndAreLoggedOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	mkdir(t, dir)
	w := newNotified(t, filepath.Join(dir, "file"))
	must.Do(t, os.RemoveAll(dir))
	w.log.Await("files cannot be watched; they are polled")
	for range 5 {
		<-w.polls
	}
	mkdir(t, dir)
	w.log.Await("files can be watched again")
	if lines := w.log.Lines(); len(lines) != 2 || !strings.Contains(lines[0], "no such file or directory") {
		t.Errorf("logged %q, expected the trouble and its end", lines)
	}
	w.follows(t)
}
