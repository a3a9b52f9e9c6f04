package printable

import (
	"testing"
	"unicode"
)

// Every character that is escaped has a short form in JSON.
func TestControlsAreShort(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if isControl(r) && r > 0xffff {
			t.Errorf("%U has no short form in JSON", r)
		}
	}
	if got := EscapeControls("a\u009b\u202eb\x7f"); got != `a\u009b\u202eb\u007f` {
		t.Errorf("it is %q", got)
	}
}

// TestFew counts what is left out.
func TestFew(t *testing.T) {
	for most, want := range map[int]string{3: `a,"b\x1b",c`, 2: `a,"b\x1b",... (3)`} {
		if got := JoinFew([]string{"a", "b\x1b", "c"}, most, ",", QuoteText); got != want {
			t.Errorf("of %d it is %s, expected %s", most, got, want)
		}
	}
}
