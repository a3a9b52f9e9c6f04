package deploy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var update = flag.Bool("update", false, "render the plain manifests anew")

// The plain manifests are what the chart renders.
func TestManifests(t *testing.T) {
	helm := helm(t, "")
	for recipe := range recipes {
		path := filepath.Join(manifests, "base", recipe, "manifests.yaml")
		want := fmt.Sprintf("# Rendered from deploy/chart with examples/%s.yaml. Do not edit it: change the chart, and run\n"+
			"# go test ./test/suites/kubernetes/deploy -run TestManifests -update\n", recipe) + plain(helm.template(t, recipe))
		if *update {
			must.Do(t, os.WriteFile(path, []byte(want), 0o600))
		}
		got := must.Get(os.ReadFile(path))(t)
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s is not what the chart renders; run go test ./test/suites/kubernetes/deploy -run TestManifests -update (-want +got):\n%s", path, diff)
		}
	}
}

// plain returns what the chart renders, without the labels and the checksum that are true of a
// release only: kustomize sets other images and files, and what applies it is not Helm.
func plain(rendered string) string {
	return regexp.MustCompile(`(?m)^ *(app\.kubernetes\.io/(version|managed-by)|helm\.sh/chart|annotations:\n *checksum/config): .*\n`).ReplaceAllString(rendered, "")
}

// An overlay as it stands is what the chart renders, and so it is with the component
// spire.
func TestOverlays(t *testing.T) {
	helm, kubectl := helm(t, ""), kubectl(t, "")
	for recipe := range recipes {
		for _, spire := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,spire=%v", recipe, spire), func(t *testing.T) {
				example, dir := recipe, filepath.Join(manifests, "overlays", recipe)
				if spire {
					example, dir = recipe+"-spire", withSpire(t, recipe)
				}
				got := objects(t, kubectl.must(t, "", "kustomize", dir))
				want := objects(t, plain(helm.template(t, example)))
				for _, all := range []map[string]object{got, want} {
					for key := range all {
						all[key] = sorted(all[key])
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the overlay is not what the chart renders (-chart +overlay):\n%s", diff)
				}
			})
		}
	}
}

// The overlay of the owner with its patch is what the chart renders with a load balancer.
func TestOverlayLoadBalancer(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.CopyFS(dir, os.DirFS(manifests)))
	path := filepath.Join(dir, "overlays", "owner", "kustomization.yaml")
	text := must.Get(os.ReadFile(path))(t)
	must.Do(t, os.WriteFile(path, []byte(strings.Replace(string(text), "\n# patches:", "\npatches:", 1)), 0o600))
	got := only(t, kubectl(t, "").must(t, "", "kustomize", filepath.Dir(path)), "Service")
	want := only(t, plain(helm(t, "").template(t, "owner", "--set=owner.service.type=LoadBalancer")), "Service")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the Service is not what the chart renders (-chart +overlay):\n%s", diff)
	}
}

// withSpire returns a copy of an overlay with the line for the component spire, and
// with what the component says that its files must have.
func withSpire(t *testing.T, recipe string) (dir string) {
	t.Helper()
	all := t.TempDir()
	must.Do(t, os.CopyFS(all, os.DirFS(manifests)))
	dir = filepath.Join(all, "overlays", recipe)
	path := filepath.Join(dir, "kustomization.yaml")
	text := must.Get(os.ReadFile(path))(t)
	changed := strings.Replace(string(text), "\n# components:", "\ncomponents:", 1)
	if changed == string(text) {
		t.Fatalf("%s has no line for the component spire", path)
	}
	must.Do(t, os.WriteFile(path, []byte(changed), 0o600))
	component, err := os.ReadFile(filepath.Join(manifests, "spire", "kustomization.yaml"))
	must.Do(t, err)
	said := func(pattern string) string {
		t.Helper()
		match := regexp.MustCompile(pattern).FindSubmatch(component)
		if match == nil {
			t.Fatalf("the component spire does not say %s", pattern)
		}
		return strings.ReplaceAll(string(match[1]), "\n#   ", "\n")
	}
	name, line, by := "Corefile", ` tls /.*`, " "+said(`\n#   (spiffe .*)`)
	switch recipe {
	case "owner":
		name, line, by = "owner.yaml", `identity:\n  files:.*`, said(`\n#   (identity:(?:\n#    .*)+)`)
	case "import": // which is in east, and its owners in west
		name, line, by = "import.yaml", `identity:\n  files:.*`, strings.Replace(said(`\n#   (identity:(?:\n#    .*)+)`), "east.example", "west.example", 1)
	}
	path = filepath.Join(dir, name)
	text = must.Get(os.ReadFile(path))(t)
	if changed = regexp.MustCompile(line).ReplaceAllString(string(text), by); changed == string(text) {
		t.Fatalf("%s has no certificates in files", path)
	}
	must.Do(t, os.WriteFile(path, []byte(changed), 0o600))
	return dir
}

func TestLint(t *testing.T) {
	helm := helm(t, "")
	helm.must(t, "", "lint", "--strict", chart)
	for _, path := range examples(t) {
		helm.must(t, "", "lint", "--strict", chart, "--values", path)
	}
	if out := helm.template(t, "owner"); strings.Contains(out, "subPath:") {
		t.Error("a subPath is never updated")
	}
}

// What is missing or wrong is said by its name.
func TestMistakes(t *testing.T) {
	helm := helm(t, "")
	owner := []string{"--values", examples(t)["owner"]}
	beside := []string{"--values", examples(t)["beside"]}
	cluster := []string{"--values", examples(t)["cluster-dns"]}
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no image", append(owner, "--set", "owner.image.repository="), "owner.image.repository is required: push the image that make image built"},
		{"no version", append(beside, "--set", "dns.image.tag="), "dns.image.digest or dns.image.tag is required"},
		{"no digest", append(beside, "--set", "dns.image.digest=latest"), "/dns/image/digest"},
		{"no cluster", []string{"--set", "owner.enabled=true,owner.kubernetes.zone=a.example"}, "owner.kubernetes.cluster is required"},
		{"no zone", []string{"--set", "owner.enabled=true,owner.kubernetes.cluster=a"}, "owner.kubernetes.zone is required"},
		{"nobody may subscribe", append(owner, "--set", "owner.allow=null"), "owner.allow is required"},
		{"no rules", append(owner, "--set", "owner.registration.enabled=true"), "owner.registration.rules is required"},
		{"a file for two", append(owner, "--set", "owner.registration.enabled=true,owner.registration.rules=a"), "owner.registration.settings.store.etcd is required with several replicas"},
		{"unknown setting", append(owner, "--set", "owner.registration.settings.stores=a"), "additional properties 'stores' not allowed"},
		{"relay without addresses", append(owner, "--set", "owner.relays[0].server_name=a.example,owner.relays[0].relay.api=v1alpha2"), "missing property 'addresses'"},
		{"relay without a name", append(owner, "--set", "owner.relays[0].relay.addresses={a.example:8008}"), "missing property 'server_name'"},
		{"unknown kind of endpoints", append(owner, "--set", "owner.kubernetes.endpoints={pod}"), "/owner/kubernetes/endpoints/0"},
		{"no owners", append(beside, "--set", "dns.owners=null"), "dns.owners is required"},
		{"owner without zones", append(beside, "--set-json", `dns.owners=[{"addresses":["a.example:8008"]}]`), "missing property 'zones'"},
		{"address without port", append(beside, "--set", "dns.owners[0].addresses={owner.example}"), "/dns/owners/0/addresses/0"},
		{"unknown recipe", append(beside, "--set", "dns.recipe=instead"), "/dns/recipe"},
		{"no address of the cluster's DNS", append(cluster, "--set", "dns.service.clusterIP="), "dns.service.clusterIP is required with dns.recipe=cluster"},
		{"two certificates", append(beside, "--set", "dns.identity.spire=true,dns.identity.secretName=a"), "dns.identity: set one of secretName, spire and volume"},
		{"trust domains without SPIRE", append(owner, "--set", "owner.identity.trustDomains={a.example}"), "owner.identity.trustDomains is for certificates of SPIRE"},
		{"trust domain with a scheme", append(beside, "--set", "dns.identity.trustDomains={spiffe://a.example}"), "/dns/identity/trustDomains/0"},
		{"owner without ID", append(beside, "--set", "dns.identity.spire=true", "--set-json", `dns.owners=[{"zones":["a.example"],"addresses":["a.example:8008"]}]`), "dns.owners: an owner needs ids with dns.identity.spire"},
		{"nobody to import from", []string{"--values", examples(t)["import"], "--set", "import.owners=null"}, "import.owners is required"},
		{"import without addresses", []string{"--values", examples(t)["import"], "--set-json", `import.owners=[{"name":"west"}]`}, "missing property 'addresses'"},
		{"unknown kind of objects", []string{"--values", examples(t)["import"], "--set", "import.kubernetes.as=endpoints"}, "/import/kubernetes/as"},
		{"cluster without a name", []string{"--values", examples(t)["import"], "--set", "import.kubernetes.as=mcs"}, "import.kubernetes.cluster is required with as: mcs"},
		{"memory in words", append(beside, "--set", "dns.resources.limits.memory=plenty"), `resources.limits.memory: "plenty" is not a size such as 512Mi`},
		{"unknown key", append(owner, "--set", "owner.replica=3"), "additional properties 'replica' not allowed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := helm.run("", append([]string{"template", "federation", chart}, tc.args...)...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
}

// The owner may do what its source asks of an API server, and no more. A kind of
// endpoints that is left out needs no rights, and in some namespaces it needs them
// only there.
func TestRights(t *testing.T) {
	helm := helm(t, "")
	source := must.Get(os.ReadFile(root + "/internal/source/kubernetes/testdata/rbac.yaml"))(t)
	all := rights(t, string(source))
	for i, right := range all {
		if strings.Contains(right, "/leases") {
			all[i] = "in default: " + right // the namespace of the release
		}
	}
	slices.Sort(all)
	without := func(words ...string) (left []string) {
		for _, right := range all {
			if !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(right, word) }) {
				left = append(left, right)
			}
		}
		return left
	}
	// These are not in a namespace, in that of the owner, or read in all of them.
	shared := func(right string) bool {
		return strings.HasPrefix(right, "in ") || strings.Contains(right, "gateway.") || strings.HasSuffix(right, "/nodes")
	}
	var narrow []string
	for _, right := range without("gateway.", "/nodes") { // load balancers and pods
		if shared(right) {
			narrow = append(narrow, right)
			continue
		}
		narrow = append(narrow, "in pay: "+right, "in shop: "+right)
	}
	slices.Sort(narrow)
	// The importer may make a lease, and read and change its own alone; of Services also a ConfigMap, which it does
	// not change.
	const objects, read = "create delete get list update watch", "get list watch"
	importer := func(services, namespace string, more ...string) []string {
		found := append(rightsIn(services, objects, "/services", objects, "discovery.k8s.io/endpointslices"), rightsIn("", more...)...)
		found = append(found, rightsIn("in "+namespace+": ", "create", "coordination.k8s.io/leases", "get update", "coordination.k8s.io/leases/federation-import")...)
		if services != "" {
			found = append(found, rightsIn(services, "create", "/configmaps", "get", "/configmaps/federation-import")...)
		}
		slices.Sort(found)
		return found
	}
	for _, tc := range []struct {
		example string
		args    []string
		want    []string
	}{
		{"owner", nil, all},
		{"owner", []string{"--set", "owner.kubernetes.endpoints={load-balancer}"}, without("gateway.", "/nodes", "/endpointslices")},
		{"owner", []string{"--set", "owner.kubernetes.endpoints={node-ports}"}, without("gateway.")},
		{"owner", []string{"--set", "owner.kubernetes.endpoints={pods},owner.kubernetes.pods=routable"}, without("gateway.", "/nodes")},
		{"both", nil, narrow},
		{"beside", nil, nil},
		{"import", nil, importer("in default: ", "default")},
		{"import", []string{"--set", "import.kubernetes.namespace=fed"}, importer("in fed: ", "fed")},
		{"import", []string{"--set", "import.kubernetes.kubeconfig=/etc/kube/config"}, nil},
		{"import-mcs", nil, importer("", "default", objects, "multicluster.x-k8s.io/serviceimports", read, "multicluster.x-k8s.io/serviceexports",
			"patch", "multicluster.x-k8s.io/serviceimports/status", "patch", "multicluster.x-k8s.io/serviceexports/status")},
		{"cluster-dns", nil, []string{ // what CoreDNS's plugin kubernetes follows
			"list /namespaces", "list /services", "list discovery.k8s.io/endpointslices",
			"watch /namespaces", "watch /services", "watch discovery.k8s.io/endpointslices",
		}},
	} {
		args := append([]string{"template", "federation", chart, "--values", examples(t)[tc.example]}, tc.args...)
		if diff := cmp.Diff(tc.want, rights(t, helm.must(t, "", args...))); diff != "" {
			t.Errorf("%s %v: rights (-want +got):\n%s", tc.example, tc.args, diff)
		}
	}
}

// rightsIn returns rights as rightsOf does, of pairs of verbs and a resource.
func rightsIn(where string, pairs ...string) (rights []string) {
	for pair := range slices.Chunk(pairs, 2) {
		for verb := range strings.FieldsSeq(pair[0]) {
			rights = append(rights, where+verb+" "+pair[1])
		}
	}
	return rights
}

// rights returns the rights that the roles in a text give, in order.
func rights(t *testing.T, text string) (found []string) {
	t.Helper()
	all := objects(t, text)
	for _, role := range append(ofKind(all, "ClusterRole"), ofKind(all, "Role")...) {
		found = append(found, rightsOf(role)...)
	}
	slices.Sort(found)
	return found
}

// rightsOf returns the rights that a role gives, each as "verb group/resource", with the
// names of the objects and the namespace that it is limited to.
func rightsOf(role object) (rights []string) {
	namespace := ""
	if name := at(role, "metadata", "namespace"); name != nil {
		namespace = fmt.Sprintf("in %v: ", name)
	}
	list := func(rule any, key string) []any {
		l, _ := at(rule, key).([]any)
		return l
	}
	for _, rule := range list(role, "rules") {
		names := list(rule, "resourceNames")
		if names == nil {
			names = []any{nil}
		}
		for _, verb := range list(rule, "verbs") {
			for _, group := range list(rule, "apiGroups") {
				for _, resource := range list(rule, "resources") {
					for _, name := range names {
						right := fmt.Sprintf("%s%v %v/%v", namespace, verb, group, resource)
						if name != nil {
							right += fmt.Sprintf("/%v", name)
						}
						rights = append(rights, right)
					}
				}
			}
		}
	}
	return rights
}

// Each value of the chart says what it means, above it or above the mapping that it is in.
func TestValuesAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile(chart + "/values.yaml"))(t)
	var values yaml.Node
	must.Do(t, yaml.Unmarshal(text, &values))
	top := values.Content[0]
	for i := 0; i < len(top.Content); i += 2 {
		key := top.Content[i]
		documented := i > 0 && key.HeadComment != "" // above the first key stands what the file is
		for _, path := range undocumented(top.Content[i+1], key.Value, documented) {
			t.Errorf("values.yaml does not say what %s means", path)
		}
	}
}

// undocumented returns the values below a node that have no comment, by path: what a user replaces as a
// whole (lists, and mappings in one line) is one value.
func undocumented(node *yaml.Node, path string, documented bool) (paths []string) {
	if documented {
		return nil
	}
	if node.Kind != yaml.MappingNode || node.Style == yaml.FlowStyle {
		return []string{path}
	}
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i]
		paths = append(paths, undocumented(node.Content[i+1], path+"."+key.Value, key.HeadComment != "")...)
	}
	return paths
}

// The example for cert-manager makes the Secrets that the recipes look for.
func TestCertificates(t *testing.T) {
	text := must.Get(os.ReadFile(manifests + "/cert-manager/certificates.yaml"))(t)
	var made, wanted []string
	for _, o := range ofKind(objects(t, string(text)), "Certificate") {
		made = append(made, fmt.Sprint(at(o, "metadata", "namespace"), "/", at(o, "spec", "secretName")))
	}
	for recipe, namespace := range recipes {
		base := must.Get(os.ReadFile(filepath.Join(manifests, "base", recipe, "manifests.yaml")))(t)
		secret := regexp.MustCompile(`secretName: (\S+)`).FindStringSubmatch(string(base))
		wanted = append(wanted, namespace+"/"+secret[1])
	}
	slices.Sort(made)
	slices.Sort(wanted)
	if diff := cmp.Diff(wanted, made); diff != "" {
		t.Errorf("Secrets (-wanted by the recipes +made by cert-manager):\n%s", diff)
	}
}
