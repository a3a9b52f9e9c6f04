package config_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/importer"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// leastImport has two lines.
const leastImport = `identity: {files: {cert: importer.pem, key: importer-key.pem, ca: ca.pem}}
owners: [{addresses: ["mesh-a.example:8008"]}]
`

const mostImport = `identity:
  spiffe: {socket: "unix:///run/spire/agent.sock", trust_domains: [mesh-a.example]}
owners:
- name: mesh-a
  addresses: ["a-0.mesh-a.example:8008", "a-1.mesh-a.example:8008"]
  owner_ids: ["spiffe://mesh-a.example/hamlet"]
  tls_servername: Shop.example.
  api: v1alpha1
  zones: [a.fed.example]
  import_names: ["*.shop.a.fed.example", web.a.fed.example]
  retention: forever
  settle: 10s
  max_catalog: 64MiB
  allow_addresses: [100.100.100.200/32]
- addresses: ["mesh-b.example:8008"]
  owner_ids: ["spiffe://mesh-b.example/hamlet"]
  retention: 90
kubernetes:
  kubeconfig: kubeconfig
  context: west
  namespace: fed
  name: "fed-{service}"
  headless: true
persist: catalogs
status: {listen: ":9157", cert: status.pem, key: status-key.pem, ca: readers.pem}
metrics: ":9158"
`

func TestImport(t *testing.T) {
	owner := func(with func(o *importer.Owner), addresses ...string) importer.Owner {
		o := importer.Owner{
			Owner:     consumer.Owner{Name: addresses[0], Addresses: addresses, Version: wire.V1Alpha2, Settle: 5 * time.Second, MaxCatalog: 1 << 30},
			Retention: 24 * time.Hour,
		}
		with(&o)
		return o
	}
	unchanged := func(*importer.Owner) {}
	files := config.ProcessConfig{Identity: mtls.Origin{Files: mtls.Files{Cert: "/etc/import/importer.pem", Key: "/etc/import/importer-key.pem", CA: "/etc/import/ca.pem"}}}
	pods := importer.Target{Name: "{service}"}
	for text, want := range map[string]config.ImportConfig{
		leastImport:                      {ProcessConfig: files, Owners: []importer.Owner{owner(unchanged, "mesh-a.example:8008")}, Kubernetes: pods},
		leastImport + "kubernetes: {}\n": {ProcessConfig: files, Owners: []importer.Owner{owner(unchanged, "mesh-a.example:8008")}, Kubernetes: pods},
		leastImport + "kubernetes: {as: services}\npersist: /var/lib/import\n": {
			ProcessConfig: files, Owners: []importer.Owner{owner(unchanged, "mesh-a.example:8008")}, Kubernetes: pods, Persist: "/var/lib/import",
		},
		leastImport + "kubernetes: {as: mcs, cluster: west}\n": {
			ProcessConfig: files, Owners: []importer.Owner{owner(unchanged, "mesh-a.example:8008")},
			Kubernetes: importer.Target{Name: "{service}", MCS: true, Cluster: "west"},
		},
		mostImport: {
			ProcessConfig: config.ProcessConfig{
				Identity: mtls.Origin{SPIFFE: mtls.SPIFFE{Socket: "unix:///run/spire/agent.sock", TrustDomains: []string{"mesh-a.example"}}},
				Status:   page.Config{Address: ":9157", Files: mtls.Files{Cert: "/etc/import/status.pem", Key: "/etc/import/status-key.pem", CA: "/etc/import/readers.pem"}},
				Metrics:  ":9158",
			},
			Owners: []importer.Owner{
				owner(func(o *importer.Owner) {
					o.Name, o.IDs, o.ServerName, o.Version = "mesh-a", ids(t, "spiffe://mesh-a.example/hamlet"), "shop.example", wire.V1Alpha1
					o.Zones = []federation.FQDN{must.Get(federation.ParseOrigin("a.fed.example"))(t)}
					o.Import = pattern.NameFilter{must.Get(pattern.ParseName("*.shop.a.fed.example"))(t), must.Get(pattern.ParseName("web.a.fed.example"))(t)}
					o.Retention, o.Settle, o.MaxCatalog = catalog.Forever, 10*time.Second, 64<<20
					o.AllowAddresses = []netip.Prefix{netip.MustParsePrefix("100.100.100.200/32")}
				}, "a-0.mesh-a.example:8008", "a-1.mesh-a.example:8008"),
				owner(func(o *importer.Owner) {
					o.Name, o.IDs, o.Retention = "spiffe://mesh-b.example/hamlet", ids(t, "spiffe://mesh-b.example/hamlet"), 90*time.Second
				}, "mesh-b.example:8008"),
			},
			Kubernetes: importer.Target{Kubeconfig: "/etc/import/kubeconfig", Context: "west", Namespace: "fed", Name: "fed-{service}", Headless: true},
			Persist:    "/etc/import/catalogs",
		},
	} {
		got, problems, warnings := config.CheckImport([]byte(text))
		if len(problems)+len(warnings) > 0 {
			t.Errorf("problems %v, warnings %v in\n%s", problems, warnings, text)
		}
		got.ResolvePaths("/etc/import")
		if diff := cmp.Diff(want, got, equal); diff != "" {
			t.Errorf("unexpected configuration (-want +got):\n%s", diff)
		}
	}
}

func TestMistakesOfImports(t *testing.T) {
	const files = "identity: {files: {cert: importer.pem, key: importer-key.pem, ca: ca.pem}}\n"
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"empty": {"{}", []string{"1: identity: required", "1: owners: required"}},
		"the configuration of an owner": {"listen: \":8008\"\n" + leastImport, []string{
			"1: listen: there is no such key; those that there are: identity, kubernetes, metrics, owners, persist, status",
		}},
		"two origins": {"identity: {files: {cert: a, key: b, ca: c}, spiffe: {socket: \"unix:///a\"}}\nowners: [{addresses: [\"a:1\"], owner_ids: [\"spiffe://a/a\"]}]\n", []string{
			"1: identity.spiffe: cannot be used with files on line 1: the identity has one origin",
		}},
		"owners of slips": {files + `owners:
- address: mesh-a.example:8008
- addresses: [mesh-a.example]
  name: mesh a
  owner_ids: []
  zones: []
  import_names: []
  allow_addresses: []
  retention: 0s
- addresses: ["a:1"]
  import_names: ["*.*.a", "a b"]
  allow_addresses: [127.0.0.1]
  retention: never
  persist: a
- 5
`, []string{
			"3: owners[0].address: there is no such key; those that there are: addresses, allow_addresses, api, import_names, max_catalog, name, owner_ids, retention, settle, tls_servername, zones",
			"3: owners[0].addresses: required",
			`4: owners[1].addresses[0]: "mesh-a.example" is not HOST:PORT or https://HOST:PORT`,
			`5: owners[1].name: "mesh a" is no name of an owner: it takes 1 to 255 characters of printable ASCII, without spaces, double quotes and backslashes`,
			"6: owners[1].owner_ids: at least one is required; leave it out where the server name is that of the certificate",
			"7: owners[1].zones: at least one is required; leave it out for all",
			"8: owners[1].import_names: at least one is required; leave it out for all",
			"9: owners[1].allow_addresses: at least one is required; leave it out for none",
			`10: owners[1].retention: "0s" is not a duration of 1s or more; write 24h, or forever`,
			`12: owners[2].import_names[0]: name pattern "*.*.a": "*" stands alone, or as the first label before a name, as in *.pay.example`,
			`12: owners[2].import_names[1]: name pattern "a b": label has a character other than a-z, 0-9, '-' and '_'`,
			`13: owners[2].allow_addresses[0]: "127.0.0.1" is not a CIDR such as 127.0.0.0/8 or fe80::/10`,
			`14: owners[2].retention: "never" is not a duration of 1s or more; write 24h, or forever`,
			"15: owners[2].persist: there is no such key; those that there are: addresses, allow_addresses, api, import_names, max_catalog, name, owner_ids, retention, settle, tls_servername, zones",
			`16: owners[3]: must be a mapping, not "5"`,
		}},
		"no owner": {files + "owners: []\n", []string{"2: owners: at least one is required"}},
		"owners of one name": {files + `owners:
- addresses: ["a:1", "b:1"]
- addresses: ["b:1"]
- name: b:1
  addresses: ["c:1"]
- addresses: ["a:1", "c:1"]
`, []string{
			`5: owners[2]: "b:1" is the name of the owner on line 4, too; set name`,
			`7: owners[3]: "a:1" is the name of the owner on line 3, too; set name`,
		}},
		"an agent": {"identity: {spiffe: {socket: \"unix:///a\"}}\nowners:\n- addresses: [\"a:1\"]\n- addresses: [\"b:1\"]\n  owner_ids: [b.example, \"spiffe://b/b\"]\n- addresses: [\"c:1\"]\n  owner_ids: [c.example]\n", []string{
			"3: owners[0]: needs a SPIFFE ID in owner_ids: where identities come from a SPIFFE agent the owner is known by that",
			"6: owners[2]: needs a SPIFFE ID in owner_ids: where identities come from a SPIFFE agent the owner is known by that",
		}},
		"a cluster of slips": {leastImport + "kubernetes:\n  kubconfig: a\n  context: west\n  namespace: Fed\n  name: fed\n  headless: 1\n  as: MCS\n  cluster: west\n", []string{
			"4: kubernetes.kubconfig: there is no such key; those that there are: as, cluster, context, headless, kubeconfig, name, namespace",
			"5: kubernetes.context: is one of a kubeconfig, and none is named",
			`6: kubernetes.namespace: "Fed" is not a name of up to 63 lower-case letters, digits and '-'`,
			`7: kubernetes.name: "fed" is no name of Services: it has {service} once, and beside that lower-case letters, digits and '-', with a letter before the first of them`,
			`8: kubernetes.headless: "1" is neither true nor false`,
			`9: kubernetes.as: "MCS" is neither services nor mcs`,
		}},
		"services of a cluster": {leastImport + "kubernetes: {as: services, cluster: west}\n", []string{"3: kubernetes.cluster: has no effect without 'as: mcs'"}},
		"mcs without a cluster": {leastImport + "kubernetes:\n  as: mcs\n  namespace: fed\n  name: \"{service}\"\n  headless: false\n", []string{
			"3: kubernetes.cluster: required with 'as: mcs'",
			"5: kubernetes.namespace: has no effect with 'as: mcs', because a ServiceImport has the namespace, the name and the type of its service",
			"6: kubernetes.name: has no effect with 'as: mcs', because a ServiceImport has the namespace, the name and the type of its service",
			"7: kubernetes.headless: has no effect with 'as: mcs', because a ServiceImport has the namespace, the name and the type of its service",
		}},
		"addresses": {leastImport + "status: \":9157\"\nmetrics: \"9158\"\n", []string{
			`3: status: ":9157" is not a loopback address such as localhost:9154; what is published is not for everybody: elsewhere a certificate, its key and the CA of those who may read are needed`,
			`4: metrics: "9158" is not host:port, such as localhost:9155, or :8008 for all addresses of this machine`,
		}},
		"one address": {leastImport + "status: localhost:9157\nmetrics: localhost:9157\n", []string{
			"3: status: has the address of metrics as well; that port is for scrapers and probes, and catalogs are not for everybody",
		}},
		"the folder of the certificate": {leastImport + "persist: ./\n", []string{
			`3: persist: has "importer.pem" in it, which is a file of the configuration; the importer writes there, so give it a folder of its own`,
			`3: persist: has "importer-key.pem" in it, which is a file of the configuration; the importer writes there, so give it a folder of its own`,
			`3: persist: has "ca.pem" in it, which is a file of the configuration; the importer writes there, so give it a folder of its own`,
		}},
		"the folder of the kubeconfig": {leastImport + "persist: a/b/..\nkubernetes: {kubeconfig: a/kube/config}\n", []string{
			`3: persist: has "a/kube/config" in it, which is a file of the configuration; the importer writes there, so give it a folder of its own`,
		}},
	} {
		c, problems, warnings := config.CheckImport([]byte(tt.text))
		if diff := cmp.Diff(tt.want, shown(problems)); diff != "" || len(warnings) > 0 || c.Owners != nil {
			t.Errorf("%s: %v, warnings %v, unexpected problems (-want +got):\n%s", name, c, warnings, diff)
		}
	}
}

// TestNamesOfServices has texts that {service} makes the name of a Service, and others.
func TestNamesOfServices(t *testing.T) {
	for text, want := range map[string]bool{
		"{service}": true, "fed-{service}": true, "{service}-fed": true, "a{service}1": true,
		"": false, "fed": false, "service": false, "{Service}": false, "{service}{service}": false, "{service}-{owner}": false,
		"Fed-{service}": false, "1-{service}": false, "-{service}": false, "{service}-": false, "fed.{service}": false, "fed_{service}": false,
		"a123456789012345678901234567890123456789012345678901234567890-{service}":  true,
		"a1234567890123456789012345678901234567890123456789012345678901-{service}": false,
	} {
		c, problems, _ := config.CheckImport([]byte(leastImport + "kubernetes: {name: \"" + text + "\"}\n"))
		if got := len(problems) == 0; got != want || want && c.Kubernetes.Name != text {
			t.Errorf("%q: %v, expected %t", text, problems, want)
		}
	}
}

func TestWarningsOfImports(t *testing.T) {
	_, problems, warnings := config.CheckImport([]byte(leastImport[:len(leastImport)-2] + ",\n  {addresses: [\"192.0.2.1:8008\"]}, {addresses: [\"192.0.2.1:8009\"], tls_servername: a},\n  {addresses: [\"[2001:db8::1]:8008\"]}]\n"))
	want := []string{
		"3: owners[1].addresses: has an IP address, for which the certificate of the owner must be valid; few are: name the owner in owner_ids, or its host in tls_servername",
		"4: owners[3].addresses: has an IP address, for which the certificate of the owner must be valid; few are: name the owner in owner_ids, or its host in tls_servername",
	}
	if diff := cmp.Diff(want, shown(warnings)); len(problems) > 0 || diff != "" {
		t.Errorf("problems %v, unexpected warnings (-want +got):\n%s", problems, diff)
	}
}
