package printable

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// IsTable reports whether a format is the one for people, which it is by default.
func IsTable(format string) bool { return format == "" || format == "table" }

// JSON returns a value as a line of JSON.
func JSON(value any) (string, error) {
	var line strings.Builder
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return EscapeControls(line.String()), err
}

// JSONService is a service that is in JSON what a catalog file has.
type JSONService struct{ *federation.Service }

// MarshalJSON implements json.Marshaler.
func (s JSONService) MarshalJSON() ([]byte, error) {
	m, err := wire.EncodeService(s.Service)
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(m)
}

// EscapeControls escapes the characters in a line of JSON that a terminal obeys, or
// that make it show text in another place than where it stands. encoding/json
// escapes the control characters of ASCII except DEL.
func EscapeControls(line string) string {
	if !strings.ContainsFunc(line, isControl) {
		return line
	}
	var safe strings.Builder
	for _, r := range line {
		if isControl(r) {
			fmt.Fprintf(&safe, `\u%04x`, r) // none of them is beyond U+FFFF
		} else {
			safe.WriteRune(r)
		}
	}
	return safe.String()
}

// isControl reports whether EscapeControls escapes a character: C1 controls, DEL, line
// and paragraph separators, and those that change the direction of text
// (Unicode Standard Annex #9, section 2).
func isControl(r rune) bool {
	return r > '~' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}
