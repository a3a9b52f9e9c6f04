package ownerfile

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

	"github.com/hamlet-federation/coredns-federation/federation/owner"
)

// catalogFile spells services of those names, "web 2" with the description 2.
func catalogFile(services ...string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	if len(services) == 0 {
		return "services: []\n"
	}
	for _, s := range services {
		name, version, _ := strings.Cut(s, " ")
		b.WriteString("- name: " + name + "\n  fqdn: " + name + ".example.org\n  description: version " + version + "\n" + rest)
	}
	return b.String()
}

// rest completes a service that has a name and an fqdn.
const rest = `  endpoints: [{address: 192.0.2.1, port: 80}]
  instances: [{id: i1, protocol: TCP}]
`

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace writes the file as most editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// link makes path a symbolic link to target, in one step.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func openFile(t *testing.T, path string) (*File, *owner.Registry, *logBuffer) {
	t.Helper()
	logged := &logBuffer{}
	registry := owner.NewRegistry()
	f, err := OpenCatalog(t.Context(), CatalogConfig{Path: path, Registry: registry, Logger: slog.New(slog.NewTextHandler(logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return f, registry, logged
}

// poll follows the file without notifications.
func poll(ctx context.Context, f *File) {
	f.watch = f.newWatch(make(chan fsnotify.Event))
	_ = f.Run(ctx)
}

func TestOpenCatalogFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "catalog.yaml")
	for _, tt := range []struct{ name, text, want string }{
		{"missing", "", "catalog file: stat " + path + ": no such file or directory"},
		{"broken", "services:\n- name: a\n" + rest, "catalog file " + path + `: line 2: service "a": fqdn: required`},
	} {
		if tt.text != "" {
			write(t, path, tt.text)
		}
		registry := owner.NewRegistry()
		_, err := OpenCatalog(t.Context(), CatalogConfig{Path: path, Registry: registry, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: error is %v, expected %s", tt.name, err, tt.want)
		}
		if registry.Len() != 0 {
			t.Errorf("%s: %d services, expected none", tt.name, registry.Len())
		}
	}
}

// TestFileFollows changes the file in every way in which files change, with the
// notifications of the system.
func TestFileFollows(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "catalog.yaml")
	write(t, path, catalogFile("a 1", "b 1"))
	f, registry, _ := openFile(t, path)
	subscription := registry.Subscribe()
	defer subscription.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Errorf("Run failed with %v, expected nil", err)
		}
	})
	defer running.Wait()
	defer cancel()

	expect := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			event, err := subscription.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, told(event))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected events (-want +got):\n%s", diff)
		}
	}
	expect("upsert a 1", "upsert b 1", "end")

	write(t, path, catalogFile("a 2", "b 1"))
	expect("upsert a 2")
	replace(t, path, catalogFile("a 2", "c 1"))
	expect("upsert c 1", "delete b")
	replace(t, path, "services: [") // changes nothing
	replace(t, path, catalogFile("a 3", "c 1"))
	expect("upsert a 3")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, catalogFile("a 4", "c 1"))
	expect("upsert a 4")

	// A link to another file.
	write(t, filepath.Join(dir, "other.yaml"), catalogFile("a 5", "c 1"))
	link(t, "other.yaml", path)
	expect("upsert a 5")

	// A volume of Kubernetes: the file is a link through ..data, which is swapped.
	for _, version := range []string{"6", "7"} {
		if err := os.Mkdir(filepath.Join(dir, "..v"+version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "..v"+version, "catalog.yaml"), catalogFile("a "+version))
	}
	link(t, "..v6", filepath.Join(dir, "..data"))
	link(t, "..data/catalog.yaml", path)
	expect("upsert a 6", "delete c")
	link(t, "..v7", filepath.Join(dir, "..data"))
	expect("upsert a 7")
}

// TestFileReports polls, as Run does where there are no notifications.
func TestFileReports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, catalogFile("a 1"))
		f, registry, logged := openFile(t, path)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { poll(ctx, f) })
		defer running.Wait()
		defer cancel()
		synctest.Wait() // until the file has been read once more
		version := func() string { return strings.Join(published(t, registry), " ") }
		steps := []struct {
			name    string
			do      func()
			version string
			logs    map[string]int // lines so far
		}{
			{"unchanged", func() {}, "upsert a 1", map[string]int{"applied": 1, "not used": 0}},
			{"broken", func() { write(t, path, "services: [") }, "upsert a 1", map[string]int{"applied": 1, "not used": 1}},
			{"still broken", func() { write(t, path, "services: [  ") }, "upsert a 1", map[string]int{"not used": 1}},
			{"broken otherwise", func() { write(t, path, "services: 1") }, "upsert a 1", map[string]int{"not used": 2}},
			{"gone", func() { os.Remove(path) }, "upsert a 1", map[string]int{"not used": 3, "no such file": 1}},
			{"empty", func() { write(t, path, "") }, "upsert a 1", map[string]int{"not used": 4, "the file is empty": 1}},
			{"as it was", func() { write(t, path, catalogFile("a 1")) }, "upsert a 1", map[string]int{"applied": 1, "in order again": 1}},
			{"new", func() { write(t, path, catalogFile("a 20")) }, "upsert a 20", map[string]int{"applied": 2, "in order again": 1, "probably": 0}},
			{"doubtful", func() {
				write(t, path, strings.Replace(catalogFile("a 30"), "id: i1", "id: -", 1))
			}, "upsert a 30", map[string]int{"applied": 3, "probably": 1}},
			{"as doubtful", func() {
				write(t, path, strings.Replace(catalogFile("a 400"), "id: i1", "id: -", 1))
			}, "upsert a 400", map[string]int{"applied": 4, "probably": 1}},
		}
		for _, step := range steps {
			step.do()
			time.Sleep(3 * pollInterval)
			synctest.Wait()
			if got := version(); got != step.version {
				t.Errorf("%s: service is %s, expected %s", step.name, got, step.version)
			}
			for text, want := range step.logs {
				if n := logged.count(text); n != want {
					t.Errorf("%s: %d log lines have %q, expected %d:\n%s", step.name, n, text, want, logged)
				}
			}
		}
	})
}

func TestFileWithoutNotifications(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "catalog.yaml")
	write(t, path, catalogFile("a 1"))
	f, _, logged := openFile(t, path)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	logged.await("no notifications of changes; the catalog file is polled")
	cancel()
	running.Wait()

	f.logWatching(nil)
	if logged.count("notifications of changes of the catalog file arrive again") != 1 {
		t.Errorf("the end of the trouble is not logged:\n%s", logged)
	}
}

// A file that is torn or emptied withdraws nothing; one that says that there are no
// services does.
func TestTornCatalogWithdrawsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	synctest.Test(t, func(t *testing.T) {
		whole := catalogFile("a 1", "b 1", "c 1")
		write(t, path, whole)
		f, registry, logged := openFile(t, path)
		subscription := registry.Subscribe()
		defer subscription.Close()
		for range 4 {
			if _, err := subscription.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { poll(ctx, f) })
		defer running.Wait()
		defer cancel()
		synctest.Wait() // until the file has been read once more
		wait := func() {
			time.Sleep(2 * pollInterval)
			synctest.Wait()
		}
		wait() // for its first look at the file, which a write must not meet
		torn := map[string]string{
			"no byte":         "",
			"line break":      "\n",
			"comment":         "# being written\n",
			"document marker": "---\n",
			"key only":        "services:\n",
			"null":            "services: null\n",
			"tilde":           "services: ~\n",
			"half a key":      "servi",
			"other key":       "service: []\n",
			"empty mapping":   "{}",
			"empty string":    "services: ''\n",
			"opened list":     "services: [",
			"half a service":  whole[:len(whole)-20],
			"service cut off": "services:\n- name: a\n  fqdn: a.example.org\n",
			"half of JSON":    `{"services": []`,
			"zeros":           "services:\n" + strings.Repeat("\x00", 100),
			"not UTF-8":       "services:\n- name: \xff\n",
			"two documents":   whole + "---\nservices: []\n",
			"services and []": whole + "services: []\n",
		}
		for name, text := range torn {
			write(t, path, text)
			wait()
			if got := strings.Join(published(t, registry), ", "); got != "upsert a 1, upsert b 1, upsert c 1" {
				t.Errorf("%s: the catalog is %s", name, got)
			}
			if f.Err() == nil {
				t.Errorf("%s: the file counts as good", name)
			}
			write(t, path, whole)
			wait()
			if err := f.Err(); err != nil {
				t.Errorf("after %s: %v, expected a good file", name, err)
			}
		}
		if n := logged.count("catalog file is not used, the catalog stays as it was: fix the file"); n != len(torn) {
			t.Errorf("%d log lines tell of a broken file, expected %d:\n%s", n, len(torn), logged)
		}
		write(t, path, "services: []\n")
		wait()
		for _, want := range []string{"delete a", "delete b", "delete c"} {
			event, err := subscription.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := told(event); got != want {
				t.Errorf("a subscriber heard %q first, expected %q", got, want)
			}
		}
	})
}

// A list that is written in place and cut between two services is a shorter list. The
// file is not read before it has been left alone for a moment, whether a notification
// or a poll has led to it. A file that is never left alone is read all the same.
func TestFileWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	for name, wait := range map[string]time.Duration{"between two polls": time.Second, "over a poll": pollInterval - quiet - quiet/2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				write(t, path, catalogFile("a 1", "b 1"))
				f, registry, logged := openFile(t, path)
				events := make(chan fsnotify.Event)
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				f.watch = f.newWatch(events)
				running.Go(func() { _ = f.Run(ctx) })
				defer running.Wait()
				defer cancel()
				expect := func(when, want string) {
					t.Helper()
					synctest.Wait()
					if got := strings.Join(published(t, registry), ", "); got != want {
						t.Errorf("%s the catalog is %s, expected %s", when, got, want)
					}
				}
				time.Sleep(wait)
				for _, text := range []string{"", "services:\n", catalogFile("a 2"), catalogFile("a 2", "b 2")} {
					write(t, path, text)
					events <- fsnotify.Event{Name: path, Op: fsnotify.Write}
					time.Sleep(quiet - time.Millisecond)
					expect("while it is written", "upsert a 1, upsert b 1")
				}
				time.Sleep(2 * quiet) // the poll may have begun it anew
				expect("after it was written", "upsert a 2, upsert b 2")
				if logged.count("not used") != 0 {
					t.Errorf("a file that is being written is reported:\n%s", logged)
				}

				begun := time.Now()
				for version := 10; time.Since(begun) < 3*pollInterval; version++ {
					write(t, path, catalogFile(fmt.Sprintf("a %d", version)))
					events <- fsnotify.Event{Name: path, Op: fsnotify.Write}
					time.Sleep(quiet/2 + time.Millisecond) // never writes at the moment at which it is read
				}
				if n := logged.count("catalog applied"); n < 3 {
					t.Errorf("a file that is written all the time was never read:\n%s", logged)
				}
			})
		})
	}
}

// What is not a regular file for a moment, or is too large, is broken. It is followed
// all the same.
func TestFollowsAfterIrregularFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, catalogFile("a 1"))
		logged := &logBuffer{}
		registry := owner.NewRegistry()
		f, err := OpenCatalog(t.Context(), CatalogConfig{
			Path: path, Registry: registry, MaxBytes: 10_000, Logger: slog.New(slog.NewTextHandler(logged, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { poll(ctx, f) })
		defer running.Wait()
		defer cancel()
		synctest.Wait() // until the file has been read once more
		wait := func() {
			time.Sleep(2 * pollInterval)
			synctest.Wait()
		}
		version := 1
		for _, tt := range []struct {
			name string
			put  func() error
			want string
		}{
			{"FIFO", func() error { return syscall.Mkfifo(path, 0o600) }, "is not a regular file"},
			{"device", func() error { return os.Symlink("/dev/zero", path) }, "is not a regular file"},
			{"directory", func() error { return os.Mkdir(path, 0o700) }, "is not a regular file"},
			{"too large", func() error { return os.WriteFile(path, make([]byte, 10_001), 0o600) }, "is larger than allowed"},
			{"endless", func() error { return os.Symlink("/proc/self/mem", path) }, ""},
		} {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := tt.put(); err != nil {
				t.Fatal(err)
			}
			wait()
			if err := f.Err(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: error is %v, expected that it %s", tt.name, err, tt.want)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			version++
			write(t, path, catalogFile(fmt.Sprintf("a %d", version)))
			wait()
			if got, want := strings.Join(published(t, registry), ", "), fmt.Sprintf("upsert a %d", version); got != want || f.Err() != nil {
				t.Errorf("after %s the catalog is %s (%v), expected %s", tt.name, got, f.Err(), want)
			}
		}
	})
}

// A file that changes while it is read is read again. If it always does, nothing of it
// is used.
func TestFileThatChangesWhileItIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	write(t, path, catalogFile("a 1"))
	f, registry, logged := openFile(t, path)
	read, times := f.read, 0
	for writes := range attempts + 1 {
		times = 0
		f.read = func(ctx context.Context, content io.Reader, size int64) (func(), error) {
			if times++; times <= writes {
				half := strings.Repeat("#", 10*writes+times) + "\n" + catalogFile("half 1")
				write(t, path, half)
			}
			return read(ctx, content, size)
		}
		write(t, path, catalogFile(fmt.Sprintf("a %d00", writes)))
		err := f.load(t.Context())
		switch got := strings.Join(published(t, registry), " "); {
		case writes == 0 && (err != nil || got != "upsert a 000"):
			t.Errorf("the catalog is %s, %v", got, err)
		case writes == attempts && (!errors.Is(err, errChanging) || times != attempts || !f.changed()):
			t.Errorf("after %d reads: %s, %v, expected that it is read again later", times, got, err)
		case 0 < writes && writes < attempts && (err != nil || times != writes+1 || got != "upsert half 1"):
			t.Errorf("after %d reads the catalog is %s, %v, expected the last version", times, got, err)
		}
	}
	if n := logged.count("catalog applied"); n != 1+attempts {
		t.Errorf("%d versions were applied, expected the last of each:\n%s", n, logged)
	}
}
