package limits_test

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
)

func TestRuleError(t *testing.T) {
	for want, broken := range map[string]*limits.RuleError{
		"missing: required":                     limits.CheckRequired("", 3),
		"limit: 4 bytes, the limit is 3":        limits.CheckRequired("abcd", 3),
		`undecodable: not valid UTF-8: "a\xff"`: limits.CheckText("a\xff", 3),
		"limit: more than 3 entries":            limits.CheckCount(4, 3),
	} {
		if err := broken.Of("name"); broken == nil || broken.Reason+": "+broken.Rule != want || err.Error() != "name: "+broken.Rule {
			t.Errorf("rule is %+v and error %v, expected %s", broken, err, want)
		}
	}
	for _, broken := range []*limits.RuleError{limits.CheckText("", 0), limits.CheckRequired("abc", 3), limits.CheckCount(3, 3)} {
		if err := broken.Of("name"); broken != nil || err != nil {
			t.Errorf("what is at the limit breaks %v and error %v", broken, err)
		}
	}
}

func TestParseOwnerName(t *testing.T) {
	for _, good := range []string{"a", "mesh-a", "owner.example:8008", "spiffe://mesh-a.example/hamlet", "a,b/c", "~!", strings.Repeat("a", 255)} {
		if got, err := limits.ParseOwnerName(good); err != nil || got != good {
			t.Errorf("%q is %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", " ", "mesh a", "a\t", "a\n", "\x00", "\x7f", "café", "\xff", `a"`, `a\b`, strings.Repeat("a", 256)} {
		if got, err := limits.ParseOwnerName(bad); err == nil || got != "" || !strings.Contains(err.Error(), "is no name of an owner: it takes 1 to 255 characters") {
			t.Errorf("%q is %q, %v", bad, got, err)
		}
	}
}
