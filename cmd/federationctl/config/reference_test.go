package config_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var update = flag.Bool("update", false, "write the references of keys into docs/owner.md and docs/import.md")

// TestReference compares the references of keys in docs/owner.md and docs/import.md with the structs
// that they are made of.
func TestReference(t *testing.T) {
	compareReference(t, "docs/owner.md", formatReference(config.Schema().Settings("owner.yaml"))+
		"\nThe file that `registration.rules` names has these keys:\n\n"+formatReference(rules.Schema().Settings("rules.yaml")))
	compareReference(t, "docs/import.md", formatReference(config.ImportSchema().Settings("import.yaml")))
}

// compareReference compares what a page has with what it should have.
func compareReference(t *testing.T, page, want string) {
	t.Helper()
	const begin, end = " -run TestReference -update -->\n", "<!-- end of the keys -->"
	path := "../../../" + page
	text := string(must.Get(os.ReadFile(path))(t))
	before, rest, _ := strings.Cut(text, begin)
	found, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no place for the keys", path)
	}
	if *update {
		must.Do(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o600))
	} else if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("the keys in %s (-want +got); run the test with -update:\n%s", page, diff)
	}
}

// formatReference returns the keys as a block of text. A key that means the same in several places is
// in the first of them.
func formatReference(all []setting.Setting) string {
	var text strings.Builder
	for _, s := range all {
		words := strings.Split(s.Paths[0], ".")
		indent := strings.Repeat("    ", len(words)-1)
		text.WriteString(indent + words[len(words)-1])
		var also []string
		for _, other := range s.Paths[1:] {
			words, parent := strings.Split(other, "."), words[max(0, len(words)-2)]
			if other := words[max(0, len(words)-2)]; other != parent {
				also = append(also, other)
			}
		}
		var notes []string
		switch {
		case s.Required:
			notes = append(notes, "required")
		case s.Default != "":
			notes = append(notes, "default "+s.Default)
		}
		if len(also) > 0 {
			notes = append(notes, "also of "+strings.Join(also, ", "))
		}
		if len(notes) > 0 {
			fmt.Fprintf(&text, " (%s)", strings.Join(notes, "; "))
		}
		text.WriteString("\n" + printable.WrapText(indent+"  "+s.Doc, 120, indent+"  ") + "\n")
	}
	return "```text\n" + text.String() + "```\n"
}

// TestEveryKeyIsExplained has one to three sentences for each key that a file may have.
func TestEveryKeyIsExplained(t *testing.T) {
	for _, s := range slices.Concat(config.Schema().Settings("owner.yaml"), config.ImportSchema().Settings("import.yaml"), rules.Schema().Settings("rules.yaml"), setting.PropertySettings()) {
		sentences := regexp.MustCompile(`[.:;]( [A-Z0-9*]|$)`).FindAllString(s.Doc, -1)
		if !strings.HasSuffix(s.Doc, ".") || strings.Count(s.Doc, ". ") > 2 || len(sentences) == 0 {
			t.Errorf("%s: %q is not one to three sentences", s.Paths[0], s.Doc)
		}
		if strings.ContainsFunc(s.Doc, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Errorf("%s: %q is not plain text", s.Paths[0], s.Doc)
		}
	}
}

// schemaProblem returns where a value breaks a schema first, or "". It knows the words that
// setting.Schema has.
func schemaProblem(path string, s *setting.Schema, value any) string {
	var kind string
	switch v := value.(type) {
	case map[string]any:
		kind = "object"
		for _, key := range s.Required {
			if v[key] == nil && slices.Contains(s.Type, "object") {
				return path + ": lacks " + key
			}
		}
		having := 0
		for _, one := range s.OneOf {
			if v[one.Required[0]] != nil {
				having++
			}
		}
		if len(s.OneOf) > 0 && having != 1 {
			return path + ": has not one of the keys of which there must be one"
		}
		for key, entry := range v {
			of := s.Properties[key]
			if others, ok := s.Others.(*setting.Schema); ok && of == nil {
				of = others
			}
			if of == nil {
				return path + "." + key + ": there is no such key"
			}
			if problem := schemaProblem(path+"."+key, of, entry); problem != "" {
				return problem
			}
		}
	case []any:
		kind = "array"
		for i, entry := range v {
			if s.Items == nil {
				return path + ": is a list"
			}
			if problem := schemaProblem(fmt.Sprintf("%s[%d]", path, i), s.Items, entry); problem != "" {
				return problem
			}
		}
	case string:
		kind = "string"
	case bool:
		kind = "boolean"
	default:
		kind = "number"
	}
	if !slices.Contains(s.Type, kind) {
		return fmt.Sprintf("%s: is a %s, not a %v", path, kind, s.Type)
	}
	return ""
}

// TestSchema holds the schema for editors against files: those that are right fit it, and common
// mistakes do not.
func TestSchema(t *testing.T) {
	schema := config.Schema()
	problem := func(text string) string {
		var value any
		must.Do(t, yaml.Unmarshal([]byte(text), &value))
		return schemaProblem("", schema, value)
	}
	example := string(must.Get(os.ReadFile("../../../corefile-examples/every-key/owner.yaml"))(t))
	for _, right := range []string{least, most, example} {
		if p := problem(right); p != "" {
			t.Errorf("the schema refuses a file that is right: %s", p)
		}
	}
	for _, wrong := range [][2]string{
		{"- file:", "- flie:"},
		{"path: catalog.yaml", "paht: catalog.yaml"},
		{"cert: owner.pem, ", ""},
		{"allow:", "allowed:"},
		{"{path: catalog.yaml}", "catalog.yaml"},
		{"- file: {path: catalog.yaml}", "- file: {path: catalog.yaml}\n    nsm: {registry: \"tcp://a:1\", zone: a.example}"},
	} {
		if text := strings.Replace(least, wrong[0], wrong[1], 1); text != least && problem(text) == "" {
			t.Errorf("the schema takes %s in place of %s", wrong[1], wrong[0])
		}
	}
	if text := must.Get(json.Marshal(schema))(t); !strings.Contains(string(text), `"additionalProperties":false`) {
		t.Errorf("the schema in JSON is %s", text)
	}
}
