package federation_test

import (
	"strings"
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

func TestQuote(t *testing.T) {
	long := strings.Repeat("x", 128)
	for s, want := range map[string]string{
		"":              `""`,
		"web":           `"web"`,
		"a\"b\n\x1b[0m": `"a\"b\n\x1b[0m"`,
		"ü\xff":         `"\u00fc\xff"`,
		long:            `"` + long + `"`,
		long + "y":      `"` + long + `"... (129 bytes)`,
	} {
		if got := federation.Quote(s); got != want {
			t.Errorf("%q is quoted as %s, expected %s", s, got, want)
		}
	}
}
