package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// testUpgrade upgrades a release of the former chart, with an owner and CoreDNS, to this one with
// the values that it has, and rolls it back. Pods take up a changed configuration before they are
// replaced, or after the others are rolled back: so each version of the programs takes what
// the other version's chart renders.
func testUpgrade(t *testing.T, helm, kubectl command) {
	const namespace = "--namespace=federation"
	clone, program := realserver.BuildFormer(t)
	former := filepath.Join(clone, "deploy/chart")
	versions := map[string]command{
		"the former version": newCommand(t, program, ""),
		"this version":       newCommand(t, place.Built(t, "federationctl"), ""),
	}
	manifest := func() string { return helm.must(t, "", "get", "manifest", "federation", namespace) }
	state := func() string {
		return kubectl.must(t, "", "get", namespace, "deployments,services,configmaps,networkpolicies,serviceaccounts",
			"-o=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.spec}{.data}{\"\\n\"}{end}", "--selector=app.kubernetes.io/instance=federation")
	}
	helm.must(t, "", "install", "federation", former, namespace, "--values="+filepath.Join(former, "examples/both.yaml"))
	before, objectsBefore := manifest(), state()
	helm.must(t, "", "upgrade", "federation", chart, namespace, "--reset-then-reuse-values")
	for _, rendered := range []string{before, manifest()} {
		accepted(t, versions, rendered)
	}
	helm.must(t, "", "rollback", "federation", namespace)
	if diff := cmp.Diff(objectsBefore, state()); diff != "" {
		t.Errorf("rolled back it is another one (-before +after):\n%s", diff)
	}
	helm.must(t, "", "uninstall", "federation", namespace)
	left := kubectl.must(t, "", "get", "--all-namespaces", "-o=name", "--selector=app.kubernetes.io/part-of=coredns-federation",
		"serviceaccounts,configmaps,services,deployments,poddisruptionbudgets,networkpolicies,roles,rolebindings,clusterroles,clusterrolebindings")
	if left != "" {
		t.Errorf("after the release there are\n%s", left)
	}
}

// accepted checks that each version of the programs takes the configuration in what a chart
// renders.
func accepted(t *testing.T, versions map[string]command, rendered string) {
	t.Helper()
	dir, found := t.TempDir(), 0
	for _, file := range []string{"owner.yaml", "Corefile"} {
		text := fileOf(t, rendered, file)
		if text == "" {
			continue
		}
		found++
		path := filepath.Join(dir, file)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		for name, program := range versions {
			check := "check"
			if file == "owner.yaml" && strings.Contains(program.must(t, "", "--help"), "\n  lint ") { // the former version knows Corefiles apart
				check = "lint"
			}
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
