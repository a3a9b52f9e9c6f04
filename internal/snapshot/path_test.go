package snapshot_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestSaveThroughLinks saves to paths that are symbolic links, which stay links, with
// and without a file at the end.
func TestSaveThroughLinks(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"etc", "data/kept"} {
		must.Do(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	link := func(target, name string) {
		t.Helper()
		must.Do(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	link(filepath.Join(dir, "data"), "etc/data")
	link("data/kept/../current", "etc/catalog.db") // through a link, and up from where that leads to
	link("kept/catalog.db", "data/current")
	path := filepath.Join(dir, "etc/catalog.db")
	for range 2 {
		must.Do(t, snapshot.Save(path, example(t)))
		for _, name := range []string{"etc/catalog.db", "data/kept/catalog.db"} {
			if got, err := snapshot.Load(filepath.Join(dir, name), wanted); err != nil || compare(example(t), got) != "" {
				t.Errorf("%s: %v", name, err)
			}
		}
		if target, err := os.Readlink(path); err != nil || target != "data/kept/../current" {
			t.Errorf("link leads to %q, %v", target, err)
		}
		if got := files(t, filepath.Join(dir, "data/kept")); !slices.Equal(got, []string{"catalog.db"}) {
			t.Errorf("files %q", got)
		}
	}
	want := must.Get(filepath.EvalSymlinks(filepath.Join(dir, "data/kept/catalog.db")))(t)
	for _, name := range []string{"etc/catalog.db", "data/current", "data/kept/catalog.db", "data/../etc/catalog.db", "data/kept/../kept/./catalog.db"} {
		if got, err := snapshot.CheckPath(dir + "/" + name); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
}

// TestCheck checks paths at which there is no snapshot yet.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	fifo, loop := filepath.Join(dir, "fifo"), filepath.Join(dir, "loop")
	must.Do(t, errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink("loop", loop)))
	// A device would do as well, but root would replace one that has become a plain file.
	socket := must.Get(new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "socket")))(t)
	defer socket.Close()
	for path, want := range map[string]error{
		filepath.Join(dir, "missing", "catalog.db"): fs.ErrNotExist,
		dir:                              file.ErrNotRegular,
		fifo:                             file.ErrNotRegular,
		socket.Addr().String():           file.ErrNotRegular,
		loop:                             syscall.ELOOP,
		filepath.Join(dir, "catalog.db"): nil,
	} {
		if _, err := snapshot.CheckPath(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if want == nil {
			continue
		}
		if err := snapshot.Save(path, example(t)); !errors.Is(err, want) {
			t.Errorf("save %s: %v, want %v", path, err, want)
		}
		if _, err := snapshot.Load(path, wanted); err == nil { // a FIFO without a writer would block
			t.Errorf("load %s: no error", path)
		}
	}
	if got := files(t, dir); !slices.Equal(got, []string{"fifo", "loop", "socket"}) {
		t.Errorf("files %q", got)
	}
	if os.Geteuid() == 0 {
		return // may write everywhere
	}
	must.Do(t, os.Chmod(dir, 0o500))
	if _, err := snapshot.CheckPath(filepath.Join(dir, "catalog.db")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("directory that cannot be written: %v", err)
	}
}

// TestSetAside sets two files aside: the second takes the place of the first.
func TestSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "catalog.db")
	for _, content := range []string{"a", "b"} {
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
		name := must.Get(snapshot.SetAside(path))(t)
		if kept := must.Get(os.ReadFile(name))(t); filepath.Base(name) != "catalog.db.rejected" || string(kept) != content {
			t.Errorf("%s has %q, want %q", name, kept, content)
		}
	}
	if _, err := snapshot.SetAside(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing to set aside: %v", err)
	}
}

// TestDiskFull saves until a write fails: the old file stays, and no temporary file.
// The limit of the size of files applies to a whole process, so it runs another one.
func TestDiskFull(t *testing.T) {
	const variable = "SNAPSHOT_FULL_DISK"
	path := os.Getenv(variable)
	if path == "" {
		path = filepath.Join(t.TempDir(), "catalog.db")
		must.Do(t, snapshot.Save(path, example(t)))
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDiskFull$")
		cmd.Env = append(os.Environ(), variable+"="+path)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, output)
		}
		if got, err := snapshot.Load(path, wanted); err != nil || compare(example(t), got) != "" {
			t.Errorf("the old file: %v", err)
		}
		if got := files(t, filepath.Dir(path)); !slices.Equal(got, []string{"catalog.db"}) {
			t.Errorf("files %q", got)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	const octets = 64 << 10
	must.Do(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: octets, Max: octets}))
	if err := snapshot.Save(path, many(t, 10_000)); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("got %v", err)
	}
}
