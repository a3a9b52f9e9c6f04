package ownerfile

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

func openFile(t *testing.T, path string) (*FileSource, *logBuffer) {
	t.Helper()
	logged := &logBuffer{}
	f, err := OpenFile(FileConfig{Path: path, Registry: owner.NewRegistry(), Logger: slog.New(slog.NewTextHandler(logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return f, logged
}

func TestOpenFileFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "catalog.yaml")
	for _, tt := range []struct{ name, text, want string }{
		{"missing", "", "catalog file: open " + path + ": no such file or directory"},
		{"broken", "services:\n- name: a\n" + rest, "catalog file " + path + `: line 2: service "a": fqdn: required`},
	} {
		if tt.text != "" {
			write(t, path, tt.text)
		}
		registry := owner.NewRegistry()
		_, err := OpenFile(FileConfig{Path: path, Registry: registry, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: error is %v, expected %s", tt.name, err, tt.want)
		}
		if registry.Len() != 0 {
			t.Errorf("%s: %d services, expected none", tt.name, registry.Len())
		}
	}
}

// TestFileSourceFollows lets the file change in every way that files change in,
// with the notifications of this system.
func TestFileSourceFollows(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "catalog.yaml")
	write(t, path, catalogFile("a 1", "b 1"))
	f, _ := openFile(t, path)
	subscription := f.config.Registry.Subscribe()
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
			got = append(got, show(event))
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

// TestFileSourceReports polls, as it does where there are no notifications.
func TestFileSourceReports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.yaml")
	synctest.Test(t, func(t *testing.T) {
		write(t, path, catalogFile("a 1"))
		f, logged := openFile(t, path)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { f.follow(ctx, nil, nil) })
		defer running.Wait()
		defer cancel()
		version := func() string { return strings.Join(published(t, f.config.Registry), " ") }
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

func TestFileSourceWithoutNotifications(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "catalog.yaml")
	write(t, path, catalogFile("a 1"))
	f, logged := openFile(t, path)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Run(ctx); err != nil {
		t.Errorf("Run failed with %v, expected nil", err)
	}
	if logged.count("no notifications of changes") != 1 {
		t.Errorf("the lack of notifications is not logged:\n%s", logged)
	}
}
