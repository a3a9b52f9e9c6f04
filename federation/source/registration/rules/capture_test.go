package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/problem"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
)

// lineOf returns a problem with its line.
func lineOf(p problem.Problem) string { return fmt.Sprintf("%d: %s", p.Line, p) }

// TestPatterns has one pattern of identities and one of names in each row, and what
// Parse says of them.
func TestPatterns(t *testing.T) {
	for _, tt := range []struct{ provider, service, err string }{
		{"spiffe://a/{x}", "{x}.example", ""},
		{"spiffe://a/b-{x}.c/**", "*.y-{x}-z.example", ""},
		{"spiffe://a/{x}/*/c*d", "{x}.A.Bücher.example.", ""},
		{"{h}.Fleet.example.", "{h}.example", ""},
		{"spiffe://a/{x}", "a.example", ""},

		{"spiffe://{x}/a", "a.example", "a trust domain is never a pattern"},
		{"spiffe://a/{x}{y}", "a.example", "at most one capture"},
		{"spiffe://a/{x}*", "a.example", "no '*' beside it"},
		{"spiffe://a/{x", "a.example", "a name in braces"},
		{"spiffe://a/x}", "a.example", "a name in braces"},
		{"spiffe://a/}{x}", "a.example", "a name in braces"},
		{"spiffe://a/{}", "a.example", "a name in braces"},
		{"spiffe://a/{X}", "a.example", "a name in braces"},
		{"spiffe://a/{1}", "a.example", "a name in braces"},
		{"spiffe://a/{_}", "a.example", "a name in braces"},
		{"spiffe://a/{" + strings.Repeat("x", 33) + "}", "a.example", "a name in braces"},
		{"spiffe://a/{{x}}", "a.example", "a name in braces"},
		{"spiffe://a/b{x}/", "a.example", "trailing slash"},
		{"{h}", "a.example", "the whole first label"},
		{"a.{h}.example", "a.example", "the whole first label"},
		{"a{h}.example", "a.example", "the whole first label"},
		{"{h}.*.example", "a.example", "stands alone"},
		{"*.{h}.example", "a.example", "the whole first label"},

		{"spiffe://a/{x}", "{x}", "the last label"},
		{"spiffe://a/{x}", "a.{x}.", "the last label"},
		{"spiffe://a/{x}", "*.{x}", "the last label"},
		{"spiffe://a/{x}", "{x}{x}.example", "at most one capture"},
		{"spiffe://a/{x}", "{x}*.example", "at most one capture"},
		{"spiffe://a/{x}", "*{x}.example", "at most one capture"},
		{"spiffe://a/{x}", "{x}.*.example", "stands alone"},
		{"spiffe://a/{x}", "_{x}.example", "beside a capture"},
		{"spiffe://a/{x}", "A{x}.example", "beside a capture"},
		{"spiffe://a/{x}", "-{x}.example", "begins or ends with '-'"},
		{"spiffe://a/{x}", strings.Repeat("a", 63) + "{x}.example", "longer than 63"},
		{"spiffe://a/{x}", "{x}.a。example", "only '.' stands between labels"},
		{"spiffe://a/{x}", "{x}..example", "empty label"},
		{"spiffe://a/{x}", "{x.example", "a name in braces"},
		{"spiffe://a/{x}", "", "name is empty"},
	} {
		text := fmt.Sprintf("rules: [{name: a, providers: ['%s'], services: ['%s']}]", tt.provider, tt.service)
		_, problems := rules.Parse([]byte(text))
		switch err := problem.Error(problems, 0); {
		case (err == nil) != (tt.err == ""):
			t.Errorf("%q, %q: %v", tt.provider, tt.service, err)
		case err != nil && !strings.Contains(err.Error(), tt.err):
			t.Errorf("%q, %q: %v, want %q", tt.provider, tt.service, err, tt.err)
		}
	}
}

// TestDeepPaths has patterns with more segments than the index looks at.
func TestDeepPaths(t *testing.T) {
	deep := "spiffe://a/" + strings.Repeat("s/", 20)
	r := parsed(t, strings.Replace("rules: [{name: a, providers: ['P{x}', 'Py/{x}'], services: ['{x}.example'], addresses: [10.0.0.0/8]}]", "P", deep, 2))
	for id, want := range map[string]bool{deep + "web": true, deep + "y/web": true, deep + "z/web": false, "spiffe://a/s/web": false} {
		if _, err := r.Judge(request{id, "", "web.example", "10.0.0.1", 0}.parsed(t)); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
}
