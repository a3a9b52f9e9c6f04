package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// only returns the one object of a kind.
func only(t *testing.T, text, kind string) object {
	t.Helper()
	found := ofKind(objects(t, text), kind)
	if len(found) != 1 {
		t.Fatalf("there are %d objects of the kind %s, want one", len(found), kind)
	}
	return found[0]
}

// What bounds memory follows from the memory limit of the container, and what the values
// say themselves stays.
func TestMemoryFollowsLimit(t *testing.T) {
	helm := helm(t, "")
	const owner = "--set=dns.owners[0].zones={west.fed.example},dns.owners[0].addresses={west.example:8008},dns.owners[0].properties={max_catalog 7MiB}"
	for _, tt := range []struct {
		name, example string
		args          []string
		goMemLimit    []string
		maxCatalog    []string
	}{
		{"default", "beside", nil, []string{"460MiB"}, []string{"102MiB"}},
		{"larger", "beside", []string{"--set=dns.resources.limits.memory=4Gi"}, []string{"3686MiB"}, []string{"819MiB"}},
		{"fraction", "beside", []string{"--set=dns.resources.limits.memory=1.5G"}, []string{"1287MiB"}, []string{"286MiB"}},
		{"number", "beside", []string{"--set-json=dns.resources.limits.memory=536870912"}, []string{"460MiB"}, []string{"102MiB"}},
		{"tiny", "beside", []string{"--set=dns.resources.limits.memory=3Mi"}, []string{"2MiB"}, []string{"1MiB"}},
		{"none", "beside", []string{"--set=dns.resources.limits.memory=null"}, nil, nil},
		{"own", "beside", []string{"--set=dns.extraEnv[0].name=GOMEMLIMIT,dns.extraEnv[0].value=1GiB", owner}, []string{"1GiB"}, []string{"7MiB"}},
		{"two owners", "both", nil, []string{"460MiB", "460MiB"}, []string{"51MiB", "51MiB"}},
		{"relay", "owner-relay", nil, []string{"460MiB"}, []string{"51MiB"}},
		{"import", "import", nil, []string{"460MiB"}, []string{"102MiB"}},
		{"relay with its own", "owner-relay", []string{"--set=owner.relays[0].relay.max_catalog=7MiB"}, []string{"460MiB"}, []string{"7MiB"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rendered := helm.template(t, tt.example, tt.args...)
			for pattern, want := range map[string][]string{
				`(?m)- name: GOMEMLIMIT\n *value: (\S+)$`: tt.goMemLimit, `(?m)^ *max_catalog:? (\S+)$`: tt.maxCatalog,
			} {
				var got []string
				for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(rendered, -1) {
					got = append(got, match[1])
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", pattern, diff)
				}
			}
		})
	}
}

// The schema has the keys that the configurations of an owner and of an importer take.
func TestKubernetesKeys(t *testing.T) {
	text := must.Get(os.ReadFile(chart + "/values.schema.json"))(t)
	var schema object
	must.Do(t, json.Unmarshal(text, &schema))
	_, owner := config.Parse([]byte("catalogs:\n- sources:\n  - kubernetes: {cluster: west, zone: west.fed.example, nonesuch: 1}\n"))
	_, importer, _ := config.CheckImport([]byte("kubernetes: {nonesuch: 1}\n"))
	for component, wrong := range map[string][]problem.Problem{"owner": owner, "import": importer} {
		known := regexp.MustCompile(`nonesuch: there is no such key; those that there are: ([a-z_]+(?:, [a-z_]+)*)`).FindStringSubmatch(fmt.Sprintln(wrong))
		if known == nil {
			t.Fatalf("%v does not say which keys there are", wrong)
		}
		keys, _ := at(schema, "properties", component, "properties", "kubernetes", "properties").(object)
		if diff := cmp.Diff(strings.Split(known[1], ", "), slices.Sorted(maps.Keys(keys))); diff != "" {
			t.Errorf("keys of %s (-configuration +values.schema.json):\n%s", component, diff)
		}
	}
}

// Artifact Hub reads annotations of the chart, one of which is YAML itself. Its links lead to
// files that are there.
func TestArtifactHub(t *testing.T) {
	text := must.Get(os.ReadFile(chart + "/Chart.yaml"))(t)
	var found struct {
		Home        string
		Annotations map[string]string
	}
	must.Do(t, yaml.Unmarshal(text, &found))
	for key, want := range map[string]string{"category": "networking", "license": "Apache-2.0"} {
		if got := found.Annotations["artifacthub.io/"+key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	var links []struct{ Name, URL string }
	must.Do(t, yaml.Unmarshal([]byte(found.Annotations["artifacthub.io/links"]), &links))
	if len(links) == 0 {
		t.Error("there are no links")
	}
	for _, link := range links {
		file, ours := strings.CutPrefix(link.URL, found.Home+"/blob/main/")
		if _, err := os.Stat(root + "/" + file); !ours || err != nil {
			t.Errorf("%s: %s leads to no file of %s: %v", link.Name, link.URL, found.Home, err)
		}
	}
}

// With the Prometheus Operator, each component that is installed has its own alerts,
// which are those of deploy/monitoring, and a Service that only its ServiceMonitor finds
// a port of metrics at.
func TestMonitoring(t *testing.T) {
	helm := helm(t, "")
	text := must.Get(os.ReadFile(root + "/deploy/monitoring/rules.yaml"))(t)
	var rules struct{ Groups []object }
	must.Do(t, yaml.Unmarshal(text, &rules))
	groups := make(map[string]any)
	for _, group := range rules.Groups {
		name, _ := group["name"].(string)
		groups[strings.NewReplacer("federation-owner", "owner", "federation-consumer", "dns", "federation-import", "import").Replace(name)] = group
	}
	if rendered := helm.template(t, "both"); strings.Contains(rendered, "monitoring.coreos.com") || strings.Contains(rendered, "-metrics") {
		t.Error("objects of the Prometheus Operator are made by default")
	}
	for example, components := range map[string][]string{"both": {"dns", "owner"}, "owner": {"owner"}, "beside": {"dns"}, "import": {"import"}} {
		rendered := objects(t, helm.template(t, example,
			"--set=monitoring.serviceMonitor.enabled=true,monitoring.serviceMonitor.interval=30s,monitoring.serviceMonitor.labels.release=prometheus",
			"--set=monitoring.prometheusRule.enabled=true,monitoring.prometheusRule.labels.release=prometheus"))
		got, want := make(map[string]any), make(map[string]any)
		for _, component := range components {
			want[component] = []any{groups[component]}
			rule := rendered["PrometheusRule federation/federation-"+component]
			got[component] = at(rule, "spec", "groups")
			monitor := rendered["ServiceMonitor federation/federation-"+component]
			for _, o := range []object{rule, monitor} {
				if at(o, "metadata", "labels", "release") != "prometheus" {
					t.Errorf("%s: %v has not the label of the values", example, at(o, "kind"))
				}
			}
			service := rendered["Service federation/federation-"+component+"-metrics"]
			labels, _ := at(service, "metadata", "labels").(object)
			selector, _ := at(monitor, "spec", "selector", "matchLabels").(object)
			for key, value := range selector {
				if labels[key] != value {
					t.Errorf("%s: the ServiceMonitor wants %s=%v, and its Service has %v", example, key, value, labels[key])
				}
			}
			wanted := []any{object{"port": "metrics", "interval": "30s"}}
			if diff := cmp.Diff(any(wanted), at(monitor, "spec", "endpoints")); diff != "" || len(selector) == 0 {
				t.Errorf("%s: endpoints (-want +got):\n%s", example, diff)
			}
			selected := at(rendered["Deployment federation/federation-"+component], "spec", "selector", "matchLabels")
			if diff := cmp.Diff(selected, at(service, "spec", "selector")); diff != "" {
				t.Errorf("%s: the Service selects (-Deployment +Service):\n%s", example, diff)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: rules (-deploy/monitoring/rules.yaml +chart):\n%s", example, diff)
		}
		if n := len(ofKind(rendered, "PrometheusRule")) + len(ofKind(rendered, "ServiceMonitor")); n != 2*len(components) {
			t.Errorf("%s: there are %d objects of the Prometheus Operator for %d components", example, n, len(components))
		}
	}
}
