package snapshot_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var wanted = snapshot.ReadOptions{Owner: owner}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	if _, err := snapshot.Load(path, wanted); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no file: %v", err)
	}
	for _, s := range []*snapshot.Snapshot{example(t), {Owner: owner, LastUp: lastUp}} {
		must.Do(t, snapshot.Save(path, s))
		got := must.Get(snapshot.Load(path, wanted))(t)
		if diff := compare(s, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	info := must.Get(os.Stat(path))(t)
	if runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if got := files(t, filepath.Dir(path)); !slices.Equal(got, []string{"catalog.db"}) {
		t.Errorf("files %q", got)
	}
}

// files returns the names in a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestSaveFails fails to save: the last snapshot stays, and no other file is left.
func TestSaveFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "catalog.db")
	must.Do(t, snapshot.Save(path, example(t)))
	bad := example(t)
	bad.Owner = "\xff" // no UTF-8
	err := snapshot.Save(path, bad)
	if err == nil || !strings.HasPrefix(err.Error(), "save "+path+": ") {
		t.Errorf("got %v", err)
	}
	if got, err := snapshot.Load(path, wanted); err != nil || compare(example(t), got) != "" {
		t.Errorf("the old file: %v", err)
	}
	if err := snapshot.Save(dir, example(t)); err == nil {
		t.Error("a directory was replaced")
	}
	if got := files(t, dir); !slices.Equal(got, []string{"catalog.db"}) {
		t.Errorf("files %q", got)
	}
	if err := snapshot.Save(filepath.Join(dir, "none", "catalog.db"), example(t)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestLoadFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	must.Do(t, os.WriteFile(path, []byte("fedsnap"), 0o600))
	if _, err := snapshot.Load(path, wanted); !errors.Is(err, snapshot.ErrCorrupt) || err.Error() != path+": snapshot is damaged; the owner sends its catalog again" {
		t.Errorf("got %v", err)
	}
	if _, err := snapshot.Load(filepath.Dir(path), wanted); err == nil {
		t.Error("a directory was read")
	}
}

// TestSaveRemovesAbandonedFiles saves beside temporary files of killed processes, and
// beside files that are something else.
func TestSaveRemovesAbandonedFiles(t *testing.T) {
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{
		".catalog.db.1.tmp": time.Hour,
		".catalog.db.2.tmp": time.Minute, // may be at work
		".other.db.3.tmp":   time.Hour,
		"catalog.db.tmp":    time.Hour,
		".catalog.db.":      time.Hour,
	} {
		file := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(file, nil, 0o600))
		then := time.Now().Add(-age)
		must.Do(t, os.Chtimes(file, then, then))
	}
	must.Do(t, snapshot.Save(filepath.Join(dir, "catalog.db"), example(t)))
	want := []string{".catalog.db.", ".catalog.db.2.tmp", ".other.db.3.tmp", "catalog.db", "catalog.db.tmp"}
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("files %q", got)
	}
}

// TestLoadParts loads a snapshot part by part: all services in order. A reader may stop.
func TestLoadParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	want := many(t, 10_000)
	must.Do(t, snapshot.Save(path, want))
	load := func(stopAt int) (parts []int, whole *snapshot.Snapshot, err error) {
		whole = new(snapshot.Snapshot)
		o := wanted
		o.Part = func(part *snapshot.Snapshot) bool {
			parts = append(parts, len(part.Services))
			whole.Services = append(whole.Services, part.Services...)
			whole.Owner, whole.LastUp, whole.Saved = part.Owner, part.LastUp, part.Saved
			return len(parts) != stopAt
		}
		rest, err := snapshot.Load(path, o)
		if rest != nil && len(rest.Services) > 0 {
			t.Errorf("%d services are in no part", len(rest.Services))
		}
		return parts, whole, err
	}
	parts, got, err := load(0)
	if err != nil || compare(want, got) != "" || !slices.Equal(parts, []int{512, 1024, 2048, 4096, 2320}) {
		t.Errorf("parts of %v services: %v", parts, err)
	}
	for _, stopAt := range []int{1, len(parts)} {
		if parts, _, err := load(stopAt); !errors.Is(err, snapshot.ErrStopped) || len(parts) != stopAt {
			t.Errorf("parts of %v services when part %d is the last: %v", parts, stopAt, err)
		}
	}
}
