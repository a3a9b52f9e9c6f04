package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func parse(t *testing.T, text string) *yaml.Node {
	t.Helper()
	var document yaml.Node
	must.Do(t, yaml.Unmarshal([]byte(text), &document))
	return document.Content[0]
}

// lines renders problems as "3: rule".
func lines(found List) []string {
	var lines []string
	for _, p := range found.Kept {
		lines = append(lines, fmt.Sprintf("%d: %s", p.Line, p))
	}
	return lines
}

func TestValue(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       any
		problems   []string
	}{
		{"scalars", "[a, 1, 1.5, true, ~, 2024-01-02, no]", []any{"a", 1, 1.5, true, nil, "2024-01-02", "no"}, nil},
		{"keys as they are written", "{1: a, 2024-01-02: b}", map[string]any{"1": "a", "2024-01-02": "b"}, nil},
		{"alias", "[&a {b: 1}, *a]", []any{map[string]any{"b": 1}, map[string]any{"b": 1}}, nil},
		{"merge", "[&a {b: 1, c: 1}, {<<: *a, b: 2}]", []any{map[string]any{"b": 1, "c": 1}, map[string]any{"b": 2, "c": 1}}, nil},
		{"key twice", "a: 1\nb: 2\na: 3\n", map[string]any{"a": 1, "b": 2}, []string{`13: mapping key "a" already defined at line 11`}},
		{"key that is no string", "? [a]\n: 1\n", map[string]any{}, []string{"11: a key must be a string"}},
		{"anchor that contains itself", "&a [*a]", []any{[]any{nil}}, []string{`11: anchor "a" contains itself`}},
		{"no JSON number", ".inf", nil, []string{"11: +Inf is no number that JSON has"}},
		{"merge of a scalar", "<<: 1\n", map[string]any{}, []string{"11: << merges a mapping or a list of mappings"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			value, found := NewExpander(10, len(tt.text)).Value(parse(t, tt.text))
			if diff := cmp.Diff(tt.want, value); diff != "" {
				t.Errorf("unexpected value (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.problems, lines(found)); diff != "" {
				t.Errorf("unexpected problems (-want +got):\n%s", diff)
			}
		})
	}
}

// The values of one Expander share the bound, which is reported once.
func TestAliasesAreBounded(t *testing.T) {
	text := "[&a " + strings.Repeat("x", 1000) + strings.Repeat(", *a", 100) + "]"
	root := parse(t, text)
	x := NewExpander(0, 1000)
	var problems []string
	for range 3 {
		_, found := x.Value(root)
		problems = append(problems, lines(found)...)
	}
	if diff := cmp.Diff([]string{"1: aliases stand for more than 64 times as much as there is text"}, problems); diff != "" {
		t.Errorf("unexpected problems (-want +got):\n%s", diff)
	}
}

func TestSyntaxProblem(t *testing.T) {
	for text, want := range map[string]string{
		"yaml: line 3: did not find expected key":                                "3: did not find expected key",
		"yaml: unmarshal errors:\n  line 2: cannot unmarshal !!str `a` into int": "2: cannot unmarshal !!str `a` into int",
		"yaml: control characters are not allowed":                               "0: control characters are not allowed",
	} {
		p := SyntaxProblem(errors.New(text))
		if got := fmt.Sprintf("%d: %s", p.Line, p); got != want {
			t.Errorf("%q gives %q, expected %q", text, got, want)
		}
	}
}

var texts = []string{
	"services:\n- &a\n  name: a\n- *a\n- <<: *a\n",
	"services:\n- name: &n a\n  fqdn: *n\n",
	"services:\n- a: 1\n  a: 2\n  a: 3\n- {b: 1, b: 2}\n",
	"services:\n- <<: [{a: 1}, {a: 2}]\n  <<: {b: 1}\n",
	"services:\n-\n-\n- - a\n  - b\n-",
}

// FuzzValue compares our values with those of the decoder of the YAML package.
func FuzzValue(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Add([]byte("a: [1, 0x1f, 0o17, 017, 1_000, 1.5, .5e3, -0b11, 18446744073709551615, ~, true, no, 2024-01-02, !!str 1, !!int \"5\", !!float 3]"))
	f.Add([]byte("a: !!binary aGVsbG8=\nb: !own c\n? [a]\n: b\n"))
	f.Add([]byte("- &a {b: &c [1, 2], d: *c}\n- {<<: [*a, {e: 1, d: ~}], b: ~}\n- {<<: *a, d: {<<: *a}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var document yaml.Node
		if err := yaml.Unmarshal(data, &document); err != nil || document.IsZero() {
			return
		}
		x := NewExpander(0, len(data))
		got, found := x.Value(document.Content[0])
		strict := plainTags(&document)
		var want any
		err := document.Decode(&want)
		switch {
		case !strict, x.spent:
		case err != nil && len(found.Kept) == 0:
			t.Errorf("no problem, expected %v", err)
		case err == nil && len(found.Kept) > 0:
			if _, err := json.Marshal(want); err == nil {
				t.Errorf("problems %v, expected none", found.Kept)
			}
		case err == nil:
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("unexpected value (-want +got):\n%s", diff)
			}
		}
	})
}

// plainTags makes strings of what the YAML package would turn into something that
// JSON does not have. It reports whether there is nothing in it that we take
// and that package does not.
func plainTags(node *yaml.Node) bool {
	strict := true
	for i, child := range node.Content {
		isKey := node.Kind == yaml.MappingNode && i%2 == 0
		if isKey && (child.Kind != yaml.ScalarNode || child.Anchor != "" || child.ShortTag() == "!!merge" && child.Value != "<<") {
			strict = false
		}
		if child.Kind == yaml.ScalarNode && (isKey && child.ShortTag() != "!!merge" || child.ShortTag() == "!!timestamp") {
			child.Tag = "!!str"
		}
		strict = plainTags(child) && strict
	}
	return strict
}
