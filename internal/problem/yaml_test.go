package problem

import (
	"encoding/json"
	"errors"
	"fmt"
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
		{"alias", "[&a {b: 1}, *a]", []any{map[string]any{"b": 1}, nil}, []string{"1: aliases (*a) are not resolved here; write the value again"}},
		{"merge", "{<<: {b: 1}, c: 2}", map[string]any{"c": 2}, []string{"1: a key must be a plain word"}},
		{"key twice", "a: 1\nb: 2\na: 3\n", map[string]any{"a": 1, "b": 2}, []string{`3: mapping key "a" already defined at line 1`}},
		{"key that is no string", "? [a]\n: 1\n", map[string]any{}, []string{"1: a key must be a plain word"}},
		{"no JSON number", ".inf", nil, []string{"1: +Inf is no number that JSON has"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			value, found := ValueOf(parse(t, tt.text))
			if diff := cmp.Diff(tt.want, value); diff != "" {
				t.Errorf("unexpected value (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.problems, lines(found)); diff != "" {
				t.Errorf("unexpected problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSyntaxProblem(t *testing.T) {
	for text, want := range map[string]string{
		"yaml: line 3: did not find expected key":                                "3: did not find expected key",
		"yaml: unmarshal errors:\n  line 2: cannot unmarshal !!str `a` into int": "2: cannot unmarshal !!str `a` into int",
		"yaml: control characters are not allowed":                               "0: control characters are not allowed",
	} {
		p := syntaxProblem(errors.New(text))
		if got := fmt.Sprintf("%d: %s", p.Line, p); got != want {
			t.Errorf("%q gives %q, expected %q", text, got, want)
		}
	}
}

var texts = []string{
	"services:\n- a: 1\n  a: 2\n  a: 3\n- {b: 1, b: 2}\n",
	"services:\n-\n-\n- - a\n  - b\n-",
}

// FuzzValue compares our values with those of the decoder of the YAML package.
func FuzzValue(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Add([]byte("a: [1, 0x1f, 0o17, 017, 1_000, 1.5, .5e3, -0b11, 18446744073709551615, ~, true, no, 2024-01-02, !!str 1, !!int \"5\", !!float 3]"))
	f.Add([]byte("a: !!binary aGVsbG8=\nb: !own c\n? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var document yaml.Node
		if err := yaml.Unmarshal(data, &document); err != nil || document.IsZero() {
			return
		}
		got, found := ValueOf(document.Content[0])
		strict := plainTags(&document)
		var want any
		err := document.Decode(&want)
		switch {
		case !strict:
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
		if child.Kind == yaml.AliasNode || isKey && (child.Kind != yaml.ScalarNode || child.ShortTag() == "!!merge") {
			strict = false
		}
		if child.Kind == yaml.ScalarNode && (isKey && child.ShortTag() != "!!merge" || child.ShortTag() == "!!timestamp") {
			child.Tag = "!!str"
		}
		strict = plainTags(child) && strict
	}
	return strict
}
