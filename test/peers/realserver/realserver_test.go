package realserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestFind(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	find := func(want, wantErr string) {
		t.Helper()
		got, err := etcd.find(root)
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) || got != want {
			t.Errorf("found %q, %v, want %q and an error with %q", got, err, want, wantErr)
		}
	}
	find("", "go.mod")
	write("test/peers/tools/etcd/go.mod", "tool go.etcd.io/etcd/server/v3\n")
	find("", "does not require go.etcd.io/etcd/server/v3")
	write("test/peers/tools/etcd/go.mod", "tool go.etcd.io/etcd/server/v3\n\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.1.2 // indirect\n)\n")
	write("bin/tools/etcd-v3.1.1", "")
	find("", "bin/tools/etcd-v3.1.2 is not built: run make real-servers")
	write("bin/tools/etcd-v3.1.2", "")
	find(filepath.Join(root, "bin/tools/etcd-v3.1.2"), "")
}

// TestPins checks that the modules of the tools pin what is looked for.
func TestPins(t *testing.T) {
	for _, p := range []program{etcd, apiServer, controllers, kubectl, spireServer, spireAgent} {
		if _, err := p.findHere(); err != nil && !strings.Contains(err.Error(), "run make "+p.target) {
			t.Error(err)
		}
	}
}
