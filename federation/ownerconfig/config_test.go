package ownerconfig_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/ownerconfig"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
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
window: 256
identity:
  files: {cert: owner.pem, key: /run/owner-key.pem, ca: ca.pem}
allow:
  ids: ["spiffe://consumer.example/coredns", DNS.partner.example]
  file: consumers.txt
allow_addresses: [127.0.0.0/8]
catalogs:
- sources:
  - file: {path: catalog.yaml, lifetime: 90, max_size: 64KiB}
  - kubernetes:
      cluster: west
      zone: west.fed.example
      kubeconfig: west.conf
      context: admin
      namespaces: [shop, pay]
      selector: tier in (public), !internal
      endpoints: [load-balancer, pods]
      pods: routable
      lifetime: forever
- server_name: Mesh-B.example.
  sources:
  - kubernetes: {cluster: east, zone: east.fed.example.}
`

func ids(t *testing.T, texts ...string) []mtls.ID {
	t.Helper()
	var ids []mtls.ID
	for _, text := range texts {
		id, err := mtls.ParseID(text)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// equal compares identities by ==.
var equal = cmp.Options{
	cmp.Comparer(func(a, b mtls.ID) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func TestParse(t *testing.T) {
	east := &ownerconfig.Kubernetes{
		Cluster: "east", Zone: "east.fed.example", Endpoints: []string{"gateway", "load-balancer", "external-ips", "node-ports"},
	}
	for text, want := range map[string]ownerconfig.Config{
		least: {
			Listen: ":8008", Window: 1,
			Identity: mtls.Files{Cert: "owner.pem", Key: "owner-key.pem", CA: "ca.pem"},
			Allow:    ownerconfig.Allow{IDs: ids(t, "spiffe://consumer.example/coredns")},
			Catalogs: []ownerconfig.Catalog{{Sources: []ownerconfig.Source{
				{Name: "file:catalog.yaml", Lifetime: time.Hour, File: &ownerconfig.File{Path: "catalog.yaml", MaxSize: 256 << 20}},
			}}},
		},
		most: {
			Listen: "127.0.0.1:8010", Metrics: "localhost:9153", Window: 256,
			Identity:       mtls.Files{Cert: "owner.pem", Key: "/run/owner-key.pem", CA: "ca.pem"},
			Allow:          ownerconfig.Allow{IDs: ids(t, "spiffe://consumer.example/coredns", "dns.partner.example"), File: "consumers.txt"},
			AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
			Catalogs: []ownerconfig.Catalog{
				{Sources: []ownerconfig.Source{
					{Name: "file:catalog.yaml", Lifetime: 90 * time.Second, File: &ownerconfig.File{Path: "catalog.yaml", MaxSize: 64 << 10}},
					{Name: "kubernetes:west", Kubernetes: &ownerconfig.Kubernetes{
						Cluster: "west", Zone: "west.fed.example", Kubeconfig: "west.conf", Context: "admin",
						Namespaces: []string{"shop", "pay"}, Selector: "tier in (public), !internal",
						Endpoints: []string{"load-balancer", "pods"}, Routable: true,
					}},
				}},
				{ServerName: "mesh-b.example", Sources: []ownerconfig.Source{{Name: "kubernetes:east", Lifetime: time.Hour, Kubernetes: east}}},
			},
		},
	} {
		got, problems := ownerconfig.Parse([]byte(text))
		if len(problems) > 0 {
			t.Errorf("problems %v in\n%s", problems, text)
		}
		if diff := cmp.Diff(want, got, equal); diff != "" {
			t.Errorf("unexpected configuration (-want +got):\n%s", diff)
		}
	}
}

func TestIn(t *testing.T) {
	c, _ := ownerconfig.Parse([]byte(most))
	at := c.In("/etc/owner")
	got := []string{
		at.Identity.Cert, at.Identity.Key, at.Identity.CA, at.Allow.File,
		at.Catalogs[0].Sources[0].File.Path, at.Catalogs[0].Sources[1].Kubernetes.Kubeconfig, at.Catalogs[1].Sources[0].Kubernetes.Kubeconfig,
	}
	want := []string{
		"/etc/owner/owner.pem", "/run/owner-key.pem", "/etc/owner/ca.pem", "/etc/owner/consumers.txt",
		"/etc/owner/catalog.yaml", "/etc/owner/west.conf", "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected paths (-want +got):\n%s", diff)
	}
	if c.Catalogs[0].Sources[0].File.Path != "catalog.yaml" {
		t.Error("In has changed the configuration itself")
	}
}

// TestKey compares sources before and after an edit.
func TestKey(t *testing.T) {
	source := func(text string) ownerconfig.Source {
		t.Helper()
		c, problems := ownerconfig.Parse([]byte(strings.Replace(least, "file: {path: catalog.yaml}", text, 1)))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return c.Catalogs[0].Sources[0]
	}
	for _, tt := range []struct {
		before, after string
		same          bool
	}{
		{"file: {path: a}", "file: {path: a, lifetime: forever}", true},
		{"file: {path: a}", "file: {path: b}", false},
		{"file: {path: a}", "file: {path: a, max_size: 1}", false},
		{"kubernetes: {cluster: a, zone: a.example}", "kubernetes: {zone: A.example., cluster: a, lifetime: 2h}", true},
		{"kubernetes: {cluster: a, zone: a.example}", "kubernetes: {cluster: a, zone: a.example, namespaces: [b]}", false},
		{"kubernetes: {cluster: a, zone: a.example, namespaces: [b, c]}", "kubernetes: {cluster: a, zone: a.example, namespaces: [b]}", false},
		{"kubernetes: {cluster: a, zone: a.example}", "kubernetes: {cluster: a, zone: a.example, pods: routable}", false},
	} {
		if got := source(tt.before).Key() == source(tt.after).Key(); got != tt.same {
			t.Errorf("%q and %q are the same: %v, expected %v", tt.before, tt.after, got, tt.same)
		}
	}
}

// shown returns problems as lint shows them.
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
		"a key with a slip":     {"allow:", "alow:", []string{"1: allow: required", "3: alow: there is no such key; did you mean allow?"}},
		"a key of nothing":      {"allow:", "whatever: 1\nallow:", []string{"3: whatever: there is no such key; those that there are: allow, allow_addresses, catalogs, identity, listen, metrics, window"}},
		"a key twice":           {"allow:", "window: 1\nwindow: 2\nallow:", []string{"4: window: is there twice, first on line 3"}},
		"a key that is no word": {"allow:", "[a]: 2\nallow:", []string{"3: a key must be a plain word"}},
		"an alias":              {"allow:", "listen: &a \":1\"\nmetrics: *a\nallow:", []string{"4: metrics: aliases (*a) are not resolved here; write the value again"}},
		"no value":              {"allow:", "listen:\nallow:", []string{"3: listen: has no value, must be an address"}},
		"addresses":             {"allow:", "listen: host\nmetrics: \":http\"\nallow:", []string{`3: listen: "host" is not host:port, such as localhost:9153, or :8008 for all addresses of this machine`, `4: metrics: ":http" is not host:port, such as localhost:9153, or :8008 for all addresses of this machine`}},
		"one address for two":   {"allow:", "metrics: \":8008\"\nallow:", []string{"3: metrics: is the address of listen as well"}},
		"a window":              {"allow:", "window: 1025\nallow:", []string{`3: window: "1025" is not a whole number from 1 to 1024`}},
		"a window that is none": {"allow:", "window: {}\nallow:", []string{"3: window: must be a whole number"}},
		"ranges":                {"allow:", "allow_addresses: [127.0.0.0/8, 10, 127.0.0.0/8]\nallow:", []string{`3: allow_addresses[1]: "10" is not a CIDR such as 127.0.0.0/8`, `3: allow_addresses[2]: "127.0.0.0/8" is there twice, first on line 3`}},
		"a certificate":         {"cert: owner.pem, key", "cert: 1, kez", []string{`2: identity.files.cert: must be a string, not "1"; put it in quotes`, `2: identity.files.kez: there is no such key; did you mean key?`, `2: identity.files.key: required`}},
		"no identity":           {"files: {", "file: {", []string{"1: identity.files: required", "2: identity.file: there is no such key; did you mean files?"}},
		"SPIFFE":                {"files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}", "spiffe: {socket: a}", []string{"2: identity.spiffe: this version takes no certificates from a SPIFFE agent; name files"}},
		"who is nobody":         {`"spiffe://consumer.example/coredns"`, `"http://a", a.example, A.example, ""`, []string{`4: allow.ids[0]: identity "http://a": only the scheme spiffe:// is an identity`, `4: allow.ids[2]: "a.example" is there twice, first on line 4`, `4: allow.ids[3]: is empty`}},
		"nobody by omission":    {`ids: ["spiffe://consumer.example/coredns"]`, `{}`, []string{"3: allow: needs ids, file or both; 'ids: []' lets nobody subscribe"}},
		"no sources":            {"sources:\n  - file: {path: catalog.yaml}", "sources: []", []string{"6: catalogs[0].sources: at least one is required"}},
		"no catalogs":           {"- sources:\n  - file: {path: catalog.yaml}", "  []", []string{"5: catalogs: at least one is required"}},
		"a source of nothing":   {"file: {path: catalog.yaml}", "{}", []string{"7: catalogs[0].sources[0]: is empty; it needs an origin: file or kubernetes"}},
		"two origins in one":    {"file: {path: catalog.yaml}", "file: {path: a}\n    kubernetes: {cluster: a, zone: b.example}", []string{"7: catalogs[0].sources[0]: has 2 origins; give each a '-' of its own"}},
		"sources of later":      {"file: {path: catalog.yaml}", "registration: {}\n  - nsm: {}", []string{"7: catalogs[0].sources[0].registration: this version has no such source; it has file and kubernetes", "8: catalogs[0].sources[1].nsm: this version has no such source; it has file and kubernetes"}},
		"a policy":              {"- sources:", "- exports: []\n  sources:", []string{"6: catalogs[0].exports: this version has no export policy: each consumer that may subscribe gets every service of the catalog"}},
		"a relay":               {"- sources:", "- relay: {}\n  server_name: a.example\n- sources:", []string{"6: catalogs[0].relay: this version has no relay; a catalog needs sources"}},
		"server names":          {"- sources:", "- server_name: a.example\n  sources: &s [file: {path: a}]\n- server_name: A.example.\n  sources: [file: {path: a}]\n- server_name: a b\n  sources: [file: {path: a}]\n- sources: [file: {path: b}]\n- sources:", []string{"8: catalogs[1].server_name: a.example is that of the catalog on line 6, too", `10: catalogs[2].server_name: "a b" is no host name: label has a character other than a-z, 0-9, '-' and '_'`, "13: catalogs[4]: has no server_name, and neither has the catalog on line 12; only one can be the default"}},
		"a file":                {"path: catalog.yaml", "lifetime: 0, max_size: 1TB", []string{`7: catalogs[0].sources[0].file.lifetime: "0" is neither a duration such as 90m, of 1s at least, nor forever`, `7: catalogs[0].sources[0].file.max_size: "1TB" is not a size such as 512MiB`, "7: catalogs[0].sources[0].file.path: required"}},
		"a file twice":          {"- file: {path: catalog.yaml}", "- file: {path: a}\n  - file: {path: a, max_size: 1}", []string{`8: catalogs[0].sources[1]: "file:a" is there twice, first on line 7`}},
		"a cluster twice":       {"- file: {path: catalog.yaml}", "- kubernetes: {cluster: a, zone: a.example}\n  - kubernetes: {cluster: a, zone: b.example}", []string{`8: catalogs[0].sources[1]: "kubernetes:a" is there twice, first on line 7`}},
		"a cluster": {"file: {path: catalog.yaml}", "kubernetes: {cluster: West, context: a, namespaces: [], selector: 'a b', endpoints: [pods, nodes], pods: yes}", []string{
			`7: catalogs[0].sources[0].kubernetes.cluster: "West" is not a name of up to 63 lower-case letters, digits and '-'`,
			"7: catalogs[0].sources[0].kubernetes.namespaces: at least one is required; leave it out for all",
			`7: catalogs[0].sources[0].kubernetes.selector: "a b" is no selector of labels: unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt`,
			`7: catalogs[0].sources[0].kubernetes.endpoints[1]: "nodes" is not one of gateway, load-balancer, external-ips, node-ports, pods`,
			"7: catalogs[0].sources[0].kubernetes.pods: must be routable; leave it out where consumers do not reach pods",
			"7: catalogs[0].sources[0].kubernetes.zone: required",
			"7: catalogs[0].sources[0].kubernetes.context: is one of a kubeconfig, and none is named",
		}},
		"pods that nobody reaches": {"file: {path: catalog.yaml}", "kubernetes: {cluster: a, zone: a.example, endpoints: [pods]}", []string{"7: catalogs[0].sources[0].kubernetes.endpoints: pods are endpoints only with 'pods: routable'"}},
		"pods without effect":      {"file: {path: catalog.yaml}", "kubernetes: {cluster: a, zone: a.example, endpoints: [gateway], pods: routable}", []string{"7: catalogs[0].sources[0].kubernetes.pods: has no effect, as endpoints leaves pods out"}},
		"syntax":                   {"allow:", "allow: [", []string{"2: did not find expected ',' or ']'"}},
		"two documents":            {"allow:", "---\nallow:", []string{"3: a second document begins here; a configuration is one document"}},
		"nothing":                  {least, "# soon\n", []string{"0: the file is empty"}},
		"no mapping":               {least, "a", []string{`1: must be a mapping, not "a"`}},
		"too large":                {least, strings.Repeat("#", ownerconfig.MaxBytes+1), []string{"0: the file has more than 1048576 bytes"}},
	} {
		text := strings.Replace(least, tt.old, tt.new, 1)
		if text == least {
			t.Fatalf("%s: %q is not in the configuration", name, tt.old)
		}
		_, problems := ownerconfig.Parse([]byte(text))
		if diff := cmp.Diff(tt.want, shown(problems)); diff != "" {
			t.Errorf("%s: unexpected problems (-want +got):\n%s", name, diff)
		}
	}
}

// TestManyMistakes has one slip that causes many problems.
func TestManyMistakes(t *testing.T) {
	text := least + strings.Repeat("- 1\n", 1000)
	_, problems := ownerconfig.Parse([]byte(text))
	if len(problems) != problem.Room+1 || problems[problem.Room].Rule != "and 900 more" {
		t.Errorf("%d problems, of which the last is %v", len(problems), problems[len(problems)-1])
	}
}

func TestRecognize(t *testing.T) {
	for text, want := range map[string]bool{
		least:                       true,
		"catalogs:\n- [":            true,
		`{"catalogs": []}`:          true,
		"services: []\n":            false,
		"services: []\nlisten: a\n": false,
		"services: [\n":             false,
		"":                          false,
		"- catalogs: a\n":           false,
		"other: 1\n":                false,
	} {
		if got := ownerconfig.Recognize([]byte(text)); got != want {
			t.Errorf("%q is recognized: %v, expected %v", text, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "1B": 1, "64KiB": 64 << 10, "512MiB": 512 << 20, "1GiB": 1 << 30, "1536": 1536} {
		got, err := ownerconfig.ParseSize(text)
		if err != nil || got != want {
			t.Errorf("%s is %d, %v, expected %d", text, got, err, want)
		}
		if again, err := ownerconfig.ParseSize(ownerconfig.FormatSize(got)); again != got || err != nil {
			t.Errorf("%d is formatted as %s", got, ownerconfig.FormatSize(got))
		}
	}
	for _, text := range []string{"", "0", "-1", "+1", "1K", "KiB", "1 KiB", "1.5MiB", "99999999999"} {
		if got, err := ownerconfig.ParseSize(text); err == nil {
			t.Errorf("%q is a size, %d", text, got)
		}
	}
}

// spelled returns a configuration as the text of a file that says the same.
func spelled(c ownerconfig.Config) string {
	var b strings.Builder
	quote := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return string(data)
	}
	lifetime := func(d time.Duration) string {
		if d == 0 {
			return "forever"
		}
		return d.String()
	}
	fmt.Fprintf(&b, "listen: %s\nwindow: %d\n", quote(c.Listen), c.Window)
	if c.Metrics != "" {
		fmt.Fprintf(&b, "metrics: %s\n", quote(c.Metrics))
	}
	fmt.Fprintf(&b, "identity:\n  files: {cert: %s, key: %s, ca: %s}\n", quote(c.Identity.Cert), quote(c.Identity.Key), quote(c.Identity.CA))
	b.WriteString("allow:\n  ids:")
	if len(c.Allow.IDs) == 0 {
		b.WriteString(" []")
	}
	b.WriteString("\n")
	for _, id := range c.Allow.IDs {
		fmt.Fprintf(&b, "  - %s\n", quote(id.String()))
	}
	if c.Allow.File != "" {
		fmt.Fprintf(&b, "  file: %s\n", quote(c.Allow.File))
	}
	fmt.Fprintf(&b, "allow_addresses: []\n")
	b.WriteString("catalogs:\n")
	for _, catalog := range c.Catalogs {
		b.WriteString("- sources:\n")
		for _, s := range catalog.Sources {
			if s.File != nil {
				fmt.Fprintf(&b, "  - file: {path: %s, lifetime: %s, max_size: %s}\n", quote(s.File.Path), lifetime(s.Lifetime), ownerconfig.FormatSize(s.File.MaxSize))
				continue
			}
			k := s.Kubernetes
			fmt.Fprintf(&b, "  - kubernetes:\n      cluster: %s\n      zone: %s\n      lifetime: %s\n      endpoints: %s\n",
				quote(k.Cluster), quote(k.Zone), lifetime(s.Lifetime), quote(k.Endpoints))
			if k.Kubeconfig != "" {
				fmt.Fprintf(&b, "      kubeconfig: %s\n", quote(k.Kubeconfig))
			}
			if k.Context != "" {
				fmt.Fprintf(&b, "      context: %s\n", quote(k.Context))
			}
			if len(k.Namespaces) > 0 {
				fmt.Fprintf(&b, "      namespaces: %s\n", quote(k.Namespaces))
			}
			if k.Selector != "" {
				fmt.Fprintf(&b, "      selector: %s\n", quote(k.Selector))
			}
			if k.Routable {
				b.WriteString("      pods: routable\n")
			}
		}
		if catalog.ServerName != "" {
			fmt.Fprintf(&b, "  server_name: %s\n", quote(catalog.ServerName))
		}
	}
	return b.String()
}

// FuzzParse parses any text. A problem has a line of the text, and a configuration
// says the same when it is written down and parsed again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(least))
	f.Add([]byte(most))
	f.Add([]byte("---"))
	f.Add([]byte("listen: [\n"))
	f.Add([]byte("allow:\n  ids:\n  -\n---"))
	f.Add([]byte("a: &a [*a]\n<<: *a\n"))
	f.Add([]byte("catalogs:\n- sources:\n  - {}\n  - file:\n  - ~\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, problems := ownerconfig.Parse(data)
		ownerconfig.Recognize(data)
		lines := strings.Count(strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(string(data)), "\n") + 1
		for _, p := range problems {
			if p.Line < 0 || p.Line > lines {
				t.Errorf("problem %q is on line %d of %d", p, p.Line, lines)
			}
			if p.Rule == "" || p.String() != problem.Printable(p.String()) && len(p.String()) < 400 {
				t.Errorf("problem %q cannot be shown", p)
			}
		}
		if len(problems) > 0 {
			return
		}
		c.AllowAddresses = nil
		again, problems := ownerconfig.Parse([]byte(spelled(c)))
		if diff := cmp.Diff(c, again, equal); diff != "" || len(problems) > 0 {
			t.Errorf("problems %v; unexpected configuration (-want +got):\n%s\n%s", problems, diff, spelled(c))
		}
	})
}
