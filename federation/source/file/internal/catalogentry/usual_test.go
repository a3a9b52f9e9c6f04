package catalogentry_test

import (
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/catalogentry"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/simpleyaml"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// usual reads a text that begins with a dash, or that is JSON, in the usual form.
func usual(text string) *federation.Service {
	if json.Valid([]byte(text)) {
		return catalogentry.Usual(simpleyaml.JSON(text), wire.Policy{})
	}
	r, ok := simpleyaml.Item(text, len(text)-len(strings.TrimLeft(text, " ")))
	if !ok {
		return nil
	}
	return catalogentry.Usual(r, wire.Policy{})
}

// entryOf returns the one entry of the text, or nil.
func entryOf(text string) *catalogentry.Entry {
	if json.Valid([]byte(text)) {
		return catalogentry.FromJSON([]byte(text), 1)
	}
	var document yaml.Node
	if yaml.Unmarshal([]byte(text), &document) != nil || document.Kind != yaml.DocumentNode {
		return nil
	}
	root := document.Content[0]
	if root.Kind != yaml.SequenceNode || len(root.Content) != 1 {
		return nil
	}
	return catalogentry.FromYAML(root.Content[0], problem.NewExpander(0, len(text)))
}

// usualTexts are in the usual form.
var usualTexts = []string{
	"- name: a\n  fqdn: a.example\n  endpoints: [{address: 192.0.2.1, port: 80}]\n  instances: [{id: i1, protocol: TCP}]\n",
	"  - name: a # one\n\n# two\n    fqdn: a.example\n    endpoints:\n    - address: 2001:db8::1\n      port: 80\n      labels: [eu]\n" +
		"    - {address: gw.example, port: 443, labels: [eu, \"us: #1\"]}\n    instances:\n      - id: v1\n        protocol: HTTP\n" +
		"        metadata:\n          PORT: \"80\"\n          1: a b\n        endpoint_selector:\n        - eu\n        - 'us: #1'\n",
	"- {name: a, fqdn: a.example, endpoints: [{address: 192.0.2.1, port: 80}], instances: [{id: i1, protocol: TCP, description: \"\"}], sans: [spiffe://a/b], labels: {}}",
	"- description: It's fine, is it?\n  name: yes\n  \"fqdn\": 1a.example.org\n  tags: [no, 1.2.3, a:b, a::b]\n  endpoints:\n  -   address: a.example\n      port: 80\n  instances: [{id: i1, protocol: TCP}]",
	`{"name": "a", "fqdn": "a.example",` + "\n" + `"endpoints": [{"address":"192.0.2.1","port":80} , {"address": "192.0.2.2", "port": 8 }],` +
		"\r\n\t" + ` "instances": [{"id": "i1", "protocol": "TCP", "endpointSelector": []}]}`,
}

// unusualTexts are not, or something is wrong or doubtful.
var unusualTexts = []string{
	"", "-", "- ", "- a\n", "- - a\n", "- \n  name: a\n", "-\tname: a\n",
	"- name: a\n   b\n", "- name: a\n fqdn: b\n", "- name: a\n  name: b\n", "- name: null\n", "- name: True\n", "- name: 1\n", "- name: 1.5\n",
	"- name: 0x1f\n", "- name: 1_000\n", "- name: ~\n", "- name:\n", "- name: a: b\n", "- name: a#\n", "- name: \"a\\n\"\n", "- name: 'a''b'\n",
	"- name: \u00e9\n", "- name: *a\n", "- &a\n  name: a\n", "- name: !!str a\n", "- name: |\n   a\n", "- name: a\r\n", "- name: a\nfqdn: b\n",
	"- name: a #\x01\n", "- name: \"a\" b\n", "- name: [a\n", "- tags: [a, ]\n", "- tags: [a,, b]\n", "- tags: [[a]]\n", "- tags: [a: b]\n",
	"- tags:\n  - a\n    b\n", "- tags:\n - a\n", "- {name: a\n", "- {name:a}\n", "- {name : a}\n", "- <<: {name: a}\n", "- labels: {a: b, a: c}\n",
	"- labels: {" + strings.Repeat("a", 513) + ": b}\n", "- endpoints: [{port: 0}]\n", "- endpoints: [{port: 080}]\n", "- endpoints: [{port: 80a}]\n",
	"- endpoints: [{port: \"80\"}]\n", "- endpoints: [{port: 1234567890}]\n", "- name: a\n- name: b\n",
	strings.Replace(usualTexts[0], "id: i1", "id: -", 1), strings.Replace(usualTexts[0], "port: 80", "port: 99999", 1),
	strings.Replace(usualTexts[4], "TCP", `\u0054CP`, 1), strings.Replace(usualTexts[4], `"TCP"`, "null", 1), `{"name": 1}`, `[]`, `"a"`, `1`,
}

func TestUsual(t *testing.T) {
	for _, text := range usualTexts {
		if s := usual(text); s == nil {
			t.Errorf("not in the usual form: %q", text)
		}
		checkUsual(t, text)
	}
	for _, text := range unusualTexts {
		if s := usual(text); s != nil {
			t.Errorf("%q is %+v, expected that it is not in the usual form", text, s)
		}
	}
}

// checkUsual compares a service in the usual form with the entry of the same text.
func checkUsual(t *testing.T, text string) {
	t.Helper()
	got := usual(text)
	if got == nil {
		return
	}
	e := entryOf(text)
	if e == nil {
		t.Fatalf("%q is %+v, and for the decoder no entry", text, got)
	}
	found, doubts := problem.List{Room: 10}, problem.List{Room: 10}
	want := e.Service("services[0]", wire.Policy{}, &found)
	if want == nil {
		t.Fatalf("%q is %+v, expected the problems %q", text, got, lines(found))
	}
	if e.Doubts(want, &doubts); len(doubts.Kept) > 0 {
		t.Errorf("%q is not doubted, expected %q", text, lines(doubts))
	}
	if !got.Equal(want) || e.Line("") != 1 {
		t.Errorf("%q is %+v, expected %+v on line %d", text, got, want, e.Line(""))
	}
}

func FuzzUsual(f *testing.F) {
	for _, text := range append(usualTexts, unusualTexts...) {
		f.Add(text)
	}
	f.Fuzz(checkUsual)
}

func BenchmarkUsual(b *testing.B) {
	for name, text := range map[string]string{"yaml": usualTexts[0], "json": usualTexts[4]} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if usual(text) == nil {
					b.Fatal("not in the usual form")
				}
			}
		})
	}
}

// FuzzUsualText puts a text in the places of a service where one may be.
func FuzzUsualText(f *testing.F) {
	for _, text := range []string{"a", "a b", "1.2.3", "\"a: b\"", "'# a'", "a::b", "a # b", "[a, b]", "{a: b}", "\n    a: b\n", "\n  - a\n  - b", "~", "<<", "1e3", "a:b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, place := range []string{
			"  description: ?\n", "  tags: [a, ?]\n", "  tags:\n  - ?\n", "  labels: {?: a}\n", "  labels: {a: ?}\n", "  labels:\n    ?: a\n", "  labels:?\n", "  sans:?\n", "?\n",
		} {
			checkUsual(t, usualTexts[0]+strings.Replace(place, "?", text, 1))
		}
	})
}
