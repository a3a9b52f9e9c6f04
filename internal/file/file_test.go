package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}

// replace writes the file as most editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	must.Do(t, os.Rename(path+".new", path))
}

// link makes path a symbolic link to target, in one step.
func link(t *testing.T, target, path string) {
	t.Helper()
	must.Do(t, os.Symlink(target, path+".new"))
	must.Do(t, os.Rename(path+".new", path))
}

// follower is a File whose content ends with a full stop, unless it is broken, and what
// became of it.
type follower struct {
	*File

	config  Config
	logged  *testlog.Buffer
	applied chan string // the versions that were put in force

	mu       sync.Mutex
	troubles []string // guarded by mu
}

// follow loads a file. In tests in a bubble there are no notifications but these.
func follow(t *testing.T, path string, events chan fsnotify.Event) *follower {
	t.Helper()
	f := &follower{logged: &testlog.Buffer{}, applied: make(chan string, 1000)}
	f.config = Config{
		Path: path, What: "test file", Keeps: "all stays", Limit: 1000, Events: events,
		Logger: slog.New(slog.NewTextHandler(f.logged, nil)),
		Read: func(_ context.Context, content io.Reader, _ int64) (func(), error) {
			data, err := io.ReadAll(content)
			if err != nil {
				return nil, err
			}
			if !strings.HasSuffix(string(data), ".") {
				return nil, fmt.Errorf("%q has no end", data)
			}
			return func() { f.applied <- string(data) }, nil
		},
		Trouble: func(reason error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.troubles = append(f.troubles, fmt.Sprint(reason))
		},
	}
	f.File = New(f.config)
	must.Do(t, f.Load(t.Context()))
	return f
}

// run follows the file, and returns what ends that.
func (f *follower) run(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Errorf("Run failed with %v, expected nil", err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// versions returns the versions that were put in force since it was called last.
func (f *follower) versions() string {
	var versions []string
	for {
		select {
		case v := <-f.applied:
			versions = append(versions, v)
		default:
			return strings.Join(versions, " ")
		}
	}
}

func TestLoadFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test")
	f := New(Config{Path: path, What: "test file", Limit: 10, Logger: slog.New(slog.DiscardHandler), Read: func(context.Context, io.Reader, int64) (func(), error) {
		return nil, errors.New("broken")
	}})
	if err := f.Load(t.Context()); err == nil || err.Error() != "test file: stat "+path+": no such file or directory" {
		t.Errorf("error is %v, expected that there is no file", err)
	}
	write(t, path, "x")
	if err := f.Load(t.Context()); err == nil || err.Error() != "test file "+path+": broken" {
		t.Errorf("error is %v, expected that the file is broken", err)
	}
}

// TestFollows changes the file in every way in which files change, with the
// notifications of the system.
func TestFollows(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "test")
	write(t, path, "1.")
	f := follow(t, path, nil)
	defer f.run(t)()
	expect := func(want string) {
		t.Helper()
		if got := <-f.applied; got != want {
			t.Errorf("the file says %q, expected %q", got, want)
		}
	}
	expect("1.")
	write(t, path, "2.")
	expect("2.")
	replace(t, path, "3.")
	expect("3.")
	replace(t, path, "4") // changes nothing
	replace(t, path, "5.")
	expect("5.")
	must.Do(t, os.Remove(path))
	write(t, path, "6.")
	expect("6.")

	// A link to another file.
	write(t, filepath.Join(dir, "other"), "7.")
	link(t, "other", path)
	expect("7.")

	// A volume of Kubernetes: the file is a link through ..data, which is swapped.
	for _, version := range []string{"8", "9"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, "..v"+version), 0o700))
		write(t, filepath.Join(dir, "..v"+version, "test"), version+".")
	}
	link(t, "..v8", filepath.Join(dir, "..data"))
	link(t, "..data/test", path)
	expect("8.")
	link(t, "..v9", filepath.Join(dir, "..data"))
	expect("9.")
}

// TestReports polls, as Run does where there are no notifications.
func TestReports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, "1.")
		f := follow(t, path, make(chan fsnotify.Event))
		defer f.run(t)()
		synctest.Wait() // until the file has been read once more
		f.versions()
		var troubles []string
		for _, step := range []struct{ name, text, version, trouble string }{
			{"written again", "1.", "1.", ""},
			{"broken", "1", "", "test file " + path + `: "1" has no end`},
			{"as broken", "1", "", ""},
			{"broken otherwise", "11", "", "test file " + path + `: "11" has no end`},
			{"gone", "", "", "test file: stat " + path + ": no such file or directory"},
			{"as it was", "1.", "1.", "<nil>"},
			{"new", "20.", "20.", ""},
		} {
			if step.text == "" {
				os.Remove(path)
			} else {
				write(t, path, step.text)
			}
			time.Sleep(3 * pollInterval)
			synctest.Wait()
			if got := f.versions(); got != step.version {
				t.Errorf("%s: %q was put in force, expected %q", step.name, got, step.version)
			}
			if step.trouble != "" {
				troubles = append(troubles, step.trouble)
			}
			f.mu.Lock()
			if diff := cmp.Diff(troubles, f.troubles); diff != "" {
				t.Errorf("%s: unexpected troubles (-want +got):\n%s", step.name, diff)
			}
			f.mu.Unlock()
			if broken := len(troubles) > 0 && troubles[len(troubles)-1] != "<nil>"; broken != (f.Err() != nil) {
				t.Errorf("%s: the trouble is %v, expected %v", step.name, f.Err(), broken)
			}
		}
		for text, want := range map[string]int{`"file is not used: fix it" what="test file" file=` + path + ` meanwhile="all stays" error=`: 3, `"file is in order again" what="test file"`: 1} {
			if n := f.logged.Count(text); n != want {
				t.Errorf("%d log lines have %q, expected %d:\n%s", n, text, want, f.logged)
			}
		}
	})
}

func TestWithoutNotifications(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub")
	must.Do(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "test")
	write(t, path, "1.")
	f := follow(t, path, nil)
	must.Do(t, os.RemoveAll(dir))
	end := f.run(t)
	f.logged.Await(`files cannot be watched; they are polled" files=[` + path + `] interval=10s error="` + dir)
	end()
}

// A file that is written in place is not read before it has been left alone for a
// moment, whether a notification or a poll has led to it.
func TestWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, "1.")
		events := make(chan fsnotify.Event)
		f := follow(t, path, events)
		defer f.run(t)()
		time.Sleep(pollInterval - quiet - quiet/2) // so that it is polled meanwhile
		f.versions()
		for _, text := range []string{"", "2", "2.", "2.3."} {
			write(t, path, text)
			events <- fsnotify.Event{Name: path, Op: fsnotify.Write}
			time.Sleep(quiet - time.Millisecond)
			synctest.Wait()
			if got := f.versions(); got != "" {
				t.Errorf("%q was put in force while the file is written", got)
			}
		}
		time.Sleep(2 * quiet) // the poll may have begun it anew
		synctest.Wait()
		if got := f.versions(); got != "2.3." || f.logged.Count("not used") != 0 {
			t.Errorf("%q was put in force, expected what was written last:\n%s", got, f.logged)
		}
	})
}

// What is not a regular file for a moment, or is too large, is broken. It is followed
// all the same.
func TestFollowsAfterIrregularFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, "1.")
		f := follow(t, path, make(chan fsnotify.Event))
		defer f.run(t)()
		synctest.Wait() // until the file has been read once more
		f.versions()
		wait := func() {
			time.Sleep(2 * pollInterval)
			synctest.Wait()
		}
		for i, tt := range []struct {
			name string
			put  func() error
			want string
		}{
			{"FIFO", func() error { return syscall.Mkfifo(path, 0o600) }, "is not a regular file"},
			{"device", func() error { return os.Symlink("/dev/zero", path) }, "is not a regular file"},
			{"directory", func() error { return os.Mkdir(path, 0o700) }, "is not a regular file"},
			{"too large", func() error { return os.WriteFile(path, make([]byte, 1001), 0o600) }, "is larger than allowed"},
			{"endless", func() error { return os.Symlink("/proc/self/mem", path) }, ""},
		} {
			must.Do(t, os.Remove(path))
			must.Do(t, tt.put())
			wait()
			if err := f.Err(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: error is %v, expected that it %s", tt.name, err, tt.want)
			}
			must.Do(t, os.Remove(path))
			want := fmt.Sprintf("%0999d.", i+2) // as much as is allowed
			write(t, path, want)
			wait()
			if got := f.versions(); got != want || f.Err() != nil {
				t.Errorf("after %s the file says %s (%v), expected %s", tt.name, got, f.Err(), want)
			}
		}
	})
}

// A file that changes while it is read is read again. If it always does, nothing of it
// is used.
func TestFileThatChangesWhileItIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test")
	write(t, path, "1.")
	f := follow(t, path, nil)
	read, times := f.config.Read, 0
	for writes := range attempts + 1 {
		times = 0
		f.versions()
		f.File.config.Read = func(ctx context.Context, content io.Reader, size int64) (func(), error) {
			if times++; times <= writes {
				write(t, path, strings.Repeat("#", 10*writes+times)+".")
			}
			return read(ctx, content, size)
		}
		write(t, path, fmt.Sprint(writes, "00."))
		err := f.Load(t.Context())
		switch got := f.versions(); {
		case writes == 0 && (err != nil || got != "000."):
			t.Errorf("the file says %q, %v", got, err)
		case writes == attempts && (!errors.Is(err, errChanging) || times != attempts || !f.hasChanged() || got != ""):
			t.Errorf("after %d reads: %q, %v, expected that it is read again later", times, got, err)
		case 0 < writes && writes < attempts && (err != nil || times != writes+1 || got != strings.Repeat("#", 10*writes+writes)+"."):
			t.Errorf("after %d reads the file says %q, %v, expected the last version", times, got, err)
		}
	}
}

// TestGroup swaps a volume of two files while one of them is read. Nothing is put in force
// before both have been read as they are then, at once.
func TestGroup(t *testing.T) {
	dir := t.TempDir()
	volume := func(version string) {
		must.Do(t, os.Mkdir(filepath.Join(dir, "..v"+version), 0o700))
		for _, name := range []string{"a", "b"} {
			write(t, filepath.Join(dir, "..v"+version, name), name+version)
		}
		link(t, "..v"+version, filepath.Join(dir, "..data"))
	}
	volume("1")
	var edit []string
	edits := make(chan string, 10)
	group := NewGroup(func(apply func()) {
		edit = nil
		apply()
		edits <- strings.Join(edit, " ")
	})
	swap := sync.OnceFunc(func() { volume("3") })
	for _, name := range []string{"a", "b"} {
		link(t, "..data/"+name, filepath.Join(dir, name))
		f := New(Config{
			Path: filepath.Join(dir, name), What: "test file", Limit: 1000, Group: group,
			Logger: slog.New(slog.DiscardHandler),
			Read: func(_ context.Context, content io.Reader, _ int64) (func(), error) {
				data, err := io.ReadAll(content)
				if string(data) == "b2" {
					swap()
				}
				return func() { edit = append(edit, string(data)) }, err
			},
		})
		must.Do(t, f.Load(t.Context()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = group.Run(ctx) })
	defer running.Wait()
	defer cancel()
	volume("2")
	if got := <-edits; got != "a3 b3" {
		t.Errorf("the edit has put %q in force, expected both files as they were last", got)
	}
}
