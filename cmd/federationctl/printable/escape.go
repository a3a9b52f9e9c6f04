package printable

import (
	"fmt"
	"strings"
	"unicode"
)

// EscapeControls escapes the characters in a line of JSON that a terminal obeys, or
// that make it show text in another place than where it stands. encoding/json
// escapes the control characters of ASCII except DEL.
func EscapeControls(line string) string {
	if !strings.ContainsFunc(line, controls) {
		return line
	}
	var safe strings.Builder
	for _, r := range line {
		if controls(r) {
			fmt.Fprintf(&safe, `\u%04x`, r) // none of them is beyond U+FFFF
		} else {
			safe.WriteRune(r)
		}
	}
	return safe.String()
}

// controls reports whether EscapeControls escapes a character: C1 controls, DEL, line
// and paragraph separators, and those that change the direction of text
// (Unicode Standard Annex #9, section 2).
func controls(r rune) bool {
	return r > '~' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}
