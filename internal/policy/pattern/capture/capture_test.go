package capture_test

import (
	"cmp"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern/capture"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestParse has one pattern of identities and one of names in each row, and what is wrong
// with one of them.
func TestParse(t *testing.T) {
	for _, tt := range []struct{ id, name, err string }{
		{"spiffe://a/{x}", "{x}.example", ""},
		{"spiffe://a/b-{x}.c/**", "*.y-{x}-z.example", ""},
		{"spiffe://a/{x}/*/c*d", "{x}.A.Bücher.example.", ""},
		{"{h}.Fleet.example.", "{h}.example", ""},
		{"spiffe://a/{x}", "a.example", ""},

		{"spiffe://{x}/a", "a.example", "a trust domain is never a pattern"},
		{"spiffe://a/{x}{y}", "a.example", "at most one capture"},
		{"spiffe://a/{x}*", "a.example", "no '*' beside it"},
		{"spiffe://a/{x", "a.example", "a name in braces"},
		{"spiffe://a/{}", "a.example", "a name in braces"},
		{"spiffe://a/{X}", "a.example", "a name in braces"},
		{"spiffe://a/{" + strings.Repeat("x", 33) + "}", "a.example", "a name in braces"},
		{"spiffe://a/{{x}}", "a.example", "a name in braces"},
		{"spiffe://a/b{x}/", "a.example", "trailing slash"},
		{"spiffe://a/{x}/{x}", "a.example", "{x} is captured twice"},
		{"{h}", "a.example", "the whole first label"},
		{"a.{h}.example", "a.example", "the whole first label"},
		{"{h}.*.example", "a.example", "stands alone"},
		{"*.{h}.example", "a.example", "the whole first label"},

		{"spiffe://a/{x}", "{x}", "the last label"},
		{"spiffe://a/{x}", "*.{x}", "the last label"},
		{"spiffe://a/{x}", "{x}{x}.example", "at most one capture"},
		{"spiffe://a/{x}", "{x}*.example", "at most one capture"},
		{"spiffe://a/{x}", "{x}.*.example", "stands alone"},
		{"spiffe://a/{x}", "_{x}.example", "beside a capture"},
		{"spiffe://a/{x}", "A{x}.example", "beside a capture"},
		{"spiffe://a/{x}", "-{x}.example", "begins or ends with '-'"},
		{"spiffe://a/{x}", strings.Repeat("a", 63) + "{x}.example", "longer than 63"},
		{"spiffe://a/{x}", "{x}.a。example", "only '.' stands between labels"},
		{"spiffe://a/{x}", "{x}..example", "empty label"},
		{"spiffe://a/{x}", "", "name is empty"},
	} {
		p, wrongID := capture.ParseID(tt.id)
		n, wrongName := capture.ParseName(tt.name)
		err := cmp.Or(wrongID, wrongName)
		switch {
		case tt.err == "":
			if err != nil || p.String() != tt.id || n.String() != tt.name {
				t.Errorf("%q, %q: %v, %v, %v", tt.id, tt.name, &p, &n, err)
			}
		case err == nil || !strings.Contains(err.Error(), tt.err):
			t.Errorf("%q, %q: %v, want %q", tt.id, tt.name, err, tt.err)
		}
	}
}

func TestCaptures(t *testing.T) {
	for name, want := range map[string]string{"*": "", "A.example.": "", "{x}.a.example": "x", "*.{x}.b.{y}-c.a.example": "x y", "a.{x}.example": "x"} {
		n := must.Get(capture.ParseName(name))(t)
		if captures := strings.Join(n.CaptureNames(), " "); captures != want {
			t.Errorf("%s: captures %q", name, captures)
		}
	}
}

var matchTests = []struct {
	pattern, id, name, matching string
	expanded                    string // "": it says why it is none
	want                        bool
}{
	{"spiffe://a/{x}", "spiffe://a/web", "{x}.example", "web.example", "web.example", true},
	{"spiffe://a/{x}", "spiffe://a/web", "{x}.example", "other.example", "web.example", false},
	{"spiffe://a/{x}", "spiffe://a/web", "{x}.example", "a.web.example", "web.example", false},
	{"spiffe://a/{x}", "spiffe://a/web", "{x}.example", "example", "web.example", false},
	{"spiffe://a/{x}", "spiffe://a/web", "*.{x}.example", "b.a.web.example", "*.web.example", true},
	{"spiffe://a/{x}", "spiffe://a/web", "*.{x}.example", "web.example", "*.web.example", false},
	{"spiffe://a/{x}", "spiffe://a/web", "*.{x}.example", "a.xweb.example", "*.web.example", false},
	{"spiffe://a/x-{x}.y/**", "spiffe://a/x-web.y/z", "app-{x}-1.Bücher.example.", "app-web-1.xn--bcher-kva.example", "app-web-1.xn--bcher-kva.example", true},
	{"spiffe://a/{y}/b/{x}", "spiffe://a/1/b/2", "{x}.{y}.example", "2.1.example", "2.1.example", true},
	{"spiffe://a/{x}", "spiffe://a/" + strings.Repeat("x", 63), "{x}.example", strings.Repeat("x", 63) + ".example", strings.Repeat("x", 63) + ".example", true},
	{"{h}.a.example", "web.a.example", "{h}.example", "web.example", "web.example", true},
	{"*", "web.a.example", "*.example", "web.example", "*.example", true},

	// What is no label names nothing.
	{"spiffe://a/{x}", "spiffe://a/Web", "{x}.example", "web.example", "", false},
	{"spiffe://a/{x}", "spiffe://a/a.b", "{x}.example", "a.b.example", "", false},
	{"spiffe://a/{x}", "spiffe://a/a_b", "{x}.example", "a_b.example", "", false},
	{"spiffe://a/a{x}", "spiffe://a/a", "a{x}.example", "a.example", "", false},
	{"spiffe://a/{x}", "spiffe://a/-a", "b{x}.example", "b-a.example", "", false},
	{"spiffe://a/{x}", "spiffe://a/a-", "{x}b.example", "a-b.example", "", false},
	{"spiffe://a/{x}", "spiffe://a/" + strings.Repeat("x", 64), "{x}.example", "x.example", "", false},
}

func TestMatches(t *testing.T) {
	for _, tt := range matchTests {
		p, wrongPattern := capture.ParseID(tt.pattern)
		n, wrongName := capture.ParseName(tt.name)
		id, wrongID := federation.ParseID(tt.id)
		name, wrong := federation.ParseFQDN(tt.matching)
		if err := cmp.Or(wrongPattern, wrongName, wrongID, wrong); err != nil || !p.Matches(id) {
			t.Fatalf("%+v: %v", tt, err)
		}
		expanded, err := n.Expand(&p, id)
		if n.Matches(&p, id, name) != tt.want || expanded != tt.expanded || (err == nil) != (tt.expanded != "") {
			t.Errorf("%+v: %t, %q, %v", tt, !tt.want, expanded, err)
		}
	}
}

func TestMayMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"{account}.{namespace}.west.example", "api.pay.west.example", true},
		{"{account}.{namespace}.west.example", "a.api.pay.west.example", false},
		{"{account}.{namespace}.west.example", "pay.west.example", false},
		{"{account}.{namespace}.west.example", "api.pay.east.example", false},
		{"*.{host}.example", "a.b.c.example", true},
		{"*.{host}.example", "c.example", false},
		{"*.example", "a.b.example", true},
		{"a.example", "b.example", false},
	} {
		pattern := must.Get(capture.ParseName(tt.pattern))(t)
		if pattern.MayMatch(must.Get(federation.ParseFQDN(tt.name))(t)) != tt.want {
			t.Errorf("%s may match %s: %t, expected %t", tt.pattern, tt.name, !tt.want, tt.want)
		}
	}
}

// FuzzMatches compares what a pattern of names matches with what it matches when what is
// captured is written out.
func FuzzMatches(f *testing.F) {
	for _, tt := range matchTests {
		f.Add(tt.pattern, tt.id, tt.name, tt.matching)
	}
	f.Fuzz(func(t *testing.T, idPattern, spelled, namePattern, matching string) {
		p, wrongPattern := capture.ParseID(idPattern)
		n, wrongName := capture.ParseName(namePattern)
		id, wrongID := federation.ParseID(spelled)
		name, wrong := federation.ParseFQDN(matching)
		if cmp.Or(wrongPattern, wrongName, wrongID, wrong) != nil || !p.Matches(id) || p.Pattern().Matches(id) != p.Matches(id) {
			return
		}
		for _, used := range n.CaptureNames() {
			if !p.HasCapture(used) {
				return
			}
		}
		matches := n.Matches(&p, id, name)
		if matches && !n.MayMatch(name) {
			t.Errorf("%q matches %q with what %q captures, and may not", namePattern, name, id)
		}
		expanded, err := n.Expand(&p, id)
		if err != nil {
			if matches {
				t.Errorf("%q matches %q, although %v", namePattern, name, err)
			}
			return
		}
		plain, err := pattern.ParseName(expanded)
		if err == nil && plain.String() == expanded && plain.Matches(name) != matches || err != nil && matches {
			t.Errorf("%q of %q matches %q: %t, but not %q, %v", namePattern, id, name, matches, expanded, err)
		}
	})
}
