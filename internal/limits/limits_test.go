package limits_test

import (
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
