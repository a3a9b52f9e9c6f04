package inspect_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/page"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
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

func dump(t testing.TB, c *inspect.Catalog) string {
	t.Helper()
	var text strings.Builder
	must.Do(t, c.Dump(&text))
	return text.String()
}

// read returns the catalog that a process has which serves a catalog file.
func read(t testing.TB, text string) *inspect.Catalog {
	t.Helper()
	parsed := catalogfile.Parse([]byte(text), wire.AnyAddress())
	if err := parsed.Err(); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	services := make([]*federation.Service, len(parsed.Services))
	for i, encoded := range parsed.Services {
		services[i] = encoded.Service()
	}
	return catalogOf(t, services...)
}

// TestDumpIsACatalogFile reads what is dumped, and finds the same services in it.
func TestDumpIsACatalogFile(t *testing.T) {
	services := awkwardServices(t)
	for name, want := range map[string]*inspect.Catalog{"awkward": catalogOf(t, services...), "empty": catalogOf(t)} {
		t.Run(name, func(t *testing.T) {
			text := dump(t, want)
			if i := strings.IndexFunc(text, func(r rune) bool {
				return r < ' ' && r != '\n' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x202e
			}); i >= 0 {
				t.Errorf("it has %q", text[i:i+1])
			}
			if again := dump(t, read(t, text)); again != text {
				t.Error(cmp.Diff(text, again))
			}
		})
	}
	if other := catalogOf(t, shuffled(services)...); dump(t, other) != dump(t, catalogOf(t, services...)) {
		t.Error("the order of the services shows")
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

func BenchmarkDump(b *testing.B) {
	var services []*federation.Service
	for i := range 100_000 {
		services = append(services, service(b, fmt.Sprintf("service-%d", i), fmt.Sprintf("s%d.fed.example", i), "192.0.2.1", "192.0.2.2", "2001:db8::1"))
	}
	e := start(b, page.Handler(&process{status.Owner, map[string][]*federation.Service{"": services}}))
	b.ReportAllocs()
	for b.Loop() {
		c := must.Get(e.Catalog(b.Context(), "", 1<<30))(b)
		b.SetBytes(int64(len(dump(b, c))))
	}
}
