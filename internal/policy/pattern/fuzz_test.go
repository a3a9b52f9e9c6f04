package pattern_test

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/policy/policytest"
)

// few is how many stars the naive matching, which is exponential in them, is given.
const few = 5

// FuzzName parses two patterns of names, and compares what they match with a naive
// evaluation.
func FuzzName(f *testing.F) {
	for i, tt := range nameTests {
		f.Add(tt.s, nameTests[(i+1)%len(nameTests)].s, "web.pay.example")
	}
	f.Add("*.example", "*.pay.example", "web.pay.example")
	f.Fuzz(func(t *testing.T, s, other, text string) {
		p, err := pattern.ParseName(s)
		if err != nil {
			if p != (pattern.Name{}) {
				t.Errorf("%q is %q with the error %v", s, p, err)
			}
			return
		}
		if again, err := pattern.ParseName(p.String()); err != nil || again != p {
			t.Errorf("%q is %q, and that is %q, %v", s, p, again, err)
		}
		q, otherErr := pattern.ParseName(other)
		name, err := federation.ParseFQDN(text)
		if err != nil {
			return
		}
		if want := policytest.MatchesName(p.String(), name.String()); p.Matches(name) != want {
			t.Errorf("%q matches %q: %t, want %t", p, name, p.Matches(name), want)
		}
		if otherErr == nil && p.Covers(q) && q.Matches(name) && !p.Matches(name) {
			t.Errorf("%q covers %q, which matches %q", p, q, name)
		}
	})
}

// FuzzID does as FuzzName for patterns of identities.
func FuzzID(f *testing.F) {
	for i, tt := range idTests {
		f.Add(tt.s, idTests[(i+1)%len(idTests)].s, "spiffe://acme.example/ns/dns")
	}
	f.Add("spiffe://acme.example/a*b", "spiffe://acme.example/a*b*b", "spiffe://acme.example/abxb")
	f.Add("*.example", "spiffe://a/**", "spiffe://a/b.example")
	f.Fuzz(func(t *testing.T, s, other, text string) {
		p, err := pattern.ParseID(s)
		if err != nil {
			if p != (pattern.ID{}) {
				t.Errorf("%q is %q with the error %v", s, p, err)
			}
			return
		}
		if again, err := pattern.ParseID(p.String()); err != nil || again != p {
			t.Errorf("%q is %q, and that is %q, %v", s, p, again, err)
		}
		q, otherErr := pattern.ParseID(other)
		id, err := federation.ParseID(text)
		if err != nil {
			return
		}
		if strings.Count(s, "*") <= few {
			if want := policytest.MatchesID(p.String(), id.String()); p.Matches(id) != want {
				t.Errorf("%q matches %q: %t, want %t", p, id, p.Matches(id), want)
			}
		}
		if otherErr == nil && p.Covers(q) && q.Matches(id) && !p.Matches(id) {
			t.Errorf("%q covers %q, which matches %q", p, q, id)
		}
		checkGroup(t, p, q, id)
	})
}

// checkGroup checks that an index of patterns by their group finds p for what it matches
// and covers.
func checkGroup(t *testing.T, p, q pattern.ID, id federation.ID) {
	t.Helper()
	group := pattern.GroupOf(p.String())
	switch {
	case p.IsEveryone() != (p.String() == "*"):
		t.Errorf("%q is everyone: %t", p, p.IsEveryone())
	case p.IsEveryone():
	case p.Matches(id) && group != pattern.GroupOf(id.String()):
		t.Errorf("%q matches %q, and their groups are %q and %q", p, id, group, pattern.GroupOf(id.String()))
	case q != (pattern.ID{}) && p.Covers(q) && group != pattern.GroupOf(q.String()):
		t.Errorf("%q covers %q, and their groups are %q and %q", p, q, group, pattern.GroupOf(q.String()))
	case p.IsPlain() && p.Matches(id) && p.String() != id.String():
		t.Errorf("%q is plain, and matches %q", p, id)
	}
}

// FuzzKey compares what a pattern of keys matches with a naive evaluation.
func FuzzKey(f *testing.F) {
	f.Add("a*b*c", "axbxc")
	f.Add("*aab*", "aaab")
	f.Add("*aa", "aaa")
	f.Fuzz(func(t *testing.T, s, text string) {
		p, err := pattern.ParseKey(s)
		if err != nil || strings.Count(s, "*") > few || len(text) > 100 {
			return
		}
		if want := policytest.MatchesGlob(s, text); p.Matches(text) != want {
			t.Errorf("%q matches %q: %t, want %t", s, text, p.Matches(text), want)
		}
	})
}

// FuzzLabel parses a pattern of labels, and matches the label that it spells.
func FuzzLabel(f *testing.F) {
	f.Add("tier=public")
	f.Add("a==")
	f.Fuzz(func(t *testing.T, s string) {
		key, value, ok := strings.Cut(s, "=")
		p, err := pattern.NewLabel(key, value)
		if !ok || err != nil {
			return
		}
		if p.String() != s || !p.Matches([]federation.Pair{{Key: p.Key, Value: p.Value}}) {
			t.Errorf("%q is %q, which does not match what it says", s, p)
		}
	})
}
