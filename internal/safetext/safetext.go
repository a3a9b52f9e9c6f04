// Package safetext makes text of others safe to show in a log line, a status message and on a
// terminal: everything but printable ASCII is escaped, and long text is cut.
//
// Text is quoted once: a value within a sentence by [Quote], and a log line by its handler. So an
// attribute of a log line, and a message of a peer behind a colon, are only made printable, by
// [Printable].
//
// The package imports nothing of this module, so that any package may show text by it.
package safetext

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// maxQuoted bounds what Quote shows of a string, in bytes.
const maxQuoted = 128

// Quote returns s in double quotes, with everything but printable ASCII escaped. Of a string
// longer than 128 bytes it shows the first 128 and the length, for example "aaa"... (129 bytes).
func Quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%+q... (%d bytes)", s[:maxQuoted], len(s))
	}
	return fmt.Sprintf("%+q", s)
}

// maxPrinted bounds what Printable shows of a text, in bytes.
const maxPrinted = 512

// Printable returns text with everything but printable ASCII escaped, and without quotes around it.
// Of a text longer than 512 bytes it shows the first 512 and the length.
func Printable(text string) string {
	var shown []byte
	for rest := text; rest != ""; {
		if len(shown) >= maxPrinted {
			return fmt.Sprintf("%s... (%d bytes)", shown, len(text))
		}
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case ' ' <= r && r <= '~':
			shown = append(shown, byte(r))
		case r == utf8.RuneError && size == 1:
			shown = fmt.Appendf(shown, `\x%02x`, rest[0])
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			shown = append(shown, quoted[1:len(quoted)-1]...)
		}
		rest = rest[size:]
	}
	return string(shown)
}
