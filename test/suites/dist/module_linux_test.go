package dist

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	module  = "github.com/hamlet-federation/coredns-federation"
	renamed = "example.org/team/dns"
)

// stays are the files that name the organisation other than in the path of the module, with
// the reason. Everywhere else only labels and annotations do, which others know by their names.
var stays = map[string]string{
	"federation/source/kubernetes/client.go":                  "the user agent, which audit logs of clusters have",
	"federation/source/kubernetes/testdata/rbac.yaml":         "an example's name",
	"federation/source/kubernetes/internal/feedback/write.go": "owners of fields in clusters that run",
}

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

// Another path of the module reaches every file, and what has it still compiles and starts.
func TestRename(t *testing.T) {
	need(t, "git", "make", "grep", "sed", "xargs")
	clone, err := newClone("HEAD")
	must.Do(t, err)
	variable := regexp.MustCompile(`(?m)^MODULE := (.*)$`)
	for _, want := range []string{module, renamed} {
		if want == renamed {
			run(t, "make", "--no-print-directory", "-C", clone, "rename", "MODULE="+renamed)
		}
		for file, line := range map[string]*regexp.Regexp{"Makefile": variable, "go.mod": regexp.MustCompile(`(?m)^module (.*)$`)} {
			if got := line.FindStringSubmatch(string(must.Get(os.ReadFile(filepath.Join(clone, file)))(t))); got == nil || got[1] != want {
				t.Errorf("%s has the module %q, want %s", file, got, want)
			}
		}
	}
	organisation := strings.Split(module, "/")[1]
	found := make(map[string]bool)
	must.Do(t, filepath.WalkDir(clone, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name() == ".git" || path == filepath.Join(clone, "bin")) {
			return fs.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, _ := filepath.Rel(clone, path)
		for i, line := range strings.Split(string(must.Get(os.ReadFile(path))(t)), "\n") {
			if strings.Contains(line, module) || strings.Contains(strings.ReplaceAll(line, organisation+".github.io/", ""), organisation) && stays[name] == "" {
				t.Errorf("%s:%d still is: %.200s", name, i+1, line)
			}
			found[name] = found[name] || strings.Contains(line, organisation)
		}
		return nil
	}))
	for name, reason := range stays {
		if !found[name] {
			t.Errorf("%s has no name that stays (%s)", name, reason)
		}
	}
	if page := string(must.Get(os.ReadFile(clone + "/docs/install.md"))(t)); !strings.Contains(page, "git clone https://"+renamed+" coredns-federation\ncd coredns-federation\n") {
		t.Errorf("docs/install.md goes to another folder than that of the clone:\n%s", page)
	}
	if out := inFolder(t, clone, nil, "gofmt", "-l", "."); out != "" {
		t.Errorf("not formatted are\n%s", out)
	}
	inFolder(t, clone, nil, "go", "vet", "./...")
	inFolder(t, clone, nil, "go", "-C", "deploy", "vet", "./...")
	// A stub whose text has the wrong length ends every program that links it.
	inFolder(t, clone, []string{"CGO_ENABLED=0"}, "go", "run", "./cmd/federationctl", "--version")
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
