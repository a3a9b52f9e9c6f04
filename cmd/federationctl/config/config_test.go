package config_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/consul"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const least = `identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}
allow:
  ids: ["spiffe://consumer.example/coredns"]
catalogs:
- sources:
  - file: {path: catalog.yaml}
`

const most = `listen: "127.0.0.1:8010"
metrics: "localhost:9153"
status: {listen: ":9154", cert: status.pem, key: status-key.pem, ca: readers.pem}
window: 300
audit: true
identity:
  files: {cert: owner.pem, key: /run/owner-key.pem, ca: ca.pem}
allow:
  ids: ["spiffe://consumer.example/coredns", DNS.partner.example]
  file: consumers.txt
allow_addresses: [127.0.0.0/8]
catalogs:
- sources:
  - file: {path: catalog.yaml, lifetime: 90, max_size: 64KiB, max_withdraw: 10%, withdraw_after: 900}
  - kubernetes:
      cluster: west
      zone: west.fed.example
      kubeconfig: west.conf
      context: admin
      namespaces: [shop, pay]
      selector: tier in (public), !internal
      endpoints: [load-balancer, pods]
      pods: routable
      allow_names:
      - {namespaces: [edge, pay], names: ["*.Pay.west.fed.example.", pay.west.fed.example]}
      - {namespaces: ["*"], names: [all.west.fed.example]}
      publish: {labels: [tier, app.kubernetes.io/name], annotations: [acme.example/team]}
      lifetime: forever
      max_withdraw: 75%
      withdraw_after: never
  exports:
  - match: {fqdn: ["*.pay.example", shop.example], labels: {tier: public, internal: ""}, tags: [edge]}
    to: ["spiffe://acme.example/ns/dns/*"]
    as: {pay.example: pay.partner.example}
    endpoints: {labels: [edge]}
    strip: [description, labels.internal-*]
  - to: ["*"]
- server_name: Mesh-B.example.
  exports: []
  sources:
  - kubernetes: {cluster: east, zone: east.fed.example.}
  - registration:
      name: fleet
      listen: ":8009"
      rules: registrations.yaml
      owner: owner-a
      store:
        etcd:
          endpoints: ["https://etcd-0.example:2379", "https://[2001:db8::1]:2379"]
          prefix: /fleet
          tls: {cert: etcd.pem, key: etcd-key.pem, ca: /run/etcd-ca.pem}
          username: owner
          password_file: etcd-password
      convergence: 5m
      linger: 0
      max_nodes: 1000
      lifetime: 2h
  - registration: {rules: others.yaml}
  - nsm: {registry: "tcp://registry.nsm-system:5002", registry_ids: ["spiffe://nsm.example/registry"], zone: nsm.fed.example, lifetime: 5m, max_withdraw: off}
  - nsm: {name: lab, registry: "tcp://localhost:5002", zone: lab.fed.example, tls: none, max_withdraw: 100%}
  - nsm: {name: socket, registry: "unix:///run/nsm.sock", zone: lab.fed.example, tls: none}
  - consul: {zone: consul.fed.example}
  - consul: {name: vms, address: "https://consul.example:8501", token_file: token, tls: {ca: ca.pem, cert: c.pem, key: k.pem}, datacenter: dc1, zone: vms.fed.example, services: [web, "shop-*"], tags: [public, v1], address_of: wan, health: warning, instances: tags, lifetime: 2h, max_withdraw: 30%, withdraw_after: never}
`

const spiffe = `identity:
  spiffe: {socket: "unix:///run/spire/agent.sock", trust_domains: [partner.example]}
allow:
  ids: ["spiffe://consumer.example/coredns"]
catalogs:
- sources:
  - file: {path: catalog.yaml}
`

func ids(t *testing.T, texts ...string) []federation.ID {
	t.Helper()
	var ids []federation.ID
	for _, text := range texts {
		id := must.Get(federation.ParseID(text))(t)
		ids = append(ids, id)
	}
	return ids
}

// equal compares identities by ==, and policies by their rules. It passes over keys that a file has in
// another place than the configuration: the limits of a source in its kind, and a relay above the sources.
var equal = cmp.Options{
	cmpopts.IgnoreUnexported(config.File{}, config.Kubernetes{}, config.Registration{}, config.Consul{}, config.NSM{}, config.PartialRelay{}, config.Export{}),
	cmpopts.IgnoreFields(config.Catalog{}, "Relay"),
	cmp.Comparer(func(a, b federation.ID) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b federation.FQDN) bool { return a == b }),
	cmp.Comparer(func(a, b pattern.Name) bool { return a == b }),
	cmp.Comparer(func(a, b *policy.Policy) bool { return (a == nil) == (b == nil) }), // Exports has the rules
	cmpopts.EquateEmpty(),
}

func TestParse(t *testing.T) {
	names := func(patterns ...string) (all []pattern.Name) {
		for _, text := range patterns {
			all = append(all, must.Get(pattern.ParseName(text))(t))
		}
		return all
	}
	zone := func(text string) federation.FQDN { return must.Get(federation.ParseFQDN(text))(t) }
	west := &config.Kubernetes{Config: kubernetes.Config{
		Rules: export.Rules{
			Cluster: "west", Zone: zone("west.fed.example"), Order: []export.EndpointKind{export.LoadBalancer, export.Pods}, RoutablePods: true,
			Grants: []export.Grant{
				{Namespaces: []string{"edge", "pay"}, Names: names("*.pay.west.fed.example", "pay.west.fed.example")},
				{Namespaces: []string{"*"}, Names: names("all.west.fed.example")},
			},
		},
		Kubeconfig: "west.conf", Context: "admin", Namespaces: []string{"shop", "pay"}, Selector: "tier in (public), !internal",
	}}
	west.Publish.Labels, west.Publish.Annotations = []string{"tier", "app.kubernetes.io/name"}, []string{"acme.example/team"}
	east := &config.Kubernetes{Config: kubernetes.Config{Rules: export.Rules{Cluster: "east", Zone: zone("east.fed.example")}}}
	fleet := &config.Registration{
		Name: "fleet", Listen: ":8009", Rules: "registrations.yaml", Owner: "owner-a", Convergence: 5 * time.Minute, MaxNodes: 1000,
	}
	fleet.Store.Etcd = &config.Etcd{
		Endpoints: []string{"https://etcd-0.example:2379", "https://[2001:db8::1]:2379"}, Prefix: "/fleet",
		TLS: mtls.Files{Cert: "etcd.pem", Key: "etcd-key.pem", CA: "/run/etcd-ca.pem"}, Username: "owner", PasswordFile: "etcd-password",
	}
	for text, want := range map[string]config.Config{
		least: {
			ProcessConfig: config.ProcessConfig{Identity: mtls.Origin{Files: mtls.Files{Cert: "owner.pem", Key: "owner-key.pem", CA: "ca.pem"}}},
			Listen:        ":8008", Window: 256,
			Allow: config.Allow{IDs: ids(t, "spiffe://consumer.example/coredns")},
			Catalogs: []config.Catalog{{Sources: []config.Source{
				{Name: "file:catalog.yaml", Lifetime: time.Hour, WithdrawAfter: time.Hour, File: &config.File{Path: "catalog.yaml", MaxSize: 256 << 20}},
			}}},
		},
		most: {
			ProcessConfig: config.ProcessConfig{
				Identity: mtls.Origin{Files: mtls.Files{Cert: "owner.pem", Key: "/run/owner-key.pem", CA: "ca.pem"}},
				Status:   page.Config{Address: ":9154", Files: mtls.Files{Cert: "status.pem", Key: "status-key.pem", CA: "readers.pem"}},
				Metrics:  "localhost:9153",
			},
			Listen: "127.0.0.1:8010", Window: 300,
			Audit:          true,
			Allow:          config.Allow{IDs: ids(t, "spiffe://consumer.example/coredns", "dns.partner.example"), File: "consumers.txt"},
			AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
			Catalogs: []config.Catalog{
				{Sources: []config.Source{
					{Name: "file:catalog.yaml", Lifetime: 90 * time.Second, MaxWithdraw: 10, WithdrawAfter: 15 * time.Minute, File: &config.File{Path: "catalog.yaml", MaxSize: 64 << 10}},
					{Name: "kubernetes:west", MaxWithdraw: 75, Kubernetes: west},
				}, Policy: &policy.Policy{}, Exports: []*config.Export{{Line: 32, Rule: policy.Rule{
					FQDNs: []string{"*.pay.example", "shop.example"}, Labels: map[string]string{"tier": "public", "internal": ""}, Tags: []string{"edge"},
					To: []string{"spiffe://acme.example/ns/dns/*"}, As: map[string]string{"pay.example": "pay.partner.example"},
					Endpoints: []string{"edge"}, Strip: []string{"description", "labels.internal-*"},
				}}, {Line: 37, Rule: policy.Rule{To: []string{"*"}}}}},
				{
					ServerName: "mesh-b.example", Policy: &policy.Policy{},
					Sources: []config.Source{
						{Name: "kubernetes:east", Lifetime: time.Hour, MaxWithdraw: 50, WithdrawAfter: time.Hour, Kubernetes: east},
						{Name: "registration:fleet", Lifetime: 2 * time.Hour, Registration: fleet},
						{Name: "registration:registration", Lifetime: time.Hour, Registration: &config.Registration{
							Name: "registration", Rules: "others.yaml",
							Convergence: 2 * time.Minute, Linger: 30 * time.Second, MaxNodes: 1_000_000,
						}},
						{Name: "nsm:nsm", Lifetime: 5 * time.Minute, WithdrawAfter: time.Hour, NSM: &config.NSM{
							Name: "nsm", Registry: "tcp://registry.nsm-system:5002", IDs: ids(t, "spiffe://nsm.example/registry"), Zone: zone("nsm.fed.example"),
						}},
						{Name: "nsm:lab", Lifetime: time.Hour, WithdrawAfter: time.Hour, NSM: &config.NSM{
							Name: "lab", Registry: "tcp://localhost:5002", Zone: zone("lab.fed.example"), Plain: true,
						}},
						{Name: "nsm:socket", Lifetime: time.Hour, MaxWithdraw: 50, WithdrawAfter: time.Hour, NSM: &config.NSM{
							Name: "socket", Registry: "unix:///run/nsm.sock", Zone: zone("lab.fed.example"), Plain: true,
						}},
						{Name: "consul:consul", Lifetime: time.Hour, MaxWithdraw: 50, WithdrawAfter: time.Hour, Consul: &config.Consul{Config: consul.Config{
							Name: "consul", Address: "http://127.0.0.1:8500", Zone: zone("consul.fed.example"), AddressOf: "lan",
						}}},
						{Name: "consul:vms/dc1", Lifetime: 2 * time.Hour, MaxWithdraw: 30, Consul: &config.Consul{Config: consul.Config{
							Name: "vms", Address: "https://consul.example:8501", TokenFile: "token", TLS: mtls.Files{CA: "ca.pem", Cert: "c.pem", Key: "k.pem"},
							Datacenter: "dc1", Zone: zone("vms.fed.example"), Services: []string{"web", "shop-*"}, Tags: []string{"public", "v1"}, AddressOf: "wan", Warning: true, ByTag: true,
						}}},
					},
				},
			},
		},
		spiffe: {
			ProcessConfig: config.ProcessConfig{Identity: mtls.Origin{SPIFFE: mtls.SPIFFE{Socket: "unix:///run/spire/agent.sock", TrustDomains: []string{"partner.example"}}}},
			Listen:        ":8008", Window: 256,
			Allow: config.Allow{IDs: ids(t, "spiffe://consumer.example/coredns")},
			Catalogs: []config.Catalog{{Sources: []config.Source{
				{Name: "file:catalog.yaml", Lifetime: time.Hour, WithdrawAfter: time.Hour, File: &config.File{Path: "catalog.yaml", MaxSize: 256 << 20}},
			}}},
		},
	} {
		got, problems := config.Parse([]byte(text))
		if len(problems) > 0 {
			t.Errorf("problems %v in\n%s", problems, text)
		}
		if diff := cmp.Diff(want, got, equal); diff != "" {
			t.Errorf("unexpected configuration (-want +got):\n%s", diff)
		}
	}
}

func TestIn(t *testing.T) {
	c, _ := config.Parse([]byte(most))
	c.ResolvePaths("/etc/owner")
	at := c
	fleet, others := at.Catalogs[1].Sources[1].Registration, at.Catalogs[1].Sources[2].Registration
	got := []string{
		fleet.Rules, fleet.Store.Etcd.TLS.Cert, fleet.Store.Etcd.TLS.Key, fleet.Store.Etcd.TLS.CA, fleet.Store.Etcd.PasswordFile, others.Rules,
		at.Identity.Files.Cert, at.Identity.Files.Key, at.Identity.Files.CA, at.Allow.File,
		at.Catalogs[0].Sources[0].File.Path, at.Catalogs[0].Sources[1].Kubernetes.Kubeconfig, at.Catalogs[1].Sources[0].Kubernetes.Kubeconfig,
	}
	want := []string{
		"/etc/owner/registrations.yaml", "/etc/owner/etcd.pem", "/etc/owner/etcd-key.pem", "/run/etcd-ca.pem", "/etc/owner/etcd-password",
		"/etc/owner/others.yaml",
		"/etc/owner/owner.pem", "/run/owner-key.pem", "/etc/owner/ca.pem", "/etc/owner/consumers.txt",
		"/etc/owner/catalog.yaml", "/etc/owner/west.conf", "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected paths (-want +got):\n%s", diff)
	}
}

// TestDifferences edits a configuration that has every key.
func TestDifferences(t *testing.T) {
	parse := func(text string) *config.Config {
		t.Helper()
		c, problems := config.Parse([]byte(text))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return &c
	}
	for _, tt := range []struct{ text, old, new, want string }{
		{most, "listen: \"127.0.0.1:8010", "# for consumers\nlisten: \"127.0.0.1:8010", ""},
		{most, "127.0.0.1:8010", "127.0.0.1:8011", "listen"},
		{most, "localhost:9153", "localhost:9152", "metrics"},
		{most, "readers.pem", "others.pem", "status"},
		{most, "window: 300", "window: 255", "window"},
		{most, "audit: true", "audit: false", "audit"},
		{most, " owner.pem", " other.pem", "identity"},
		{least, "consumer.example", "other.example", "allow.ids"},
		{least, "  ids:", "  file: consumers.txt\n  ids:", "allow.file"},
		{least, "allow:", "allow_addresses: [127.0.0.0/8]\nallow:", "allow_addresses"},
		{least, "- sources", "- server_name: a.example\n  sources", "catalogs[0].server_name"},
		{least, "- sources", "- exports: []\n  sources", "catalogs[0].exports"},
		{least, "- sources", "- relay: {addresses: [\"a:1\"]}\n  server_name: a.example\n- sources", "catalogs[0] catalogs[0].server_name catalogs[0].sources[0] catalogs[1].exports catalogs[1].server_name catalogs[1].sources[0]"},
		{least, "catalog.yaml}", "catalog.yaml, lifetime: forever}", "catalogs[0].sources[0]"},
		{least, "catalog.yaml}", "catalog.yaml}\n  - registration: {rules: a, store: {etcd: {endpoints: [\"http://a:1\"]}}}", "catalogs[0].sources[1]"},
		{strings.Replace(least, "file: {path: catalog.yaml}", "registration: {rules: a, store: {etcd: {endpoints: [\"http://a:1\"]}}}", 1), "http://a:1", "http://a:2", "catalogs[0].sources[0]"},
		{least + "  exports: [{to: [\"*\"]}]\n", "to: [\"*\"]", "to: [\"*\"], strip: [sans]", "catalogs[0].exports"},
		{least + "  exports: [{to: [\"*\"]}]\n", "- sources:", "- # a comment\n  sources:", ""},
	} {
		if got := strings.Join(parse(tt.text).DifferentKeys(*parse(strings.Replace(tt.text, tt.old, tt.new, 1))), " "); got != tt.want {
			t.Errorf("with %s for %s the keys %q differ, expected %q", tt.new, tt.old, got, tt.want)
		}
	}
}

// shown returns problems as check shows them.
func shown(problems []problem.Problem) []string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%d: %s", p.Line, p))
	}
	return lines
}

func TestMistakes(t *testing.T) {
	for name, tt := range map[string]struct {
		old, new string // in the smallest configuration
		want     []string
	}{
		"a key with a slip":                 {"allow:", "alow:", []string{"1: allow: required", "3: alow: there is no such key; those that there are: allow, allow_addresses, audit, catalogs, identity, listen, metrics, status, window"}},
		"a key twice":                       {"allow:", "window: 1\nwindow: 2\nallow:", []string{"4: window: is there twice, first on line 3"}},
		"a key that is no word":             {"allow:", "[a]: 2\nallow:", []string{"3: a key must be a plain word"}},
		"an alias":                          {"allow:", "listen: &a \":1\"\nmetrics: *a\nallow:", []string{"4: metrics: aliases (*a) are not resolved here; write the value again"}},
		"no value":                          {"allow:", "listen:\nallow:", []string{`3: listen: has no value, must be a single value: "" is not host:port, such as localhost:9155, or :8008 for all addresses of this machine`}},
		"addresses":                         {"allow:", "listen: host\nmetrics: \":http\"\nallow:", []string{`3: listen: "host" is not host:port, such as localhost:9155, or :8008 for all addresses of this machine`, `4: metrics: ":http" is not host:port, such as localhost:9155, or :8008 for all addresses of this machine`}},
		"a status for everybody":            {"allow:", "status: \":9154\"\nallow:", []string{`3: status: ":9154" is not a loopback address such as localhost:9154; what is published is not for everybody: elsewhere a certificate, its key and the CA of those who may read are needed`}},
		"a status with a part of its files": {"allow:", "status: {listen: \":9154\", cert: a, key: b}\nallow:", []string{`3: status: certificate, key and CA are needed, all three or none`}},
		"a status on the port of metrics":   {"allow:", "metrics: \"localhost:9154\"\nstatus: \"localhost:9154\"\nallow:", []string{`4: status: has the address of metrics as well; that port is for scrapers and probes, and catalogs are not for everybody`}},
		"one address for two":               {"allow:", "metrics: \":8008\"\nallow:", []string{"3: metrics: is the address of listen as well"}},
		"a window":                          {"allow:", "window: 1025\nallow:", []string{`3: window: "1025" is not a whole number from 1 to 1024`}},
		"ranges":                            {"allow:", "allow_addresses: [127.0.0.0/8, 10, 127.0.0.0/8]\nallow:", []string{`3: allow_addresses[1]: "10" is not a CIDR such as 127.0.0.0/8 or fe80::/10`, `3: allow_addresses[2]: "127.0.0.0/8" is there twice, first on line 3`}},
		"a certificate":                     {"cert: owner.pem, key", "cert: 1, kez", []string{`2: identity.files.cert: must be a string, not "1"; put it in quotes`, `2: identity.files.kez: there is no such key; those that there are: ca, cert, key`, `2: identity.files.key: required`}},
		"no identity":                       {"files: {", "file: {", []string{"1: identity: needs one of files, spiffe: the identity has one origin", "2: identity.file: there is no such key; those that there are: files, spiffe"}},
		"SPIFFE": {"files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}", "spiffe: {socket: unix://run/agent.sock, trust_domain: a, trust_domains: [a.example, \"spiffe://b.example\", a.example, A]}", []string{
			`2: identity.spiffe.socket: "unix://run/agent.sock" is not the address of a SPIFFE agent, such as unix:///run/spire/agent.sock or tcp://127.0.0.1:8081`,
			"2: identity.spiffe.trust_domain: there is no such key; those that there are: socket, trust_domains",
			`2: identity.spiffe.trust_domains[1]: "spiffe://b.example" is not a trust domain such as partner.example`,
			`2: identity.spiffe.trust_domains[2]: "a.example" is there twice, first on line 2`,
			`2: identity.spiffe.trust_domains[3]: "A" is not a trust domain such as partner.example`,
		}},
		"SPIFFE without an agent": {"files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}", "spiffe: {trust_domains: []}", []string{"2: identity.spiffe.trust_domains: at least one is required; leave it out for none", "2: identity.spiffe.socket: required"}},
		"an audit":                {"allow:", "audit: yes\nallow:", []string{`3: audit: "yes" is neither true nor false`}},
		"who is nobody":           {`"spiffe://consumer.example/coredns"`, `"http://a", a.example, A.example, ""`, []string{`4: allow.ids[0]: identity "http://a": only the scheme spiffe:// is an identity`, `4: allow.ids[2]: "a.example" is there twice, first on line 4`, `4: allow.ids[3]: is empty`}},
		"nobody by omission":      {`ids: ["spiffe://consumer.example/coredns"]`, `{}`, []string{"3: allow: needs ids, file or both; 'ids: []' lets nobody subscribe"}},
		"no sources":              {"sources:\n  - file: {path: catalog.yaml}", "sources: []", []string{"6: catalogs[0].sources: at least one is required"}},
		"no catalogs":             {"- sources:\n  - file: {path: catalog.yaml}", "  []", []string{"5: catalogs: at least one is required"}},
		"a source of nothing":     {"file: {path: catalog.yaml}", "{}", []string{"7: catalogs[0].sources[0]: needs one of file, kubernetes, registration, consul, nsm, relay: give each a '-' of its own"}},
		"two origins in one":      {"file: {path: catalog.yaml}", "file: {path: a}\n    kubernetes: {cluster: a, zone: b.example}", []string{"8: catalogs[0].sources[0].kubernetes: cannot be used with file on line 7: give each a '-' of its own"}},
		"registrations of slips": {"file: {path: catalog.yaml}", "registration: {name: A, listen: 1, rule: a, owner: a b, convergence: 0s, linger: 2h, max_nodes: 0, store: {}}\n  - nsm: {}", []string{
			`7: catalogs[0].sources[0].registration.name: "A" is not a name of up to 63 lower-case letters, digits and '-'`,
			`7: catalogs[0].sources[0].registration.listen: "1" is not host:port, such as localhost:9155, or :8008 for all addresses of this machine`,
			"7: catalogs[0].sources[0].registration.rule: there is no such key; those that there are: convergence, lifetime, linger, listen, max_nodes, name, owner, rules, store",
			`7: catalogs[0].sources[0].registration.owner: "a b" is not 1 to 255 characters of ASCII without blanks`,
			`7: catalogs[0].sources[0].registration.convergence: "0s" is not a duration of 1s to 1h0m0s`,
			`7: catalogs[0].sources[0].registration.linger: "2h" is not a duration of 0s to 1h0m0s`,
			`7: catalogs[0].sources[0].registration.max_nodes: "0" is not a whole number from 1 to 1000000`,
			"7: catalogs[0].sources[0].registration.store.etcd: required",
			"7: catalogs[0].sources[0].registration.rules: required",
			"8: catalogs[0].sources[1].nsm.registry: required",
			"8: catalogs[0].sources[1].nsm.zone: required",
		}},
		"stores of slips": {"file: {path: catalog.yaml}", "registration: {rules: a, listen: \":1\", store: {etcd: {}}}\n" +
			"  - registration: {name: b, rules: a, store: {etcd: {endpoints: [a, \"http://a\", \"http://:1\", \"http://a:1/b\"], prefix: a b, tls: {}, username: a}}}\n" +
			"  - registration: {name: c, rules: a, listen: \":2\", store: {etcd: {endpoints: [\"http://a:1\", \"https://a:1\", \"http://a:1\"], password_file: a, tls: {cert: a}}}}\n" +
			"  - registration: {name: d, rules: a, listen: \":3\", store: {etcd: {endpoints: [\"http://a:1\"], tls: {ca: a}}}}\n" +
			"  - registration: {name: e, rules: a, listen: \":4\", store: {etcd: {endpoints: [\"http://a:1\"], prefix: /a/, username: a, password_file: a}}}", []string{
			"7: catalogs[0].sources[0].registration.store.etcd.endpoints: required",
			`8: catalogs[0].sources[1].registration.store.etcd.endpoints[0]: "a" is not the URL of a member, such as https://etcd-0.example:2379`,
			`8: catalogs[0].sources[1].registration.store.etcd.endpoints[1]: "http://a" is not the URL of a member, such as https://etcd-0.example:2379`,
			`8: catalogs[0].sources[1].registration.store.etcd.endpoints[2]: "http://:1" is not the URL of a member, such as https://etcd-0.example:2379`,
			`8: catalogs[0].sources[1].registration.store.etcd.endpoints[3]: "http://a:1/b" is not the URL of a member, such as https://etcd-0.example:2379`,
			`8: catalogs[0].sources[1].registration.store.etcd.prefix: "a b" is not a prefix of keys, such as /federation/west: at most 255 characters, the first of them '/' and the last another one`,
			"8: catalogs[0].sources[1].registration.store.etcd.tls: is empty; leave it out for the authorities of the system and no certificate",
			"8: catalogs[0].sources[1].registration.store.etcd: needs both of username and password_file, or none of them",
			`9: catalogs[0].sources[2].registration.store.etcd.endpoints[2]: "http://a:1" is there twice, first on line 9`,
			"9: catalogs[0].sources[2].registration.store.etcd.tls: needs both of cert and key, or none of them",
			"9: catalogs[0].sources[2].registration.store.etcd.endpoints: are all of http or all of https",
			"9: catalogs[0].sources[2].registration.store.etcd: needs both of username and password_file, or none of them",
			"10: catalogs[0].sources[3].registration.store.etcd.tls: has no effect, as the endpoints are of http",
			`11: catalogs[0].sources[4].registration.store.etcd.prefix: "/a/" is not a prefix of keys, such as /federation/west: at most 255 characters, the first of them '/' and the last another one`,
			"11: catalogs[0].sources[4].registration.store.etcd: needs endpoints of https: a password is sent over TLS, or to this machine, only",
		}},
		"registrations in each other's way": {"- sources:\n  - file: {path: catalog.yaml}\n", "- sources:\n" +
			"  - registration: {rules: a, listen: \":1\"}\n" +
			"  - registration: {name: b, rules: a, listen: \":1\"}\n" +
			"  - registration: {name: c, rules: a, store: {etcd: {endpoints: [\"http://a:1\", \"http://b:1\"], prefix: /a}}}\n" +
			"  - registration: {name: d, rules: a, store: {etcd: {endpoints: [\"http://b:1\", \"http://a:1\"], prefix: /a}}}\n" +
			"  - registration: {name: d, rules: a, listen: \":0\"}\n  - registration: {name: e, rules: a, listen: \":0\"}\n" +
			"- server_name: b\n  sources:\n  - registration: {rules: a}\n  - registration: {name: b, rules: a, listen: \":8008\"}\n", []string{
			"8: catalogs[0].sources[1].registration.listen: is that of the registration on line 7 as well",
			"10: catalogs[0].sources[3]: has no listen, and neither has the registration on line 9; the port of the owner leads to one registration of each catalog",
			"10: catalogs[0].sources[3].registration.store.etcd: is that of the registration on line 9 as well",
			`11: catalogs[0].sources[4]: "registration:d" is there twice, first on line 10`,
			"16: catalogs[1].sources[1].registration.listen: is that of listen as well",
		}},
		"datacenters of slips": {"file: {path: catalog.yaml}", "consul: {name: A, address: \"127.0.0.1:8500\", datacenter: a/b, services: [], tags: [], address_of: a b, health: critical, instances: tag}\n" +
			"  - consul: {address: \"http://192.0.2.1:8500\", zone: a.example, services: [\"[a\"]}\n" +
			"  - consul: {address: \"http://localhost:8500\", zone: a.example, tls: {ca: a}}\n" +
			"  - consul: {name: c, address: \"https://consul.example:8501\", zone: a.example, tls: {cert: a}}", []string{
			`7: catalogs[0].sources[0].consul.name: "A" is not a name of up to 63 lower-case letters, digits and '-'`,
			`7: catalogs[0].sources[0].consul.address: "127.0.0.1:8500" is not the URL of an agent of Consul, such as http://127.0.0.1:8500 or https://consul.example:8501`,
			`7: catalogs[0].sources[0].consul.datacenter: "a/b" is no name of a datacenter such as dc1`,
			"7: catalogs[0].sources[0].consul.services: at least one is required; leave it out for all",
			"7: catalogs[0].sources[0].consul.tags: at least one is required; leave it out for all",
			`7: catalogs[0].sources[0].consul.address_of: "a b" is not 1 to 255 characters of ASCII without blanks`,
			`7: catalogs[0].sources[0].consul.health: "critical" is neither passing nor warning`,
			`7: catalogs[0].sources[0].consul.instances: "tag" must be tags; leave it out for one instance`,
			"7: catalogs[0].sources[0].consul.zone: required",
			`8: catalogs[0].sources[1].consul.services[0]: "[a" is no service, nor a pattern such as shop-*`,
			"8: catalogs[0].sources[1].consul.address: is of http and of another machine: whoever is between could read the token, and say anything; use https",
			`8: catalogs[0].sources[1]: "consul:consul" is there twice, first on line 7`,
			"9: catalogs[0].sources[2].consul.tls: has no effect, as the address is of http",
			`9: catalogs[0].sources[2]: "consul:consul" is there twice, first on line 7`,
			"10: catalogs[0].sources[3].consul.tls: needs both of cert and key, or none of them",
		}},
		"registries of slips": {"file: {path: catalog.yaml}", "nsm: {name: A, registry: \"registry:5002\", zone: a b, tls: any}\n" +
			"  - nsm: {name: b, registry: \"tcp://192.0.2.1:5002\", zone: b, tls: none}\n" +
			"  - nsm: {name: c, registry: \"tcp://127.0.0.1:5002\", registry_ids: [a], zone: b, tls: none}\n" +
			"  - nsm: {name: c, registry: \"tcp://[::1]:5002\", zone: b, registry_ids: [\"http://a\"]}", []string{
			`7: catalogs[0].sources[0].nsm.name: "A" is not a name of up to 63 lower-case letters, digits and '-'`,
			`7: catalogs[0].sources[0].nsm.registry: "registry:5002" is not the address of a registry, such as tcp://registry.nsm-system:5002 or unix:///run/nsm/registry.sock`,
			`7: catalogs[0].sources[0].nsm.zone: "a b" is no host name: label has a character other than a-z, 0-9, '-' and '_'`,
			`7: catalogs[0].sources[0].nsm.tls: "any" must be none; leave it out for mutual TLS with the identity of the owner`,
			"8: catalogs[0].sources[1].nsm.tls: is for a registry on this machine only: its address must be one of loopback",
			"9: catalogs[0].sources[2].nsm.registry_ids: has no effect with 'tls: none'",
			`10: catalogs[0].sources[3].nsm.registry_ids[0]: identity "http://a": only the scheme spiffe:// is an identity`,
			`10: catalogs[0].sources[3]: "nsm:c" is there twice, first on line 9`,
		}},
		"a registry without ID": {least, "identity: {spiffe: {socket: \"unix:///a\"}}\nallow: {ids: []}\ncatalogs:\n- sources:\n" +
			"  - nsm: {registry: \"tcp://a:1\", zone: a}\n  - nsm: {name: b, registry: \"tcp://localhost:1\", zone: a, tls: none}\n", []string{
			"5: catalogs[0].sources[0].nsm: needs registry_ids: where identities come from a SPIFFE agent the registry is known by its SPIFFE ID",
		}},
		"exports of slips": {"- sources:", "- exports:\n  - match: {fqdns: [a.example], fqdn: [], labels: {}, tag: [a]}\n    too: [a]\n  - 5\n  - to: \"*\"\n  - to: [5, \"*\", \"*\"]\n    endpoints: [a]\n    as: [a]\n    strip: []\n  sources:", []string{
			"7: catalogs[0].exports[0].match.fqdns: there is no such key; those that there are: fqdn, labels, tags",
			"7: catalogs[0].exports[0].match.fqdn: at least one is required; leave it out for all",
			"7: catalogs[0].exports[0].match.labels: at least one is required; leave it out for all",
			"7: catalogs[0].exports[0].match.tag: there is no such key; those that there are: fqdn, labels, tags",
			"7: catalogs[0].exports[0].to: required",
			"8: catalogs[0].exports[0].too: there is no such key; those that there are: as, endpoints, match, strip, to",
			"9: catalogs[0].exports[1]: must be a mapping, not \"5\"",
			"10: catalogs[0].exports[2].to: must be a list, not \"*\"",
			"11: catalogs[0].exports[3].to[0]: must be a string, not \"5\"; put it in quotes",
			"11: catalogs[0].exports[3].to[2]: \"*\" is there twice, first on line 11",
			"12: catalogs[0].exports[3].endpoints: must be a mapping",
			"13: catalogs[0].exports[3].as: must be a mapping",
			"14: catalogs[0].exports[3].strip: at least one is required; leave it out for none",
		}},
		"exports against the rules": {"- sources:", "- exports:\n  - match:\n      fqdn: [a.example,\n        a.*.example]\n      labels: {tier: a, \"*\": a}\n      tags: [\"*\"]\n    to:\n    - 5\n    - \"spiffe://*.example/a\"\n    as: {a.example: b c}\n    endpoints: {labels: [\"*\"]}\n    strip: [label.a]\n  sources:", []string{
			`9: catalogs[0].exports[0].match.fqdn[1]: name pattern "a.*.example": "*" stands alone, or as the first label before a name, as in *.pay.example`,
			`10: catalogs[0].exports[0].match.labels.*: label pattern "*=a": a key is never a pattern here: write it out`,
			`11: catalogs[0].exports[0].match.tags[0]: is taken as it is written, and "*" stands for nothing here; leave the list out for all`,
			`13: catalogs[0].exports[0].to[0]: must be a string, not "5"; put it in quotes`,
			`14: catalogs[0].exports[0].to[1]: identity pattern "spiffe://*.example/a": a trust domain is never a pattern: write it out, and one pattern for each`,
			`15: catalogs[0].exports[0].as.a.example: zone "b c": label has a character other than a-z, 0-9, '-' and '_'`,
			`16: catalogs[0].exports[0].endpoints.labels[0]: is taken as it is written, and "*" stands for nothing here; leave the list out for all`,
			`17: catalogs[0].exports[0].strip[0]: "label.a" is none of description, tags, sans, labels.KEY and metadata.KEY, where '*' in a KEY stands for any characters`,
		}},
		"exports of too many rules": {"- sources:", "- exports:\n" + strings.Repeat("  - to: [\"*\"]\n", policy.MaxRules+1) + "  sources:", []string{"6: catalogs[0].exports: more than 1000 rules"}},
		"exports that are no list":  {"- sources:", "- exports:\n  sources:", []string{"6: catalogs[0].exports: has no value, must be a list"}},
		"server names":              {"- sources:", "- server_name: a.example\n  sources: &s [file: {path: a}]\n- server_name: A.example.\n  sources: [file: {path: a}]\n- server_name: a b\n  sources: [file: {path: a}]\n- sources: [file: {path: b}]\n- sources:", []string{"8: catalogs[1].server_name: a.example is that of the catalog on line 6, too", `10: catalogs[2].server_name: "a b" is no host name: label has a character other than a-z, 0-9, '-' and '_'`, "13: catalogs[4]: has no server_name, and neither has the catalog on line 12; only one can be the default"}},
		"limits of a file":          {"path: catalog.yaml", "path: a, max_withdraw: 50, withdraw_after: 1ms", []string{`7: catalogs[0].sources[0].file.max_withdraw: "50" is neither a share of 1% to 100%, such as 50%, nor off`, `7: catalogs[0].sources[0].file.withdraw_after: "1ms" is not a duration of 1s or more; write 24h, or never`}},
		"a limit above all":         {"path: catalog.yaml", "path: a, max_withdraw: 101%", []string{`7: catalogs[0].sources[0].file.max_withdraw: "101%" is neither a share of 1% to 100%, such as 50%, nor off`}},
		"a limit of a registration": {"file: {path: catalog.yaml}", "registration: {rules: a, max_withdraw: 50%}", []string{"7: catalogs[0].sources[0].registration.max_withdraw: there is no such key; those that there are: convergence, lifetime, linger, listen, max_nodes, name, owner, rules, store"}},
		"a file":                    {"path: catalog.yaml", "lifetime: 0, max_size: 1TB", []string{`7: catalogs[0].sources[0].file.lifetime: "0" is not a duration of 1s or more; write 24h, or forever`, `7: catalogs[0].sources[0].file.max_size: "1TB" is not a size such as 512MiB`, "7: catalogs[0].sources[0].file.path: required"}},
		"a file twice":              {"- file: {path: catalog.yaml}", "- file: {path: a}\n  - file: {path: a, max_size: 1}", []string{`8: catalogs[0].sources[1]: "file:a" is there twice, first on line 7`}},
		"a cluster": {"file: {path: catalog.yaml}", "kubernetes: {cluster: West, context: a, namespaces: [], selector: 'a b', endpoints: [pods, nodes], pods: yes}", []string{
			`7: catalogs[0].sources[0].kubernetes.cluster: "West" is not a name of up to 63 lower-case letters, digits and '-'`,
			"7: catalogs[0].sources[0].kubernetes.namespaces: at least one is required; leave it out for all",
			`7: catalogs[0].sources[0].kubernetes.selector: "a b" is no selector of labels: unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt`,
			`7: catalogs[0].sources[0].kubernetes.endpoints[1]: "nodes" is not one of gateway, load-balancer, external-ips, node-ports, pods`,
			`7: catalogs[0].sources[0].kubernetes.pods: "yes" must be routable; leave it out where consumers do not reach pods`,
			"7: catalogs[0].sources[0].kubernetes.zone: required",
			"7: catalogs[0].sources[0].kubernetes.context: is one of a kubeconfig, and none is named",
		}},
		"what cannot be published": {"file: {path: catalog.yaml}", "kubernetes: {cluster: a, zone: a.example, publish: {labels: [a, a, 'b c', d], annotations: [d], tags: [e]}}", []string{
			`7: catalogs[0].sources[0].kubernetes.publish.labels[1]: "a" is there twice, first on line 7`,
			`7: catalogs[0].sources[0].kubernetes.publish.labels[2]: "b c" is no key such as tier or acme.example/tier`,
			"7: catalogs[0].sources[0].kubernetes.publish.tags: there is no such key; those that there are: annotations, labels",
			"7: catalogs[0].sources[0].kubernetes.publish: has one key in labels and in annotations, and a service can have it once only",
		}},
		"rules by labels that there are not": {
			"- file: {path: catalog.yaml}\n",
			"- kubernetes: {cluster: a, zone: a.example, publish: {labels: [tier], annotations: [team]}}\n  - file: {path: catalog.yaml}\n  exports:\n" +
				"  - {match: {labels: {tier: public, team: shop, multicluster.x-k8s.io/export: \"*\"}}, to: [\"*\"]}\n" +
				"  - {match: {labels: {tier: public, zone: a}}, to: [\"*\"]}\n" +
				"  - {match: {tags: [a], fqdn: [\"*.b.a.example\"]}, to: [\"*\"]}\n" +
				"  - {match: {tags: [a], fqdn: [\"*.b.example\", xa.example]}, to: [\"*\"]}\n" +
				"- server_name: b.example\n  sources:\n  - registration: {rules: r.yaml}\n  exports:\n  - {match: {labels: {tier: public}}, to: [\"*\"]}\n" +
				"- server_name: c.example\n  sources:\n  - registration: {rules: s.yaml}\n  - file: {path: catalog.yaml}\n  exports:\n  - {match: {labels: {tier: public}}, to: [\"*\"]}\n" +
				"- server_name: d.example\n  sources:\n  - nsm: {registry: \"unix:///a\", zone: a.example, tls: none}\n  exports:\n  - {match: {labels: {a: b}}, to: [\"*\"]}\n  - {match: {tags: [b]}, to: [\"*\"]}\n",
			[]string{
				"11: catalogs[0].exports[1].match.labels.zone: is met by no service of kubernetes:a: they have no such label; name it in 'publish' of the source, or limit the rule to other names with fqdn",
				"12: catalogs[0].exports[2].match.tags: is met by no service of kubernetes:a: they have no tags; limit the rule to other names with fqdn, or ask for a label",
				"18: catalogs[1].exports[0].match.labels.tier: is met by no service of registration:registration: they have no labels; limit the rule to other names with fqdn",
				"30: catalogs[3].exports[1].match.tags: is met by no service of nsm:nsm: they have no tags; limit the rule to other names with fqdn, or ask for a label",
			},
		},
		"names that nobody can have": {
			"file: {path: catalog.yaml}",
			"kubernetes: {cluster: a, allow_names: [{namespaces: ['b*'], names: [a.example., '*.b.example', xa.example, 'a*.a.example', example, '*.example', '*.a.example', b.a.example, B.a.example.]}, {names: []}], zone: a.example}",
			[]string{
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].namespaces[0]: "b*" is not a name of up to 63 lower-case letters, digits and '-'`,
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[3]: name pattern "a*.a.example": "*" stands alone, or as the first label before a name, as in *.pay.example`,
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[8]: "b.a.example" is there twice, first on line 7`,
				"7: catalogs[0].sources[0].kubernetes.allow_names[1].names: at least one is required",
				"7: catalogs[0].sources[0].kubernetes.allow_names[1].namespaces: required",
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[0]: "a.example" is the zone itself, which can be no name of a Service`,
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[1]: "*.b.example" matches no name below the zone a.example`,
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[2]: "xa.example" matches no name below the zone a.example`,
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[4]: "example" matches no name below the zone a.example`,
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[5]: "*.example" gives no name: a name below the zone a.example belongs to a namespace, or is above those that do; write each name of one label`,
				`7: catalogs[0].sources[0].kubernetes.allow_names[0].names[6]: "*.a.example" gives no name: a name below the zone a.example belongs to a namespace, or is above those that do; write each name of one label`,
			},
		},
		"pods that nobody reaches": {"file: {path: catalog.yaml}", "kubernetes: {cluster: a, zone: a.example, endpoints: [pods]}", []string{"7: catalogs[0].sources[0].kubernetes.endpoints: pods are endpoints only with 'pods: routable'"}},
		"pods without effect":      {"file: {path: catalog.yaml}", "kubernetes: {cluster: a, zone: a.example, endpoints: [gateway], pods: routable}", []string{"7: catalogs[0].sources[0].kubernetes.pods: has no effect, as endpoints leaves pods out"}},
		"syntax":                   {"allow:", "allow: [", []string{"2: did not find expected ',' or ']'"}},
		"two documents":            {"allow:", "---\nallow:", []string{"3: a second document begins here; a configuration is one document"}},
		"nothing":                  {least, "# soon\n", []string{"0: the file is empty"}},
		"no mapping":               {least, "a", []string{`1: must be a mapping, not "a"`}},
		"too large":                {least, strings.Repeat("#", config.MaxBytes+1), []string{"0: the file has more than 1048576 bytes"}},
	} {
		text := strings.Replace(least, tt.old, tt.new, 1)
		if text == least {
			t.Fatalf("%s: %q is not in the configuration", name, tt.old)
		}
		_, problems := config.Parse([]byte(text))
		if diff := cmp.Diff(tt.want, shown(problems)); diff != "" {
			t.Errorf("%s: unexpected problems (-want +got):\n%s", name, diff)
		}
	}
}

// TestWarnings has configurations that can be used, and are probably not meant.
func TestWarnings(t *testing.T) {
	const three = "  - spiffe://acme.example/ns/dns/west\n  - dns.acme.example\n  - spiffe://other.example/dns\n"
	for name, tt := range map[string]struct {
		text string // behind the identity
		want []string
	}{
		"no exports":           {"allow:\n  ids:\n" + three + "catalogs:\n- sources: [file: {path: a}]\n", nil},
		"empty exports":        {"allow: {file: a}\ncatalogs:\n- exports: []\n  sources: [file: {path: a}]\n", []string{"5: catalogs[0].exports: is empty: nobody is told anything; leave it out to tell everything to everyone who may subscribe"}},
		"nobody may subscribe": {"allow: {ids: []}\ncatalogs:\n- sources: [file: {path: a}]\n  exports: [{to: [a.example]}]\n", nil},
		"exports that fit": {"allow:\n  ids:\n" + three + "catalogs:\n- sources: [file: {path: a}]\n  exports:\n" +
			"  - {match: {tags: [a]}, to: [\"spiffe://acme.example/**\", \"*.acme.example\"]}\n  - {match: {tags: [b]}, to: [\"*\"]}\n", nil},
		"exports that do not fit": {"allow:\n  ids:\n" + three + "catalogs:\n- sources: [file: {path: a}]\n  exports:\n" +
			"  - {match: {fqdn: [\"*.a.example\"]}, to: [\"spiffe://acme.example/*\", \"*.acme.example\"]}\n" +
			"  - {match: {fqdn: [b.a.example, \"*.c.a.example\"]}, to: [dns.acme.example]}\n" +
			"- server_name: b\n  sources: [file: {path: a}]\n  exports: [{to: [dns.acme.example]}]\n", []string{
			"5: allow.ids[0]: may subscribe and is told nothing: it is in the 'to' of no rule",
			"7: allow.ids[2]: may subscribe and is told nothing: it is in the 'to' of no rule",
			"11: catalogs[0].exports[0].to[0]: is nobody in allow.ids",
		}},
		"registrations": {"allow: {file: a}\ncatalogs:\n- sources:\n" +
			"  - registration: {rules: a}\n  - registration: {name: b, rules: a, listen: \":1\"}\n" +
			"  - registration: {name: c, rules: a, listen: \":2\", store: {etcd: {endpoints: [\"http://127.0.0.1:1\", \"http://localhost:1\", \"http://[::1]:1\"]}}}\n" +
			"  - registration: {name: d, rules: a, listen: \":3\", store: {etcd: {endpoints: [\"http://127.0.0.1:1\", \"http://a:1\"]}}}\n" +
			"  - registration: {name: e, rules: a, listen: \":4\", store: {etcd: {endpoints: [\"https://a:1\"]}}}\n", []string{
			"9: catalogs[0].sources[3].registration.store.etcd: is asked without TLS: whoever is on the way can register and withdraw services",
		}},
		"one catalog for everybody": {"allow:\n  ids:\n" + three + "  file: a\ncatalogs:\n- server_name: a\n  sources: [file: {path: a}]\n" +
			"- sources: [file: {path: a}]\n  exports: [{to: [b.example]}]\n", nil},
		"SPIFFE": {"allow:\n  ids:\n" + three + "catalogs:\n- sources: [file: {path: a}]\n  exports: [{to: [\"*\", dns.acme.example]}]\n", []string{
			"6: allow.ids[1]: is a DNS name, and where identities come from a SPIFFE agent those of consumers are SPIFFE IDs",
			"10: catalogs[0].exports[0].to[1]: is a DNS name, and where identities come from a SPIFFE agent those of consumers are SPIFFE IDs",
		}},
	} {
		identity := "identity:\n  files: {cert: a, key: b, ca: c}\n"
		if name == "SPIFFE" {
			identity = "identity:\n  spiffe: {socket: \"unix:///a\"}\n"
		}
		_, problems, warnings := config.Check([]byte(identity + tt.text))
		if diff := cmp.Diff(tt.want, shown(warnings)); diff != "" || len(problems) > 0 {
			t.Errorf("%s: problems %v; unexpected warnings (-want +got):\n%s", name, problems, diff)
		}
	}
	if _, problems, warnings := config.Check([]byte("catalogs: [exports: []]")); len(problems) == 0 || len(warnings) > 0 {
		t.Errorf("a broken configuration has problems %v, and warnings %v", problems, warnings)
	}
}

// TestManyMistakes has one slip that causes many problems.
func TestManyMistakes(t *testing.T) {
	text := least + strings.Repeat("- 1\n", 1000)
	_, problems := config.Parse([]byte(text))
	if len(problems) != problem.Room+1 || problems[problem.Room].Rule != "and 900 more" {
		t.Errorf("%d problems, of which the last is %v", len(problems), problems[len(problems)-1])
	}
}

func TestRecognize(t *testing.T) {
	for text, want := range map[string]string{
		least:                        "configuration",
		"catalogs:\n- [":             "configuration",
		`{"catalogs": []}`:           "configuration",
		"rules: []\nlisten: a\n":     "configuration",
		"services: []\n":             "catalog",
		"services: []\nlisten: a\n":  "catalog",
		"services: []\nrules: []\n":  "catalog",
		"services: [\n":              "catalog",
		"":                           "catalog",
		"- catalogs: a\n":            "catalog",
		"other: 1\n":                 "catalog",
		"rules: []\n":                "rules",
		"rules: [\n":                 "rules",
		`{"rules": []}`:              "rules",
		"- rules: a\n":               "catalog",
		leastImport:                  "import",
		"kubernetes: {}\n":           "import",
		"metrics: a\nowners: [\n":    "import",
		"services: []\nowners: []\n": "catalog",
		"rules: " + strings.Repeat(" ", config.MaxBytes): "catalog",
	} {
		if got := config.RecognizeForm([]byte(text)); got != want {
			t.Errorf("%.40q is recognized as %s, expected %s", text, got, want)
		}
	}
}

// keys is a mapping as it stands in a file.
type keys map[string]any

// some returns the keys that have a value which is not empty.
func some(k keys) keys {
	maps.DeleteFunc(k, func(_ string, value any) bool {
		v := reflect.ValueOf(value)
		return !v.IsValid() || v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
	})
	return k
}

// texts returns values as they stand in a file.
func texts[T any](values []T) []string {
	all := []string{}
	for _, v := range values {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

// endless returns a duration as it stands in a file, or the word for none.
func endless(d time.Duration, word string) string {
	if d == 0 {
		return word
	}
	return d.String()
}

// spelled returns a configuration as the text of a file that says the same.
func spelled(c config.Config) string {
	files := func(f mtls.Files) keys { return some(keys{"cert": f.Cert, "key": f.Key, "ca": f.CA}) }
	identity := some(keys{"files": files(c.Identity.Files), "spiffe": some(keys{
		"socket": c.Identity.SPIFFE.Socket, "trust_domains": c.Identity.SPIFFE.TrustDomains,
	})})
	allow := some(keys{"file": c.Allow.File})
	allow["ids"] = texts(c.Allow.IDs)
	status := files(c.Status.Files)
	if c.Status.Address != "" {
		status["listen"] = c.Status.Address
	}
	var catalogs []any
	for _, of := range c.Catalogs {
		catalog := some(keys{"server_name": of.ServerName})
		var sources []any
		for _, s := range of.Sources {
			if s.Lifetime == source.NoLifetime {
				catalog["relay"] = spelledRelay(&s.Relay.Relay)
				continue
			}
			kind, in := spelledSource(s)
			in["lifetime"] = endless(s.Lifetime, "forever")
			if kind != "registration" && kind != "relay" {
				in["withdraw_after"], in["max_withdraw"] = endless(s.WithdrawAfter, "never"), "off"
				if s.MaxWithdraw > 0 {
					in["max_withdraw"] = fmt.Sprintf("%d%%", s.MaxWithdraw)
				}
			}
			if kind == "registration" && s.Registration.Store.Etcd != nil {
				e := s.Registration.Store.Etcd
				in["store"] = keys{"etcd": some(keys{
					"endpoints": e.Endpoints, "prefix": e.Prefix, "username": e.Username, "password_file": e.PasswordFile, "tls": files(e.TLS),
				})}
			}
			sources = append(sources, keys{kind: in})
		}
		if sources != nil {
			catalog["sources"] = sources
		}
		if of.Policy != nil {
			exports := []any{}
			for _, e := range of.Exports {
				exports = append(exports, spelledRule(e.Rule))
			}
			catalog["exports"] = exports
		}
		catalogs = append(catalogs, catalog)
	}
	return string(must.Value(json.Marshal(some(keys{
		"listen": c.Listen, "window": c.Window, "metrics": c.Metrics, "status": status, "audit": c.Audit, "identity": identity, "allow": allow,
		"catalogs": catalogs,
	}))))
}

// spelledSource returns a source as it stands in a file, but for what all have.
func spelledSource(s config.Source) (kind string, in keys) {
	switch k, g, n := s.Kubernetes, s.Registration, s.NSM; {
	case s.File != nil:
		return "file", keys{"path": s.File.Path, "max_size": setting.FormatSize(s.File.MaxSize)}
	case k != nil:
		var names []any
		for _, of := range k.Grants {
			names = append(names, keys{"namespaces": of.Namespaces, "names": texts(of.Names)})
		}
		in = some(keys{
			"cluster": k.Cluster, "zone": k.Zone.String(), "endpoints": texts(k.Order), "kubeconfig": k.Kubeconfig, "context": k.Context,
			"namespaces": k.Namespaces, "selector": k.Selector, "allow_names": names, "publish": some(keys{"labels": k.Publish.Labels, "annotations": k.Publish.Annotations}),
		})
		if k.RoutablePods {
			in["pods"] = "routable"
		}
		return "kubernetes", in
	case g != nil:
		in = some(keys{
			"name": g.Name, "rules": g.Rules, "listen": g.Listen, "owner": g.Owner, "max_nodes": g.MaxNodes,
			"convergence": g.Convergence.String(), "linger": g.Linger.String(),
		})
		return "registration", in
	case s.Relay != nil:
		return "relay", spelledRelay(&s.Relay.Relay)
	case s.Consul != nil:
		c := s.Consul
		in = some(keys{
			"name": c.Name, "address": c.Address, "token_file": c.TokenFile, "datacenter": c.Datacenter, "zone": c.Zone.String(), "services": c.Services, "tags": c.Tags,
			"address_of": c.AddressOf, "tls": some(keys{"cert": c.TLS.Cert, "key": c.TLS.Key, "ca": c.TLS.CA}),
		})
		if c.Warning {
			in["health"] = "warning"
		}
		if c.ByTag {
			in["instances"] = "tags"
		}
		return "consul", in
	default:
		in = some(keys{"name": n.Name, "registry": n.Registry, "zone": n.Zone.String(), "registry_ids": texts(n.IDs)})
		if n.Plain {
			in["tls"] = "none"
		}
		return "nsm", in
	}
}

// spelledRelay returns a relay as it stands in a file.
func spelledRelay(l *config.Relay) keys {
	return some(keys{
		"name": l.Name, "addresses": l.Addresses, "owner_ids": texts(l.IDs), "tls_servername": l.ServerName, "api": l.Version.String(),
		"zones": texts(l.Zones), "settle": l.Settle.String(),
		"max_catalog": setting.FormatSize(l.MaxCatalog), "persist": l.Persist,
	})
}

// spelledRule returns a rule as it stands in a file.
func spelledRule(r policy.Rule) keys {
	return some(keys{
		"match": some(keys{"fqdn": r.FQDNs, "labels": r.Labels, "tags": r.Tags}), "to": r.To, "as": r.As,
		"endpoints": some(keys{"labels": r.Endpoints}), "strip": r.Strip,
	})
}

// FuzzParse parses any text. A problem has a line of the text, and a configuration
// says the same when it is written down and parsed again. An identity from a SPIFFE
// agent can be opened.
func FuzzParse(f *testing.F) {
	f.Add([]byte(least))
	f.Add([]byte(most))
	f.Add([]byte(spiffe))
	f.Add(relaying("{addresses: [owner.example:8008], zones: [fed.example]}"))
	f.Add([]byte(least + "  - relay: {addresses: [\"owner.example:8008\"], lifetime: 1m}\n"))
	f.Add([]byte("---"))
	f.Add([]byte("listen: [\n"))
	f.Add([]byte("allow:\n  ids:\n  -\n---"))
	f.Add([]byte("a: &a [*a]\n<<: *a\n"))
	f.Add([]byte("catalogs:\n- exports:\n  - match: {fqdn: [\"*\"], labels: {a.b: [1]}}\n    to: [a, 5, \"*.a\"]\n    as: {a: b}\n  - to: [\"*\"]\n"))
	f.Add([]byte("catalogs:\n- sources:\n  - {}\n  - file:\n  - ~\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, problems, warnings := config.Check(data)
		config.RecognizeForm(data)
		i, mistakes, suspicions := config.CheckImport(data)
		if len(mistakes) == 0 && (len(i.Owners) == 0 || i.Owners[0].Name == "") {
			t.Errorf("%+v has no mistakes", i)
		}
		lines := strings.Count(strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(string(data)), "\n") + 1
		for _, p := range slices.Concat(problems, warnings, mistakes, suspicions) {
			if p.Line < 0 || p.Line > lines {
				t.Errorf("problem %q is on line %d of %d", p, p.Line, lines)
			}
			if p.Rule == "" || p.String() != safetext.Printable(p.String()) && len(p.String()) < 400 {
				t.Errorf("problem %q cannot be shown", p)
			}
		}
		if len(problems) > 0 {
			return
		}
		if c.Identity.SPIFFE.Socket != "" {
			if _, err := mtls.Open(c.Identity, nil); err != nil {
				t.Errorf("the identity can never work: %v", err)
			}
		}
		c.AllowAddresses = nil
		for i, catalog := range c.Catalogs {
			for j := range catalog.Exports {
				if line := &c.Catalogs[i].Exports[j].Line; *line < 1 || *line > lines {
					t.Errorf("a rule is on line %d of %d", *line, lines)
				}
			}
		}
		again, problems := config.Parse([]byte(spelled(c)))
		if diff := cmp.Diff(c, again, equal, cmpopts.IgnoreFields(config.Export{}, "Line")); diff != "" || len(problems) > 0 {
			t.Errorf("problems %v; unexpected configuration (-want +got):\n%s\n%s", problems, diff, spelled(c))
		}
	})
}
