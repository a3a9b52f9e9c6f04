package federation_test

import (
	"strings"
	"testing"
	"unicode"

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

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain text":              "plain text",
		"\x1b[31m\xff\u009b\n\"ü": `\x1b[31m\xff\u009b\n"\u00fc`,
	} {
		if got := federation.Printable(text); got != want {
			t.Errorf("Printable(%q) = %q, expected %q", text, got, want)
		}
	}
	if got := federation.Printable(strings.Repeat("a", 100_000)); got != strings.Repeat("a", 512)+"... (100000 bytes)" {
		t.Errorf("a long text becomes %d bytes, which end in %q", len(got), got[max(0, len(got)-30):])
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("\x1b\xff\u2028")
	f.Fuzz(func(t *testing.T, text string) {
		got := federation.Printable(text)
		if len(got) > 600 || strings.ContainsFunc(got, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }) {
			t.Errorf("Printable(%q) = %q", text, got)
		}
	})
}
