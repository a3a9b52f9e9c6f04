// Package programtest compiles binaries for tests.
package programtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// CompileBinaries compiles a program that does nothing, from a folder of its own, to the names of
// all binaries, as [program.Read] finds them.
func CompileBinaries(t *testing.T, arches ...string) (binaries string) {
	t.Helper()
	source, binaries := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.org/nothing\ngo 1.26\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, arch := range arches {
		for _, name := range []string{"coredns", "federationctl"} {
			cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(binaries, "linux-"+arch, name), ".")
			cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	return binaries
}
