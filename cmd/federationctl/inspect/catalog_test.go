package inspect_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
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

// dump dumps the catalog of a process that has these services.
func dump(t testing.TB, services ...*federation.Service) string {
	t.Helper()
	p := &process{status.Owner, map[string][]*federation.Service{"": services}}
	return must.Get(start(t, page.NewHandler(p)).DumpCatalog(t.Context(), "", 1<<30))(t)
}

// read returns the services of a catalog file.
func read(t testing.TB, text string) (services []*federation.Service) {
	t.Helper()
	parsed := catalogfile.Parse([]byte(text), wire.AnyAddress())
	if err := parsed.Err(); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, encoded := range parsed.Services {
		services = append(services, encoded.Service())
	}
	return services
}

// TestDumpIsACatalogFile reads what is dumped, and finds the same services in it.
func TestDumpIsACatalogFile(t *testing.T) {
	for name, services := range map[string][]*federation.Service{"awkward": awkwardServices(t), "empty": nil} {
		t.Run(name, func(t *testing.T) {
			text := dump(t, services...)
			if i := strings.IndexFunc(text, func(r rune) bool {
				return r < ' ' && r != '\n' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x202e
			}); i >= 0 {
				t.Errorf("it has %q", text[i:i+1])
			}
			if again := dump(t, read(t, text)...); again != text {
				t.Error(cmp.Diff(text, again))
			}
		})
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
		{"unknown", process{status.Owner, map[string][]*federation.Service{"": one}}, "west", `there is no owner or catalog "west"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text, err := start(t, page.NewHandler(&test.process)).DumpCatalog(t.Context(), test.of, 1<<20)
			switch {
			case test.want == "" && (err != nil || strings.Count(text, "web.fed.example") != 1):
				t.Errorf("%s, %v", text, err)
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
	e := start(b, page.NewHandler(&process{status.Owner, map[string][]*federation.Service{"": services}}))
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(must.Get(e.DumpCatalog(b.Context(), "", 1<<30))(b))))
	}
}
