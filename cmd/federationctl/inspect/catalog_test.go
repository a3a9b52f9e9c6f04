package inspect_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// awkward are texts that YAML reads as something else, or that a terminal obeys.
var awkward = []string{
	"plain", "", "null", "~", "true", "123", "0x1f", "1e3", "2026-01-02", "- a", "# a", "a: b", "a #b", " a ", "a\nb", "\n", "a\n\n b\n", "\ta", "a\tb\n c",
	"'", `"`, `\`, `\u202e`, "[", "{a", "*a", "&a", "!a", "|", ">", "%", "@", "`", "?", ":", "<<", "=", "---", "...", "a\r\nb", "\x00\x1b[2J", "\x7f",
	"\u0085", "\u2028", "\u202e", "\ufeff", "\ufffe", "\U0001f600", "é", strings.Repeat("long ", 80), "yes", "Off",
}

func awkwardServices(t testing.TB) []*federation.Service {
	t.Helper()
	var services []*federation.Service
	for i, text := range awkward {
		s := service(t, fmt.Sprintf("%02d %s", i, text), fmt.Sprintf("s%d.fed.example", i), "192.0.2.1", "2001:db8::1", "host.example")
		s.Description = text
		s.Labels = []federation.Pair{{Key: "k" + text, Value: text}}
		s.Instances[0].Metadata = []federation.Pair{{Key: "m", Value: text}}
		services = append(services, s)
	}
	return services
}

func dump(t testing.TB, c *inspect.Catalog, format string) string {
	t.Helper()
	var text strings.Builder
	must.Do(t, c.Dump(&text, format))
	return text.String()
}

// TestDumpIsACatalogFile reads what is dumped, and finds the same services in it.
func TestDumpIsACatalogFile(t *testing.T) {
	services := awkwardServices(t)
	for name, want := range map[string]*inspect.Catalog{"awkward": catalogOf(t, services...), "empty": catalogOf(t)} {
		for _, format := range inspect.Formats {
			t.Run(name+" "+format, func(t *testing.T) {
				text := dump(t, want, format)
				if i := strings.IndexFunc(text, func(r rune) bool {
					return r < ' ' && r != '\n' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x202e
				}); i >= 0 {
					t.Errorf("it has %q", text[i:i+1])
				}
				file := filepath.Join(t.TempDir(), "catalog."+format)
				must.Do(t, os.WriteFile(file, []byte(text), 0o600))
				got, err := inspect.ReadCatalog(file, 1<<30)
				if err != nil {
					t.Fatalf("%v in\n%s", err, text)
				}
				var differences strings.Builder
				if differ, err := inspect.Diff(&differences, want, got); differ || err != nil {
					t.Errorf("%v, %s", err, differences.String())
				}
				if again := dump(t, got, format); again != text {
					t.Error(cmp.Diff(text, again))
				}
			})
		}
	}
	if other := catalogOf(t, shuffled(services)...); dump(t, other, "yaml") != dump(t, catalogOf(t, services...), "yaml") {
		t.Error("the order of the services shows")
	}
}

// TestDumpIsForPeople shows how it looks.
func TestDumpIsForPeople(t *testing.T) {
	s := service(t, "web", "web.fed.example", "192.0.2.1")
	s.Description, s.Tags = "two\nlines", []string{"yes"}
	const want = `services:
- name: web
  description: |-
    two
    lines
  tags:
    - "yes"
  fqdn: web.fed.example
  endpoints:
    - address: 192.0.2.1
      port: 443
  instances:
    - id: v1
      protocol: HTTPS
`
	got := dump(t, catalogOf(t, s), "yaml")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestOf chooses the catalog of a process.
func TestOf(t *testing.T) {
	one := []*federation.Service{service(t, "web", "web.fed.example", "192.0.2.1")}
	tests := []struct {
		name string
		process
		of, want string
	}{
		{"only one", process{status.Consumer, map[string][]*federation.Service{"o1:8008": one}}, "", ""},
		{"default", process{status.Owner, map[string][]*federation.Service{"": one, "east": nil}}, "", ""},
		{"named", process{status.Owner, map[string][]*federation.Service{"": nil, "east": one}}, "east", ""},
		{"several", process{status.Consumer, map[string][]*federation.Service{"o1:8008": one, "o2:8008": nil}}, "", `name one with --of: "o1:8008", "o2:8008"`},
		{"none", process{status.Consumer, nil}, "", "has no catalog"},
		{"unknown", process{status.Owner, map[string][]*federation.Service{"": one}}, "west", `there is no "west"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := start(t, page.Handler(&test.process)).Catalog(t.Context(), test.of, 1<<20)
			switch {
			case test.want == "" && (err != nil || c.Len() != 1):
				t.Errorf("%v, %v", c, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, expected %q", err, test.want)
			}
		})
	}
}

func TestDiff(t *testing.T) {
	changed := service(t, "b", "b.fed.example", "192.0.2.2", "192.0.2.3")
	changed.Tags = []string{"new"}
	before := catalogOf(t, service(t, "a", "a.fed.example", "192.0.2.1"), service(t, "b", "b.fed.example", "192.0.2.2"), service(t, "same", "s.fed.example", "192.0.2.1"))
	after := catalogOf(t, changed, service(t, "c\x1b[2J", "c.fed.example", "192.0.2.1"), service(t, "same", "s.fed.example", "192.0.2.1"))
	var text strings.Builder
	differ, err := inspect.Diff(&text, before, after)
	const want = `- a (a.fed.example)
~ b (b.fed.example): +tags[new], +endpoints[192.0.2.3:443]
+ c\x1b[2J (c.fed.example)
`
	if diff := cmp.Diff(want, text.String()); diff != "" || !differ || err != nil {
		t.Errorf("%v, %v, %s", differ, err, diff)
	}
	if differ, err := inspect.Diff(&text, before, before); differ || err != nil {
		t.Errorf("%v, %v", differ, err)
	}
}

func TestUnreadableCatalogs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "broken.yaml")
	must.Do(t, os.WriteFile(file, []byte("services: \x1b"), 0o600))
	for name, limit := range map[string]int64{file: 100, file + ".missing": 100, dir: 100, filepath.Join(dir, "broken.yaml"): 3} {
		_, err := inspect.ReadCatalog(name, limit)
		oneLine(t, err)
	}
}

func BenchmarkDump(b *testing.B) {
	var services []*federation.Service
	for i := range 100_000 {
		services = append(services, service(b, fmt.Sprintf("service-%d", i), fmt.Sprintf("s%d.fed.example", i), "192.0.2.1", "192.0.2.2", "2001:db8::1"))
	}
	e := start(b, page.Handler(&process{status.Owner, map[string][]*federation.Service{"": services}}))
	b.ReportAllocs()
	for b.Loop() {
		c := must.Get(e.Catalog(b.Context(), "", 1<<30))(b)
		b.SetBytes(int64(len(dump(b, c, "yaml"))))
	}
}
