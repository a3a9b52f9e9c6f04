package limits

import (
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// maxOwnerName bounds the name of an owner, in bytes: it is a label of metrics, and metadata
// of DNS queries, which are cut there.
const maxOwnerName = 255

// ParseOwnerName returns the name that a configuration gives an owner, or why it is no name. A name
// is one word for every program that reads it, whether in a line of a log, in a label or as an
// argument.
func ParseOwnerName(s string) (string, error) {
	strange := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }
	if s == "" || len(s) > maxOwnerName || strings.ContainsFunc(s, strange) {
		return "", fmt.Errorf("%s is no name of an owner: it takes 1 to %d characters of printable ASCII, without spaces, double quotes and backslashes",
			safetext.Quote(s), maxOwnerName)
	}
	return s, nil
}
