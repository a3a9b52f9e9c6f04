// Package capture holds patterns of identities that capture parts of them, and patterns
// of names in which these parts stand:
//
//	spiffe://west.example/ns/{namespace}/sa/{account}
//	{account}.{namespace}.west.fed.example
//
// A capture is a name in braces. A captured text stands in a name only where it is a
// label as it is. Patterns never change.
//
// Only packages of this module import it: it is not a stable API.
package capture

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

const scheme = "spiffe://"

// What a capture may be called.
const (
	captureName    = "abcdefghijklmnopqrstuvwxyz0123456789_"
	maxCaptureName = 32 // in bytes
)

// The rules that captures can break.
var (
	errBraces   = errors.New("a capture is a name in braces: a letter of a-z, then a-z, 0-9 and '_', as in {namespace}")
	errOnce     = errors.New("a segment or label has at most one capture, and no '*' beside it")
	errTwice    = errors.New("is captured twice")
	errHost     = errors.New("of a host name, the whole first label can be captured and nothing else, as in {host}.fleet.example")
	errTop      = errors.New("the last label of a name cannot be captured")
	errAround   = errors.New("what stands beside a capture in a label is a-z, 0-9 and '-'")
	errFullStop = errors.New("only '.' stands between labels")
)

// piece is a segment of an identity, or a label of a name: text around a capture. Where
// there is none, a label of a name is before alone.
type piece struct{ before, capture, after string }

// parsePiece returns the piece that s spells.
func parsePiece(s string) (piece, error) {
	before, rest, opened := strings.Cut(s, "{")
	if !opened {
		if strings.Contains(s, "}") {
			return piece{}, errBraces
		}
		return piece{}, nil
	}
	name, after, closed := strings.Cut(rest, "}")
	switch {
	case !closed, name == "", len(name) > maxCaptureName, name[0] < 'a', strings.Trim(name, captureName) != "", strings.Contains(before, "}"):
		return piece{}, errBraces
	case strings.ContainsAny(before+after, "{}*"):
		return piece{}, errOnce
	}
	return piece{before, name, after}, nil
}

// ID is a pattern of identities with captures. Only [ParseID] makes one.
type ID struct {
	text     string         // as it is spelled
	pattern  pattern.ID     // with a '*' for each capture
	segments []piece        // of the identity: see segmentsOf
	captures map[string]int // where each is in segments
}

// segmentsOf returns the separator of the segments of an identity, and the identity
// without its scheme.
func segmentsOf(id string) (separator, rest string) {
	if rest, ok := strings.CutPrefix(id, scheme); ok {
		return "/", rest
	}
	return ".", id
}

// ParseID returns the pattern that s spells: what [pattern.ParseID] takes, where a capture
// stands in the place of a '*'. A segment of a SPIFFE ID has one capture at most, with
// text around it; of a host name the first label can be one.
func ParseID(s string) (ID, error) {
	p, err := readID(s)
	if err != nil {
		return ID{}, fmt.Errorf("identity pattern %s: %w", federation.Quote(s), err)
	}
	return p, nil
}

func readID(s string) (ID, error) {
	p := ID{text: s, captures: map[string]int{}}
	separator, rest := segmentsOf(s)
	segments := strings.Split(rest, separator)
	for i, segment := range segments {
		part, err := parsePiece(segment)
		if err != nil {
			return ID{}, err
		}
		p.segments = append(p.segments, part)
		if part.capture == "" {
			continue
		}
		if _, twice := p.captures[part.capture]; twice {
			return ID{}, fmt.Errorf("{%s} %w", part.capture, errTwice)
		}
		if separator == "." && (i > 0 || part.before+part.after != "" || len(segments) == 1) {
			return ID{}, errHost
		}
		p.captures[part.capture] = i
		segments[i] = part.before + "*" + part.after
	}
	var err error
	if p.pattern, err = pattern.ParseID(s[:len(s)-len(rest)] + strings.Join(segments, separator)); err != nil {
		return ID{}, errors.Unwrap(err) // without the text, which is not what s says
	}
	return p, nil
}

// Matches reports whether p matches the identity.
func (p *ID) Matches(id federation.ID) bool { return p.pattern.Matches(id) }

// Pattern returns the pattern with a '*' for each capture, which matches the same.
func (p *ID) Pattern() pattern.ID { return p.pattern }

// Captures reports whether p has a capture of that name.
func (p *ID) Captures(name string) bool {
	_, has := p.captures[name]
	return has
}

// String returns the pattern as it was parsed.
func (p *ID) String() string { return p.text }

// value returns the text of a capture that the pattern has, of an identity that it
// matches.
func (p *ID) value(capture string, id federation.ID) string {
	separator, rest := segmentsOf(id.String())
	at := p.captures[capture]
	for range at {
		_, rest, _ = strings.Cut(rest, separator)
	}
	segment, _, _ := strings.Cut(rest, separator)
	part := &p.segments[at]
	return segment[len(part.before) : len(segment)-len(part.after)]
}

// Name is a pattern of names in which captured texts stand. Only [ParseName] makes one.
type Name struct {
	text     string       // as it is spelled
	name     pattern.Name // with letters in the place of captures
	captures bool         // whether there are any; if not, name is the pattern
	labels   []piece      // of name, normalized
}

// ParseName returns the pattern that s spells: what [pattern.ParseName] takes, where each
// label but the last may have a capture, with text around it.
func ParseName(s string) (Name, error) {
	t, err := readName(s)
	if err != nil {
		return Name{}, fmt.Errorf("name pattern %s: %w", federation.Quote(s), err)
	}
	return t, nil
}

func readName(s string) (Name, error) {
	t := Name{text: s}
	labels := strings.Split(strings.TrimSuffix(strings.TrimPrefix(s, "*."), "."), ".")
	plain := strings.Split(s, ".")
	first := 0
	if plain[0] == "*" && len(plain) > 1 {
		first = 1
	}
	for i, label := range labels {
		part, err := parsePiece(label)
		if err != nil {
			return Name{}, err
		}
		if part.capture != "" {
			t.captures = true
			switch {
			case strings.Trim(part.before+part.after, ldh) != "":
				return Name{}, errAround
			case i == len(labels)-1:
				return Name{}, errTop
			}
			plain[first+i] = part.before + "x" + part.after
		}
		t.labels = append(t.labels, part)
	}
	var err error
	if t.name, err = pattern.ParseName(strings.Join(plain, ".")); err != nil {
		return Name{}, errors.Unwrap(err)
	}
	zone, _ := t.name.Zone()
	normal := strings.Split(zone, ".")
	if len(normal) != len(t.labels) && t.captures {
		return Name{}, errFullStop
	}
	for i := range t.labels {
		if t.captures && t.labels[i].capture == "" {
			t.labels[i].before = normal[i]
		}
	}
	return t, nil
}

const ldh = "abcdefghijklmnopqrstuvwxyz0123456789-"

// isLabel reports whether a captured text is one label of a name as it is. SPIFFE IDs
// tell upper case from lower case, and DNS does not: what had to be changed to become
// a label would give two identities one name.
func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' && strings.Trim(s, ldh) == ""
}

// Matches reports whether the pattern matches a name, with what p captures of an
// identity that it matches.
func (t *Name) Matches(p *ID, id federation.ID, name federation.FQDN) bool {
	if !t.captures {
		return t.name.Matches(name)
	}
	expanded, err := t.Expand(p, id)
	if err != nil {
		return false
	}
	text := strings.TrimSuffix(name.String(), ".")
	if zone, below := strings.CutPrefix(expanded, "*."); below {
		return strings.HasSuffix(text, "."+zone)
	}
	return text == expanded
}

// Expand returns the pattern with what p captures of an identity that it matches, for
// people, or why that is no pattern.
func (t *Name) Expand(p *ID, id federation.ID) (string, error) {
	if !t.captures {
		return t.name.String(), nil
	}
	var labels []string
	if _, below := t.name.Zone(); below {
		labels = append(labels, "*")
	}
	for _, part := range t.labels {
		text := part.before
		if part.capture != "" {
			value := p.value(part.capture, id)
			if !isLabel(value) {
				return "", fmt.Errorf("{%s} is %s of %s, which is not a label of a name: it must be a-z, 0-9 and '-', 63 at most",
					part.capture, federation.Quote(value), federation.Quote(id.String()))
			}
			text += value + part.after
		}
		labels = append(labels, text)
	}
	return strings.Join(labels, "."), nil
}

// Captures returns the names of the captures, each as often as it stands there.
func (t *Name) Captures() []string {
	var names []string
	for _, part := range t.labels {
		if part.capture != "" {
			names = append(names, part.capture)
		}
	}
	return names
}

// String returns the pattern as it was parsed.
func (t *Name) String() string { return t.text }
