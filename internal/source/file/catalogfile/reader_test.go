package catalogfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

func never() error { return nil }

// read reads a version of a file.
func read(r *Reader, data []byte) (Catalog, error) {
	return r.Read(bytes.NewReader(data), int64(len(data)), never)
}

func diffCatalogs(want, got Catalog) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b *wire.EncodedService) bool { return a.Equal(b) }))
}

// yamlTexts are catalogs in YAML, right and wrong ones.
var yamlTexts = []string{
	webYAML,
	"services:\n- name: a\n  fqdn: a.example\n" + rest + "- name: b\n  fqdn: b.example\n" + rest,
	"# first\n\n---\nservices: # of ours\n  # one\n  - name: a\n    fqdn: a.example\n    endpoints: [{address: 192.0.2.1, port: 80}]\n" +
		"    instances: [{id: i1, protocol: TCP}]\n\n# two\n  -\n    name: b\n    description: |+\n      - name: c\n\n  -\t{name: c}\n",
	"services:\r\n- name: a\r\n  fqdn: a.example\r\n- name: b\r\n",
	"services:\n- name: a\n  tags: [a,\n- b]\n- name: b\n",
	"services:\n- name: \"a\n- b\"\n- name: c\n",
	"services:\n- name: 'a\n\n- b'\n  fqdn: |\n   a\n- ? a\n  : b\n",
	"services:\n- &a\n  name: a\n- *a\n- <<: *a\n",
	"services:\n- name: &n a\n  fqdn: *n\n",
	"services:\n- a\n...\n- b\n",
	"services:\n- a\n---\n- b\n",
	"services:\n- a\u0085...\n- b\n",
	"services:\n- a\r- b\r...\r- c\n",
	"services:\n- \"a\u2028- b\"\n- c: d\n c: e\n",
	"services:\n- a\n...\n",
	"services:\n- a\nversion: 1\n",
	"services:\n  - a\n- b\n",
	"services:\n  - a\n b: c\n",
	"services:\n- a\n%YAML 1.1\n",
	"services:\n-\n-\n- - a\n  - b\n-",
	"services:\n- a: 1\n  a: 2\n  a: 3\n- {b: 1, b: 2}\n",
	"services:\n- <<: [{a: 1}, {a: 2}]\n  <<: {b: 1}\n",
	"\ufeffservices:\n- a\n",
	"services:\n\n- # a\n  name: a # b\n  # c\n- name: b\n#d",
	"#\xb2\nservices:\n-",
	"#\x01\nservices: # \x7f\n- name: a",
}

// FuzzReader reads a file twice: what is remembered of it, and what it says as a stream
// of single bytes, is the same.
func FuzzReader(f *testing.F) {
	for _, text := range append(yamlTexts, lineTexts...) {
		f.Add([]byte(text))
	}
	f.Add([]byte(webJSON))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(wire.AddressPolicy{})
		got := must.Get(read(r, data))(t)
		again := must.Get(r.Read(iotest.OneByteReader(bytes.NewReader(data)), 0, never))(t)
		if diff := diffCatalogs(got, again); diff != "" {
			t.Errorf("for the first and the second time (-first +second):\n%s", diff)
		}
	})
}

// lineTexts are JSON lines, right and wrong ones.
var lineTexts = []string{
	webLine + "\n",
	"\n \r\n" + webLine + "\r\n\n" + strings.Replace(webLine, "web", "other", 2),
	webLine + webLine + "\n",
	webLine[:20] + "\n" + webLine + "\n",
	webLine + "\n[]\n\"a\"\nnull\n{}\n# a\n" + webLine,
	`{"name":"a","name":"b","fqdn":7,"x":{},"endpoints":[{}]}`,
}

const webLine = `{"name":"web","fqdn":"web.example","endpoints":[{"address":"192.0.2.1","port":80}],"instances":[{"id":"-","protocol":"TCP"}]}`

func TestJSONLines(t *testing.T) {
	other := strings.Replace(webLine, "web", "other", 2)
	c := Parse([]byte("\n"+webLine+"\r\n\n"+other), wire.AddressPolicy{})
	warning := " will have no DNS name of its own: label begins or ends with '-'"
	if diff := cmp.Diff([]string{`2: service "web": instances[0].id: "-"` + warning, `4: service "other": instances[0].id: "-"` + warning}, lines(c.Warnings)); diff != "" {
		t.Errorf("unexpected warnings (-want +got):\n%s", diff)
	}
	if len(c.Services) != 2 || c.Err() != nil {
		t.Errorf("%d services, %v, expected 2", len(c.Services), c.Err())
	}
	wrong := webLine + "\n" + webLine + "\n" + other[:40] + "\n\n" + other + " {}\n[]\n" +
		`{"name":"c","endpoints":[{"port":"x"}],"nam":1}` + "\n"
	want := []string{
		`2: service "web": name: the service on line 1 has the same name; a name stands for one service`,
		"3: service services[2]: unexpected end of JSON input; a line holds one service",
		"5: service services[3]: invalid character '{' after top-level value; a line holds one service",
		"6: service services[4]: a service must be a mapping",
		`7: service "c": there is no field "nam"`,
		`7: service "c": fqdn: required`,
		`7: service "c": endpoints[0].address: required`,
		`7: service "c": endpoints[0].port: must be a whole number from 0 on, not "x"`,
	}
	if diff := cmp.Diff(want, lines(Parse([]byte(wrong), wire.AddressPolicy{}).Problems)); diff != "" {
		t.Errorf("unexpected problems (-want +got):\n%s", diff)
	}
}

// dashless is a catalog whose dashes were lost, but for the first.
func dashless(services int) []byte {
	text := []byte("services:\n")
	for i := range services {
		text = fmt.Appendf(text, "- name: s%d\n  fqdn: s%d.example.org\n%s", i, i, rest)
	}
	lost := bytes.ReplaceAll(text, []byte("\n- "), []byte("\n  "))
	return bytes.Replace(lost, []byte("  name"), []byte("- name"), 1)
}

// Each of these took gigabytes and made text in proportion to the square of the
// file, or would have taken minutes.
func TestBrokenCatalogTakesBoundedMemoryAndText(t *testing.T) {
	const size = 100_000
	many := func(text string) []byte { return []byte(strings.Repeat(text, size/len(text))) }
	for _, tt := range []struct {
		name   string
		data   []byte
		factor uint64 // of the memory that is allocated altogether
	}{
		{"dashes lost", dashless(1800), 200},
		{"one key again and again", slices.Concat([]byte("services:\n- a: 1\n"), many("  a: 1\n")), 200},
		{"one key again and again in a list in brackets", slices.Concat([]byte("services: [{"), many("a: 1, "), []byte("}]")), 200},
		{"different unknown keys", func() []byte {
			text := []byte("services:\n- a: 1\n")
			for i := range size / 10 {
				text = fmt.Appendf(text, "  k%d: 1\n", i)
			}
			return text
		}(), 500},
		{"unknown keys in JSON", func() []byte {
			text := []byte(`{"services": [{"a": 1`)
			for i := range size / 10 {
				text = fmt.Appendf(text, ", \"k%d\": 1", i)
			}
			return append(text, "}]}"...)
		}(), 500},
		{"one key again and again in JSON", slices.Concat([]byte(`{"services": [{`), many(`"name": "a", `), []byte(`"name": "a"}]}`)), 200},
		{"scalars as services", slices.Concat([]byte("services:\n"), many("- a\n")), 6000},
		{"empty services", slices.Concat([]byte("services:\n"), many("- {}\n")), 6000},
		{"empty services in JSON", slices.Concat([]byte(`{"services": [`), many(`{}, `), []byte("{}]}")), 1500},
		{"one name", slices.Concat([]byte("services:\n"), many("- name: a\n  fqdn: a.example\n"+rest)), 600},
		{"endpoints without a port", slices.Concat([]byte("services:\n- name: a\n  fqdn: a.example\n  instances: [{id: a, protocol: TCP}]\n  endpoints:\n"), many("  - {}\n")), 2000},
		{"endpoints that are none", slices.Concat([]byte("services:\n- name: a\n  endpoints:\n"), many("  - 1\n")), 2000},
		{"long key", slices.Concat([]byte("services:\n- ? "), many("k"), []byte("\n")), 200},
		{"long anchor", slices.Concat([]byte("services:\n- *"), many("k"), []byte("\n")), 200},
		{"long name with control characters", slices.Concat([]byte("services:\n- name: \""), many(`\e\n\x9b`), []byte("\"\n  port: 1\n")), 200},
		{"long number", slices.Concat([]byte(`{"services": [{"endpoints": [{"port": `), many("9"), []byte("}]}]}")), 200},
		{"long key twice", slices.Concat([]byte("services:\n- {? "), many("k"), []byte(" : 1, ? "), many("k"), []byte(": 1}\n")), 200},
		{"aliases of aliases", []byte("services:\n- a: &a [x, x, x, x, x, x, x, x, x]\n" + func() string {
			var text strings.Builder
			for c := 'b'; c <= 'z'; c++ {
				fmt.Fprintf(&text, "  %c: &%[1]c [%[2]s]\n", c, strings.Repeat("*"+string(c-1)+", ", 9))
			}
			return text.String()
		}()), 2000},
		{"aliases of a long text", slices.Concat([]byte("services:\n- name: &a "), many("a"), []byte("\n  tags: ["), many("*a, "), []byte("]\n")), 500},
		{"deep", slices.Concat([]byte("services:\n- "), many("["), many("]"), []byte("\n")), 500},
		{"deep in JSON", slices.Concat([]byte(`{"services": [`), bytes.Repeat([]byte("["), 9_000), bytes.Repeat([]byte("]"), 9_000), []byte("]}")), 5000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c := Parse(tt.data, wire.AddressPolicy{})
			runtime.ReadMemStats(&after)
			allocated := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d bytes: %d times as much was allocated, %s", len(tt.data), allocated/uint64(len(tt.data)), c.Err())
			if allocated > tt.factor*uint64(len(tt.data)) {
				t.Errorf("%d bytes were allocated for a file of %d, expected %d times as much at most", allocated, len(tt.data), tt.factor)
			}
			if err := c.Err(); err == nil || len(err.Error()) > 5000 {
				t.Errorf("error is %.5000v, expected a short one", err)
			}
			if len(c.Problems) > problem.Room || len(c.Warnings) > problem.Room {
				t.Errorf("%d problems and %d warnings are kept", len(c.Problems), len(c.Warnings))
			}
			for _, p := range append(c.Problems, c.Warnings...) {
				text := p.String()
				if len(text) > 1500 || strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }) {
					t.Errorf("text is %.1500q", text)
				}
			}
		})
	}
}

func TestServiceTooLargeIsAProblem(t *testing.T) {
	long := strings.Repeat("x", maxPiece)
	for name, text := range map[string]string{
		"JSON":       "{\"services\": [{\"name\": \"a\"},\n\n{\"name\": \"" + long + "\"}]}",
		"JSON lines": "{\"name\": \"a\"}\n\n{\"name\": \"" + long + "\"}\n{\"name\": \"b\"}",
	} {
		c := Parse([]byte(text), wire.AddressPolicy{})
		if !slices.ContainsFunc(c.Problems, func(p problem.Problem) bool {
			return p.Service == "services[1]" && p.Line == 3 && strings.Contains(p.Rule, "the limit is 8388608")
		}) {
			t.Errorf("%s: problems are %q", name, lines(c.Problems))
		}
	}
}

func TestYAMLTooLargeIsAProblem(t *testing.T) {
	text := services.CatalogFile("a 1") + "#"
	text += strings.Repeat("x", MaxYAML-len(text))
	if c := Parse([]byte(text), wire.AddressPolicy{}); len(c.Services) != 1 || c.Err() != nil {
		t.Errorf("%d services in %d bytes, %v, expected one", len(c.Services), len(text), c.Err())
	}
	text += "x"
	const large = "0: a catalog in YAML may have 16777216 bytes; write a larger one as JSON lines, for example with yq"
	for _, tt := range []struct{ name, text, want string }{
		{"YAML", text, large},
		{"list", "[" + text, large},
		{"JSON with a comma too many", "{\"services\": [{\"name\": \"" + strings.Repeat("x", MaxYAML) + "\"},\n]}", "2: invalid character ']' looking for beginning of value"},
	} {
		c := Parse([]byte(tt.text), wire.AddressPolicy{})
		if diff := cmp.Diff([]string{tt.want}, lines(c.Problems)); diff != "" {
			t.Errorf("%s: unexpected problems (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestEditDecodesWhatChanged reads versions of a file with one reader.
func TestEditDecodesWhatChanged(t *testing.T) {
	version := func(form string, names ...string) []byte {
		text := services.CatalogFile(names...)
		if form == "YAML" {
			return []byte(text)
		}
		var value struct{ Services []any }
		must.Do(t, yaml.Unmarshal([]byte(text), &value))
		var data []byte
		for _, service := range value.Services {
			line := must.Get(json.Marshal(service))(t)
			data = append(append(data, line...), '\n')
		}
		if form == "JSON" {
			data = []byte(`{"services": [` + strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", ",\n") + "]}")
		}
		return data
	}
	for _, form := range []string{"YAML", "JSON", "JSON lines"} {
		r := NewReader(wire.AddressPolicy{})
		services := func(services ...string) []*wire.EncodedService {
			t.Helper()
			c, err := read(r, version(form, services...))
			if err != nil || c.Err() != nil {
				t.Fatal(err, c.Err())
			}
			return c.Services
		}
		first := services("a 1", "b 1", "c 1")
		second := services("a 1", "b 2", "c 1")
		if first[0] != second[0] || first[2] != second[2] || first[1].Equal(second[1]) {
			t.Errorf("%s: the services are not the same but for the second", form)
		}
		if c, err := read(r, []byte("services:\n- name: a\n")); err != nil || c.Err() == nil {
			t.Errorf("%s: %v, %v, expected a problem", form, err, c.Err())
		}
		third := services("c 1", "a 1")
		if third[0] != first[2] || third[1] != first[0] {
			t.Errorf("%s: the services were decoded again after a broken version", form)
		}
		if len(r.known) != 2 {
			t.Errorf("%s: %d services are remembered, expected those of the last version", form, len(r.known))
		}
	}
}

// The warnings of a service that is remembered are those of its new place.
func TestEditMovesWarnings(t *testing.T) {
	r := NewReader(wire.AddressPolicy{})
	doubtful := strings.Replace(services.CatalogFile("a 1", "b 1"), "id: i1", "id: -", 2)
	within := strings.Replace(doubtful, "\n  instances", "\n\n  instances", 1)
	for _, text := range []string{doubtful, "# moved\n" + doubtful, strings.Replace(doubtful, "\n- name: b", "\n\n\n- name: b", 1), within} {
		got := must.Get(read(r, []byte(text)))(t)
		want := Parse([]byte(text), wire.AddressPolicy{})
		if diff := diffCatalogs(want, got); diff != "" || len(got.Warnings) != 2 {
			t.Errorf("%d warnings; afresh and remembered (-want +got):\n%s", len(got.Warnings), diff)
		}
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	stop := errors.New("enough")
	for _, text := range []string{services.CatalogFile("a 1"), "services: [a]", `{"services": [1]}`, `{"name": 1}`} {
		_, err := NewReader(wire.AddressPolicy{}).Read(strings.NewReader(text), 0, func() error { return stop })
		if !errors.Is(err, stop) {
			t.Errorf("%s: error is %v, expected %v", text, err, stop)
		}
	}
}

// endless gives the same text again and again.
type endless struct {
	text []byte
	left int // bytes
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), e.left)], e.text)
	e.left -= n
	return n, nil
}

// What is no service takes no memory, however long it is.
func TestBadStreamTakesBoundedMemory(t *testing.T) {
	const size, large = 8 * maxPiece, "a catalog in YAML may have 16777216 bytes"
	for name, tt := range map[string]struct{ begin, again, want string }{
		"one line":         {"{\"name\": \"", "x", "has 67108874 bytes, the limit is 8388608"},
		"lines":            {"services:\n- ", "xxxxxxx\n", large},
		"comment":          {"#", "x", large},
		"spaces":           {"", " ", large},
		"no byte of a key": {"", "\x00", large},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		source := io.MultiReader(strings.NewReader(tt.begin), &endless{bytes.Repeat([]byte(tt.again), 4096), size})
		c, err := NewReader(wire.AddressPolicy{}).Read(source, size, never)
		runtime.ReadMemStats(&after)
		if err != nil || c.Err() == nil || !strings.Contains(c.Err().Error(), tt.want) {
			t.Errorf("%s: %v, %v, expected that it %s", name, err, c.Err(), tt.want)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 2*MaxYAML+1<<20 {
			t.Errorf("%s: %d bytes were allocated, expected %d at most", name, allocated, 2*MaxYAML+1<<20)
		}
	}
}

func TestReadFailsAsItsSource(t *testing.T) {
	broken := errors.New("disk error")
	for _, text := range []string{"", services.CatalogFile("a 1"), webJSON, webLine + "\n", strings.Repeat(webLine+"\n", 1000)} {
		source := io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))
		if _, err := NewReader(wire.AddressPolicy{}).Read(source, 0, never); !errors.Is(err, broken) {
			t.Errorf("%.20s: error is %v, expected %v", text, err, broken)
		}
	}
}
