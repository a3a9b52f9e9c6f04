package simpleyaml_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/source/file/internal/simpleyaml"
)

// pairs reads a mapping of texts, as "a=b c=d".
func pairs(r *simpleyaml.Reader) (string, bool) {
	var got []string
	ok := r.Mapping(func(key string) bool {
		text, ok := r.Text()
		got = append(got, key+"="+text)
		return ok
	})
	return strings.Join(got, " "), ok && r.End()
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"a":                  "a",
		"a b  c":             "a b  c",
		"a # b":              "a",
		"It's (a) test, ok?": "It's (a) test, ok?",
		"'a: # b'":           "a: # b",
		`"a: # 'b"`:          "a: # 'b",
		`""`:                 "",
		"192.0.2.1":          "192.0.2.1",
		"2001:db8::1":        "2001:db8::1",
		"7seas":              "7seas",
		"spiffe://a/b":       "spiffe://a/b",
		"nullify":            "nullify",
	} {
		r, ok := simpleyaml.Item("- k: "+text+"\n", 0)
		if !ok {
			t.Fatalf("%q is no item", text)
		}
		if got, ok := pairs(&r); !ok || got != "k="+want {
			t.Errorf("%q is read as %q, %v, expected k=%s", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"", "~", "Null", "TRUE", "false", "1", "1.5", "0x1f", "1e3", "0b1", "1_0", "-1", "a: b", "a:", "a#b", "*a", "&a b", "!a", "| a", "\"\\n\"",
		"'a''b'", "'a' b", "\"a", "é", "a\tb", "a\rb", "a\n   b", "[a]", "a\x00",
	} {
		r, ok := simpleyaml.Item("- k: "+text+"\n", 0)
		if !ok {
			t.Fatalf("%q is no item", text)
		}
		if got, ok := pairs(&r); ok {
			t.Errorf("%q is read as %q, expected that it cannot be read", text, got)
		}
	}
}

func TestMapping(t *testing.T) {
	const want = "a=b c d=e f"
	for _, text := range []string{
		"- a: b c\n  d: e f\n", "  -   a: b c\n\n# comment\n      d: e f", "- {a: b c, d: e f}", "- {\"a\": b c, 'd': e f} # comment\n",
		`{"a":"b c","d":"e f"}`, " {\n\"a\" : \"b c\" ,\r\n\t\"d\": \"e f\" } ",
	} {
		r, ok := simpleyaml.JSON(text), true
		if strings.HasPrefix(strings.TrimSpace(text), "-") {
			r, ok = simpleyaml.Item(text, strings.IndexByte(text, '-'))
		}
		if got, read := pairs(&r); !ok || !read || got != want {
			t.Errorf("%q is read as %q, %v, %v, expected %s", text, got, ok, read, want)
		}
	}
}

func TestListOfNumbers(t *testing.T) {
	for text, want := range map[string]string{
		"- [1, 65535 , 999999999]": "[1 65535 999999999] true",
		"- []":                     "[] true",
		"- [1, ]":                  "[1] false",
		"- [1,,2]":                 "[1] false",
		"- [1":                     "[1] false",
		"- [01]":                   "[] false",
		"- [1234567890]":           "[] false",
		"- [1.5]":                  "[] false",
		"- k:\n  - 1\n  - 2 # b\n": "[1 2] true",
		"- k:\n    - 1\n    - 2":   "[1 2] true",
		"- k:\n    - 1\n     2":    "[1] false",
		"- k:\n - 1\n":             "[] false",
		"- k:\n  -\n    1\n":       "[] false",
	} {
		r, ok := simpleyaml.Item(text, 0)
		numbers := []uint32{}
		list := func() bool {
			return r.List(func() bool {
				n, ok := r.Number()
				if ok {
					numbers = append(numbers, n)
				}
				return ok
			})
		}
		if strings.HasPrefix(text, "- k") {
			ok = ok && r.Mapping(func(string) bool { return list() })
		} else {
			ok = ok && list()
		}
		if got := fmt.Sprint(numbers, ok && r.End()); got != want {
			t.Errorf("%q is read as %s, expected %s", text, got, want)
		}
	}
}

func TestItemHasOneElement(t *testing.T) {
	for _, text := range []string{"", "-", "- ", "-a", "a", " - a", "- # a", "-\n  a: b\n"} {
		if _, ok := simpleyaml.Item(text, 0); ok {
			t.Errorf("%q is an item", text)
		}
	}
	r, _ := simpleyaml.Item("- a: b\n- c: d\n", 0)
	if got, ok := pairs(&r); ok {
		t.Errorf("two items are read as %q", got)
	}
}
