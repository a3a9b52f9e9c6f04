package monitoring

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// The files that are tested, from this folder.
const (
	folder  = "../../../deploy/monitoring"
	runbook = "../../../docs/runbook.md"
)

// rules is a rule file of Prometheus.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// tool returns the path of a program of the Debian package prometheus.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("REAL_SERVERS") == "required":
		t.Fatalf("%v: install the Debian package prometheus (REAL_SERVERS=required)", err)
	default:
		t.Skipf("NOT TESTED: %v: install the Debian package prometheus", err)
	}
	return path
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.Do(t, err)
	return string(text)
}

// alerts returns the rules of the rule file by name.
func alerts(t testing.TB) map[string]rule {
	t.Helper()
	var file rules
	must.Do(t, yaml.UnmarshalStrict([]byte(read(t, folder+"/rules.yaml")), &file))
	all := make(map[string]rule)
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if _, twice := all[r.Alert]; twice || r.Alert == "" {
				t.Errorf("the name %q is not that of one alert", r.Alert)
			}
			all[r.Alert] = r
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d alerts were found", len(all))
	}
	return all
}

// found returns what the group of a pattern matches in a text, sorted, each once.
func found(pattern, text string) []string {
	var all []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestEveryAlertIsComplete checks that each alert has what the person on call needs: a
// severity, texts with values, an entry of the runbook; and tests: one of its time
// logic, and one with a real fault. There is none of these for an alert that does not exist.
func TestEveryAlertIsComplete(t *testing.T) {
	all := alerts(t)
	names := slices.Sorted(maps.Keys(all))
	tests := read(t, folder+"/rules_test.yaml") + read(t, folder+"/rules_days_test.yaml")
	for what, has := range map[string][]string{
		"docs/runbook.md":             found(`(?m)^### (Federation[A-Za-z]+)$`, read(t, runbook)),
		"names of promtool tests":     found(`(?m)^- name: (Federation[A-Za-z]+)$`, tests),
		"expectations of these tests": found(`alertname="(Federation[A-Za-z]+)"`, tests),
		"real faults":                 found(`"(Federation[A-Za-z]+)"`, read(t, "faults_test.go")),
	} {
		if diff := cmp.Diff(names, has); diff != "" {
			t.Errorf("alerts (-rules.yaml +%s):\n%s", what, diff)
		}
	}
	const base = "https://github.com/hamlet-federation/coredns-federation/blob/main/docs/runbook.md#"
	for name, r := range all {
		if s := r.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s has the severity %q", name, s)
		}
		if r.Annotations["runbook_url"] != base+strings.ToLower(name) { // as GitHub makes anchors of headings
			t.Errorf("%s has the runbook_url %s", name, r.Annotations["runbook_url"])
		}
		if summary := r.Annotations["summary"]; !strings.Contains(summary, "{{ $labels.") {
			t.Errorf("the summary of %s does not say where: %s", name, summary)
		}
		if r.Annotations["description"] == "" {
			t.Errorf("%s has no description", name)
		}
	}
}

// TestMetricsExist checks that rules and dashboard use only metrics that are declared.
func TestMetricsExist(t *testing.T) {
	declared := map[string]bool{"coredns_federation_update_duration_seconds_bucket": true}
	for source, prefix := range map[string]string{
		"plugin/metrics.go": "coredns_federation_", "cmd/federationctl/serve/metrics/metrics.go": "federation_owner_",
		"cmd/federationctl/serve/metrics/import.go": "federation_import_",
	} {
		for _, name := range found(`\b(?:counter|Gauge|Count|Flag|Time)\("([a-z_]+)"`, read(t, "../../../"+source)) {
			declared[prefix+name] = true
		}
	}
	for _, file := range []string{"rules.yaml", "rules_test.yaml", "dashboard.json"} {
		used := found(`\b((?:coredns_federation|federation_owner|federation_import)_[a-z_]+)`, read(t, filepath.Join(folder, file)))
		if len(used) < 10 {
			t.Errorf("%s uses only %d metrics", file, len(used))
		}
		for _, name := range used {
			if !declared[name] {
				t.Errorf("%s has the metric %s, which nothing declares", file, name)
			}
		}
	}
}

// TestRules runs the tests of the time logic.
func TestRules(t *testing.T) {
	promtool := tool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml", "rules_days_test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// TestOperatorRules runs the command of the README that makes a PrometheusRule, and compares it
// with the rule file.
func TestOperatorRules(t *testing.T) {
	_, text, ok := strings.Cut(read(t, folder+"/README.md"), "```sh\n(\n")
	command, _, _ := strings.Cut(text, "\n```")
	command, _, piped := strings.Cut("(\n"+command, " | kubectl apply")
	if !ok || !piped {
		t.Fatal("README.md has no command that makes a PrometheusRule")
	}
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	must.Do(t, err)
	var object struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       rules          `json:"spec"`
	}
	must.Do(t, yaml.UnmarshalStrict(out, &object))
	var file rules
	must.Do(t, yaml.Unmarshal([]byte(read(t, folder+"/rules.yaml")), &file))
	if diff := cmp.Diff(file, object.Spec); diff != "" || object.Kind != "PrometheusRule" || object.Metadata["name"] == nil {
		t.Errorf("%s %v (-file +object):\n%s", object.Kind, object.Metadata, diff)
	}
}
