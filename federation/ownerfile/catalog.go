package ownerfile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// The limits of a catalog file, in bytes.
const (
	// DefaultMaxCatalog is how large a catalog file may be unless its reader is
	// told otherwise. Small services of this size need about 4 GiB of memory.
	DefaultMaxCatalog = 256 << 20

	// maxPiece is what is decoded in one piece: one service, or a catalog that is
	// not written as one service after the other. While it is decoded it may take
	// three hundred times as much memory, if it is nothing but commas.
	maxPiece = 8 << 20
)

// Catalog is what a catalog file says: a mapping in YAML or JSON whose one key,
// services, holds the list of services in the protobuf JSON mapping of
// FederatedService.
type Catalog struct {
	Services []*federation.Service // the valid ones, in the order of the file
	Problems []Problem             // mistakes, the first of them; with any of them the file is not fit to be published
	Warnings []Problem             // what is allowed and probably not meant, the first of them

	// What Problems and Warnings have no room for. There may be more problems
	// yet: beyond the room a service that is wrong counts once, and of too many the
	// rest of the file is not read.
	MoreProblems, MoreWarnings int
}

// The bounds of what is said of a file. Nobody reads more, and a slip of the pen may
// cause millions of problems.
const (
	maxKept    = 100    // of problems, and of warnings
	maxCounted = 10_000 // of problems
)

// Problem is a mistake in a catalog file. Its text is printable ASCII of bounded
// length, whatever stands in the file.
type Problem struct {
	Line    int    // in the file, from 1; the nearest that is known, 0 for the whole file
	Service string // name in quotes, or place such as services[2] when it has none
	Field   string // path below the service, such as endpoints[0].port
	Rule    string // what is wrong
}

// String returns the service, the field and the rule: all but the line.
func (p Problem) String() string {
	text := p.Rule
	if p.Field != "" {
		text = p.Field + ": " + text
	}
	if p.Service != "" {
		text = "service " + p.Service + ": " + text
	}
	return text
}

// maxProblems bounds the problems that one error or one log line spells out.
const maxProblems = 5

// Err returns nil for a catalog without problems, and else an error that spells
// out the first few of them.
func (c Catalog) Err() error {
	if len(c.Problems) == 0 {
		return nil
	}
	return errors.New(summary(c.Problems, c.MoreProblems))
}

// summary spells out the first few problems, of which there are more than those
// given: at least that many.
func summary(problems []Problem, more int) string {
	var lines []string
	for _, p := range problems[:min(len(problems), maxProblems)] {
		if p.Line > 0 {
			lines = append(lines, fmt.Sprintf("line %d: %s", p.Line, p))
		} else {
			lines = append(lines, p.String())
		}
	}
	switch rest := len(problems) - len(lines) + more; {
	case more > 0:
		lines = append(lines, fmt.Sprintf("and at least %d more", rest))
	case rest > 0:
		lines = append(lines, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(lines, "; ")
}

// maxRule bounds the rule of a problem, in bytes. Those of our own are shorter.
const maxRule = 512

// printable returns the text of a decoder, which may repeat what stands in the
// file, as it can be shown.
func printable(text string) string {
	var shown []byte
	for rest := text; rest != ""; {
		if len(shown) >= maxRule {
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

// ParseCatalog reads a catalog file. Each service is checked as a consumer with
// that policy would check it. The time and the memory that it takes are in
// proportion to the size of the file, whatever is in it.
func ParseCatalog(data []byte, policy wire.Policy) Catalog {
	r := reader{policy: policy}
	catalog, _ := r.read(data, func() error { return nil }) // nothing else makes it fail
	return catalog
}
