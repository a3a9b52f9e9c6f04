package dist

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const module = "github.com/hamlet-federation/coredns-federation"

// inFolder runs a program in a folder, with variables, and returns what it wrote.
func inFolder(t *testing.T, folder string, environment []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Who has nothing but Go gets the module from a proxy, and builds it into CoreDNS with the
// lines of docs/install.md.
func TestModule(t *testing.T) {
	need(t, "git", "grep")
	clone, err := newClone("HEAD")
	must.Do(t, err)
	run(t, "git", "-C", clone, "tag", version)
	// Go itself makes of a tag what a proxy has: it keeps it as a proxy serves it.
	download := t.TempDir()
	environment := []string{
		"GOMODCACHE=" + download, "GOPROXY=direct", "GOFLAGS=-modcacherw", "GONOSUMDB=" + module, "GOWORK=off",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url." + clone + ".insteadOf", "GIT_CONFIG_VALUE_0=https://" + module,
	}
	inFolder(t, t.TempDir(), environment, "go", "mod", "download", module+"@"+version)
	proxies := "file://" + download + "/cache/download," + strings.TrimSpace(run(t, "go", "env", "GOPROXY"))

	tree := filepath.Join(t.TempDir(), "coredns")
	release := strings.Fields(inFolder(t, repository, nil, "go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", "github.com/coredns/coredns"))
	run(t, "cp", "-R", release[0], tree)
	run(t, "chmod", "-R", "u+w", tree)
	// As the clone that the page makes has a folder for the replacement, a proxy needs none.
	lines := bufio.NewScanner(strings.NewReader(strings.Join(commands(t, "docs/install.md", "Your own CoreDNS", "(sed|go|./coredns)"), "\n")))
	environment = []string{"GOPATH=" + t.TempDir(), "GOMODCACHE=", "GOPROXY=" + proxies, "GOFLAGS=-modcacherw -trimpath -buildvcs=false", "GONOSUMDB=" + module, "CGO_ENABLED=0"}
	var done int
	for ; lines.Scan(); done++ {
		line := lines.Text()
		if strings.HasPrefix(line, "go mod edit -replace") {
			continue
		}
		line = strings.Replace(line, "@v0.0.0", "@"+version, 1)
		t.Logf("%s\n%s", line, inFolder(t, tree, environment, "sh", "-ec", line))
	}
	if done != 6 {
		t.Errorf("docs/install.md has %d commands for a CoreDNS, want 6", done)
	}
	if got := inFolder(t, tree, nil, "go", "version", "-m", "coredns"); !strings.Contains(got, fmt.Sprintf("dep\t%s\t%s\t", module, version)) {
		t.Errorf("coredns has other modules:\n%s", got)
	}
}
