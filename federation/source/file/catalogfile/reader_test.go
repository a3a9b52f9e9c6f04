package catalogfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

func never() error { return nil }

// read reads a version of a file.
func read(r *Reader, data []byte) (Catalog, error) {
	return r.Read(bytes.NewReader(data), int64(len(data)), never)
}

// asDocument reads a catalog in YAML as one document.
func asDocument(t *testing.T, data []byte) Catalog {
	t.Helper()
	p := newReading(NewReader(wire.Policy{}), never)
	catalog, err := p.result(p.document(data, problem.Problem{}))
	if err != nil {
		t.Fatal(err)
	}
	return catalog
}

func diffCatalogs(want, got Catalog) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b *wire.Encoded) bool { return a.Equal(b) }))
}

// plainTexts are catalogs in the plain form, and what comes near to it.
var plainTexts = []string{
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

func TestPlainFormSaysWhatTheDocumentSays(t *testing.T) {
	for _, text := range plainTexts {
		if diff := diffCatalogs(asDocument(t, []byte(text)), Parse([]byte(text), wire.Policy{})); diff != "" {
			t.Errorf("%q as a document and service by service (-document +plain):\n%s", text, diff)
		}
	}
}

func FuzzPlainForm(f *testing.F) {
	for _, text := range plainTexts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if json.Valid(data) {
			return
		}
		r := NewReader(wire.Policy{})
		got, err := read(r, data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := diffCatalogs(asDocument(t, data), got); diff != "" {
			t.Errorf("as a document and service by service (-document +plain):\n%s", diff)
		}
		// What is remembered is the same again.
		again, err := read(r, data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := diffCatalogs(got, again); diff != "" {
			t.Errorf("for the first and the second time (-first +second):\n%s", diff)
		}
	})
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
		{"merges of merges", []byte("services:\n- a: &a {x: 1}\n" + func() string {
			var text strings.Builder
			for c := 'b'; c <= 'z'; c++ {
				fmt.Fprintf(&text, "  %c: &%[1]c {<<: [%[2]s]}\n", c, strings.Repeat("*"+string(c-1)+", ", 9))
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
			c := Parse(tt.data, wire.Policy{})
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
		"YAML": "services:\n- name: a\n- name: b\n  description: " + long + "\n- name: c\n",
		"JSON": "{\"services\": [{\"name\": \"a\"},\n\n{\"name\": \"" + long + "\"}]}",
	} {
		c := Parse([]byte(text), wire.Policy{})
		if !slices.ContainsFunc(c.Problems, func(p problem.Problem) bool {
			return p.Service == "services[1]" && p.Line == 3 && strings.Contains(p.Rule, "the limit is 8388608")
		}) {
			t.Errorf("%s: problems are %q", name, lines(c.Problems))
		}
	}
	for _, tt := range []struct{ name, text, want string }{
		{"not plain", "version: 1\nservices: [{description: " + long + "}]\n", "0: a catalog of more than 8388608 bytes must be JSON, or the line"},
		{"mistake", "services:\n- name: a\n- name: 'b\n- description: " + long + "\n", "4: found unexpected end of stream; a catalog of more than"},
		{"JSON with a comma too many", "{\"services\": [{\"name\": \"" + long + "\"},\n]}", "2: invalid character ']' looking for beginning of value"},
	} {
		c := Parse([]byte(tt.text), wire.Policy{})
		if len(c.Problems) != 1 || !strings.HasPrefix(lines(c.Problems)[0], tt.want) {
			t.Errorf("%s: problems are %q, expected one: %s", tt.name, lines(c.Problems), tt.want)
		}
	}
}

// TestEditDecodesWhatChanged reads versions of a file with one reader.
func TestEditDecodesWhatChanged(t *testing.T) {
	version := func(jsonFile bool, services ...string) []byte {
		text := catalogFile(services...)
		if jsonFile {
			var value any
			if err := yaml.Unmarshal([]byte(text), &value); err != nil {
				t.Fatal(err)
			}
			data, err := json.MarshalIndent(value, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
		return []byte(text)
	}
	for _, jsonFile := range []bool{false, true} {
		r := NewReader(wire.Policy{})
		services := func(services ...string) []*wire.Encoded {
			t.Helper()
			c, err := read(r, version(jsonFile, services...))
			if err != nil || c.Err() != nil {
				t.Fatal(err, c.Err())
			}
			return c.Services
		}
		first := services("a 1", "b 1", "c 1")
		second := services("a 1", "b 2", "c 1")
		if first[0] != second[0] || first[2] != second[2] || first[1].Equal(second[1]) {
			t.Errorf("JSON %t: the services are not the same but for the second", jsonFile)
		}
		if c, err := read(r, []byte("services:\n- name: a\n")); err != nil || c.Err() == nil {
			t.Errorf("JSON %t: %v, %v, expected a problem", jsonFile, err, c.Err())
		}
		third := services("c 1", "a 1")
		if third[0] != first[2] || third[1] != first[0] {
			t.Errorf("JSON %t: the services were decoded again after a broken version", jsonFile)
		}
		if len(r.known.services) != 2 {
			t.Errorf("JSON %t: %d services are remembered, expected those of the last version", jsonFile, len(r.known.services))
		}
	}
}

// The warnings of a service that is remembered are those of its new place.
func TestEditMovesWarnings(t *testing.T) {
	r := NewReader(wire.Policy{})
	doubtful := strings.Replace(catalogFile("a 1", "b 1"), "id: i1", "id: -", 2)
	for _, text := range []string{doubtful, "# moved\n" + doubtful, strings.Replace(doubtful, "\n- name: b", "\n\n\n- name: b", 1)} {
		got, err := read(r, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		want := Parse([]byte(text), wire.Policy{})
		if diff := diffCatalogs(want, got); diff != "" || len(got.Warnings) != 2 {
			t.Errorf("%d warnings; afresh and remembered (-want +got):\n%s", len(got.Warnings), diff)
		}
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	stop := errors.New("enough")
	for _, text := range []string{catalogFile("a 1"), "services: [a]", `{"services": [1]}`} {
		_, err := NewReader(wire.Policy{}).Read(strings.NewReader(text), 0, func() error { return stop })
		if !errors.Is(err, stop) {
			t.Errorf("%s: error is %v, expected %v", text, err, stop)
		}
	}
}
