package printable

import (
	"testing"
	"unicode"
)

// Every character that is escaped has a short form in JSON.
func TestControlsAreShort(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if controls(r) && r > 0xffff {
			t.Errorf("%U has no short form in JSON", r)
		}
	}
	if got := EscapeControls("a\u009b\u202eb\x7f"); got != `a\u009b\u202eb\u007f` {
		t.Errorf("it is %q", got)
	}
}
