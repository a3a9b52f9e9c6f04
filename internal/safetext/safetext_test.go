package safetext_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

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
		if got := safetext.Quote(s); got != want {
			t.Errorf("%q is quoted as %s, expected %s", s, got, want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain text":              "plain text",
		"\x1b[31m\xff\u009b\n\"ü": `\x1b[31m\xff\u009b\n"\u00fc`,
	} {
		if got := safetext.Printable(text); got != want {
			t.Errorf("Printable(%q) = %q, expected %q", text, got, want)
		}
	}
	if got := safetext.Printable(strings.Repeat("a", 100_000)); got != strings.Repeat("a", 512)+"... (100000 bytes)" {
		t.Errorf("a long text becomes %d bytes, which end in %q", len(got), got[max(0, len(got)-30):])
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("\x1b\xff\u2028")
	f.Fuzz(func(t *testing.T, text string) {
		got := safetext.Printable(text)
		if len(got) > 600 || strings.ContainsFunc(got, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }) {
			t.Errorf("Printable(%q) = %q", text, got)
		}
	})
}
