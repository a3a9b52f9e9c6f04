package realserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// former is the commit that upgrades begin at, and are rolled back to. It stands for the
// release before this one until there is a tag of one: one after properties, keys and
// values of the chart were given up, and the file of persist got its present format: nobody
// upgrades across these.
const former = "88aff2a5c6b612a366843f01d6ed872042875bc3"

// CloneFormer clones that commit of a repository to a new folder, and returns it. A clone
// without history does not have it: then the commit is the one of now, and an upgrade shows
// restarts and changes of files, but not that two versions understand each other.
func CloneFormer(repository, folder string) (commit string, err error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if commit, err = git("-C", repository, "rev-parse", "--verify", "--quiet", former+"^{commit}"); err != nil {
		if commit, err = git("-C", repository, "rev-parse", "HEAD"); err != nil {
			return "", err
		}
	}
	if _, err := git("clone", "--quiet", "--no-checkout", repository, folder); err != nil {
		return "", err
	}
	_, err = git("-C", folder, "checkout", "--quiet", "--detach", commit)
	return commit, err
}

// BuildFormer clones that commit for a test, and builds its federationctl. It returns the clone
// and the program.
func BuildFormer(tb testing.TB) (clone, program string) {
	tb.Helper()
	clone = filepath.Join(tb.TempDir(), "clone")
	commit := must.Get(CloneFormer(must.Get(Root())(tb), clone))(tb)
	program = filepath.Join(clone, "bin/federationctl")
	// As in dist, so that the compiler's work is shared.
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/federationctl")
	build.Dir, build.Env = clone, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("go build of %s: %v\n%s", commit, err, out)
	}
	return clone, program
}
