package corefile

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/setting"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestPropertiesAreKnown compares the table of properties with the cases of setProperty: each
// takes what is a default, and no other one is missing.
func TestPropertiesAreKnown(t *testing.T) {
	cases := make(map[string]bool)
	for _, match := range regexp.MustCompile(`(?m)^\tcase "([a-z_]+)":$`).FindAllStringSubmatch(string(must.Get(os.ReadFile("block.go"))(t)), -1) {
		cases[match[1]] = true
	}
	for _, p := range setting.Properties {
		if !cases[p.Name] {
			t.Errorf("setProperty has no case for %s", p.Name)
		}
		delete(cases, p.Name)
		if p.Default != "" {
			var b Block
			must.Do(t, b.setProperty(p.Name, []string{p.Default}))
		}
	}
	if len(cases) > 0 {
		t.Errorf("setting.Properties lacks %v, so no line of a Corefile gets there", cases)
	}
}

// TestREADMEHasTheProperties compares the README with the table: the syntax, and of each property
// its default and what it means. The README may leave out the last sentences, which
// 'federationctl explain' has.
func TestREADMEHasTheProperties(t *testing.T) {
	readme := string(must.Get(os.ReadFile("../../README.md"))(t))
	_, section, _ := strings.Cut(readme, "\n## Syntax\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, block, _ := strings.Cut(section, "federation [ZONES...] {\n")
	block, _, _ = strings.Cut(block, "\n}\n")
	var syntax []string
	for _, p := range setting.Properties {
		syntax = append(syntax, p.Name+" "+p.Takes)
	}
	if diff := cmp.Diff(syntax, strings.FieldsFunc(strings.ReplaceAll(block, "    ", ""), func(r rune) bool { return r == '\n' })); diff != "" {
		t.Errorf("properties in the syntax (-table +README):\n%s", diff)
	}
	plain := strings.NewReplacer("`", "", "**", "", "\n ", "")
	explained := make(map[string]string)
	for _, match := range regexp.MustCompile("(?m)^\\* `([a-z_]+)`(.*(?:\n  .*)*)").FindAllStringSubmatch(section, -1) {
		explained[match[1]] = plain.Replace(regexp.MustCompile(`\[([^\[\]]*)\]\([^()]*\)`).ReplaceAllString(match[2], "$1"))
	}
	for _, p := range setting.Properties {
		want := ": " + p.Doc
		switch {
		case p.Name == "owner":
			want = " (required)" + want
		case p.Default != "":
			want = " (default " + p.Default + ")" + want
		}
		got := explained[p.Name]
		if !strings.HasSuffix(got, ".") || !strings.HasPrefix(strings.ToLower(want), strings.ToLower(got)) {
			t.Errorf("the README says of %s\n%q\nwhich does not begin\n%q", p.Name, got, want)
		}
	}
}
