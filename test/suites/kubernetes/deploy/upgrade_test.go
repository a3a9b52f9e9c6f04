package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// A release of the former chart is upgraded to this one with the values that it has, and
// rolled back, on a real API server. Pods take up a changed configuration before they are
// replaced, or after the others are rolled back: so each version of the programs takes what
// the other version's chart renders.
func TestUpgrade(t *testing.T) {
	server := realserver.StartAPIServer(t)
	helm, kubectl := helm(t, server.Kubeconfig), kubectl(t, server.Kubeconfig)
	prepare(t, kubectl)
	clone, program := realserver.BuildFormer(t)
	former := filepath.Join(clone, "deploy/chart")
	versions := map[string]command{
		"the former version": newCommand(t, program, ""),
		"this version":       newCommand(t, filepath.Join(programs(t), "federationctl"), ""),
	}
	var upgraded int
	for _, example := range slices.Sorted(maps.Keys(examples(t))) {
		values := filepath.Join(former, "examples", example+".yaml")
		if _, err := os.Stat(values); err != nil {
			continue // it is new
		}
		upgraded++
		t.Run(example, func(t *testing.T) {
			release := []string{"federation", "--namespace=" + namespaceOf(example)}
			manifest := func() string { return helm.must(t, "", append([]string{"get", "manifest"}, release...)...) }
			state := func() string {
				return kubectl.must(t, "", "get", release[1], "deployments,services,configmaps,networkpolicies,serviceaccounts", "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.spec}{.data}{\"\\n\"}{end}",
					"--selector=app.kubernetes.io/instance=federation")
			}
			helm.must(t, "", "install", release[0], former, release[1], "--values="+values)
			before, objectsBefore := manifest(), state()
			helm.must(t, "", "upgrade", release[0], chart, release[1], "--reset-then-reuse-values")
			after := manifest()
			for _, rendered := range []string{before, after} {
				accepted(t, versions, rendered)
			}
			helm.must(t, "", append([]string{"rollback"}, release...)...)
			if diff := cmp.Diff(objectsBefore, state()); diff != "" {
				t.Errorf("rolled back it is another one (-before +after):\n%s", diff)
			}
			helm.must(t, "", append([]string{"uninstall"}, release...)...)
			if left := leftovers(t, kubectl); left != "" {
				t.Errorf("after the release there are\n%s", left)
			}
		})
	}
	if upgraded < 6 {
		t.Errorf("%d examples were upgraded, want 6 at least", upgraded)
	}
}

// accepted checks that each version of the programs takes the configuration in what a chart
// renders.
func accepted(t *testing.T, versions map[string]command, rendered string) {
	t.Helper()
	dir, found := t.TempDir(), 0
	for file, check := range map[string]string{"owner.yaml": "lint", "Corefile": "check"} {
		text := fileOf(t, rendered, file)
		if text == "" {
			continue
		}
		found++
		path := filepath.Join(dir, file)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		for name, program := range versions {
			args := []string{check, path}
			if strings.Contains(program.must(t, "", check, "--help"), "--elsewhere") { // the former version does not mind that they are not here
				args = append(args, "--elsewhere")
			}
			if out, _, err := program.run("", args...); err != nil {
				t.Errorf("%s: %v%s\nin\n%s", name, err, out, strings.TrimSpace(text))
			}
		}
	}
	if found == 0 {
		t.Error("it renders no configuration")
	}
}
