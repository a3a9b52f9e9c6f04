package federation_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
)

func TestInvalidErrorText(t *testing.T) {
	for want, err := range map[string]*federation.InvalidError{
		"required":                      {Rule: "required"},
		"fqdn: required":                {Field: "fqdn", Rule: "required"},
		`service "a\nb": required`:      {Service: "a\nb", Rule: "required"},
		`service "web": fqdn: required`: {Service: "web", Field: "fqdn", Rule: "required"},
		"a[1].b.c: 2 is not 3":          federation.Invalidf("c", federation.ReasonPort, "%d is not %d", 2, 3).In("b").In("a[%d]", 1),
	} {
		if got := err.Error(); got != want {
			t.Errorf("text is %s, expected %s", got, want)
		}
	}
}
