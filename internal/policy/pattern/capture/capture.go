// Package capture has patterns of identities that capture parts of them, as [ID], and patterns
// of names with these parts, as [Name]:
//
//	spiffe://west.example/ns/{namespace}/sa/{account}
//	{account}.{namespace}.west.fed.example
//
// A capture is a name in braces. A captured text can be in a name only if it is a label
// without a change. Patterns never change.
package capture

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
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

// braces matches a capture.
var braces = regexp.MustCompile(`\{([a-z][a-z0-9_]{0,31})\}`)

// parseCaptures returns the names of the captures in the segments or labels of a pattern.
func parseCaptures(parts []string) (names []string, err error) {
	for _, part := range parts {
		found := braces.FindAllStringSubmatch(part, -1)
		switch rest := braces.ReplaceAllString(part, ""); {
		case len(found) > 1, len(found) == 1 && strings.Contains(rest, "*"):
			return nil, errOnce
		case strings.ContainsAny(rest, "{}"):
			return nil, errBraces
		case len(found) == 1:
			names = append(names, found[0][1])
		}
	}
	return names, nil
}

// ID is a pattern of identities with captures. Only [ParseID] makes one.
type ID struct {
	text    string         // as it is spelled
	pattern pattern.ID     // with a '*' for each capture
	groups  *regexp.Regexp // has a group for each capture, and matches all that pattern matches
}

// ParseID returns the pattern that s spells: what [pattern.ParseID] reads, with captures in the
// place of '*'. A segment of a SPIFFE ID has one capture at most, with text around it; of a host
// name the first label can be one.
func ParseID(s string) (ID, error) {
	p, err := readID(s)
	if err != nil {
		return ID{}, fmt.Errorf("identity pattern %s: %w", safetext.Quote(s), err)
	}
	return p, nil
}

func readID(s string) (ID, error) {
	segments, separator := strings.Split(s, "."), "."
	if strings.HasPrefix(s, "spiffe://") {
		segments, separator = strings.Split(s, "/"), "/"
	}
	names, err := parseCaptures(segments)
	if err != nil {
		return ID{}, err
	}
	slices.Sort(names)
	for i, name := range names {
		switch {
		case i > 0 && name == names[i-1]:
			return ID{}, fmt.Errorf("{%s} %w", name, errTwice)
		case separator == "." && (segments[0] != "{"+name+"}" || len(segments) == 1):
			return ID{}, errHost
		}
	}
	p := ID{text: s}
	if p.pattern, err = pattern.ParseID(braces.ReplaceAllString(s, "*")); err != nil {
		return ID{}, errors.Unwrap(err) // without the text, which is not what s says
	}
	expression := ""
	switch {
	case len(names) == 0:
	case separator == ".":
		expression = "^(?P<" + names[0] + ">[^.]*)" // what follows is spelled in other ways as well
	default:
		expression = "^" + strings.NewReplacer(`\*\*`, ".*", `\*`, "[^/]*", `\{`, "(?P<", `\}`, ">[^/]*)").Replace(regexp.QuoteMeta(s)) + "$"
	}
	p.groups, err = regexp.Compile(expression)
	return p, err
}

// Matches reports whether p matches the identity.
func (p *ID) Matches(id federation.ID) bool { return p.pattern.Matches(id) }

// Pattern returns the pattern with a '*' for each capture, which matches the same.
func (p *ID) Pattern() pattern.ID { return p.pattern }

// HasCapture reports whether p has a capture of that name.
func (p *ID) HasCapture(name string) bool { return p.groups.SubexpIndex(name) >= 0 }

// String returns the pattern as it was parsed.
func (p *ID) String() string { return p.text }

// Name is a pattern of names with captured texts. Only [ParseName] makes one.
type Name struct {
	text     string       // as it is spelled
	name     pattern.Name // with letters in the place of captures
	captures []string     // none: name is the pattern
	spelled  string       // as name is, but with the captures
}

// ParseName returns the pattern that s spells: what [pattern.ParseName] reads, where each label
// except the last may have a capture, with text around it.
func ParseName(s string) (Name, error) {
	t, err := readName(s)
	if err != nil {
		return Name{}, fmt.Errorf("name pattern %s: %w", safetext.Quote(s), err)
	}
	return t, nil
}

func readName(s string) (Name, error) {
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	names, err := parseCaptures(labels)
	if err != nil {
		return Name{}, err
	}
	for i, label := range labels {
		around := braces.ReplaceAllString(label, "")
		switch {
		case around == label:
		case strings.Trim(around, ldh) != "":
			return Name{}, errAround
		case i == len(labels)-1:
			return Name{}, errTop
		}
	}
	t := Name{text: s, captures: names}
	if t.name, err = pattern.ParseName(braces.ReplaceAllString(s, "x")); err != nil {
		return Name{}, errors.Unwrap(err)
	}
	normal := strings.Split(t.name.String(), ".")
	if len(normal) != len(labels) && len(names) > 0 {
		return Name{}, errFullStop
	}
	for i, label := range labels {
		if braces.MatchString(label) {
			normal[i] = label
		}
	}
	t.spelled = strings.Join(normal, ".")
	return t, nil
}

const ldh = "abcdefghijklmnopqrstuvwxyz0123456789-"

// isLabel reports whether a captured text is one label of a name without a change. SPIFFE IDs
// distinguish upper case from lower case, and DNS does not: a text that had to be changed could
// give two identities one name.
func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' && strings.Trim(s, ldh) == ""
}

// Matches reports whether the pattern matches a name, with the captures of p in an identity that p
// matches.
func (t *Name) Matches(p *ID, id federation.ID, name federation.FQDN) bool {
	if len(t.captures) == 0 {
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

// MayMatch reports whether the pattern may match a name with the captures of some identity.
func (t *Name) MayMatch(name federation.FQDN) bool {
	if len(t.captures) == 0 {
		return t.name.Matches(name)
	}
	pattern, labels := strings.Split(t.spelled, "."), strings.Split(strings.TrimSuffix(name.String(), "."), ".")
	if pattern[0] == "*" && len(labels) >= len(pattern) {
		pattern, labels = pattern[1:], labels[len(labels)-len(pattern)+1:]
	}
	return slices.EqualFunc(pattern, labels, func(of, label string) bool { return of == label || strings.Contains(of, "{") })
}

// Expand returns the pattern with the captures of p in an identity, for people, or why that is no
// pattern.
func (t *Name) Expand(p *ID, id federation.ID) (string, error) {
	if len(t.captures) == 0 {
		return t.spelled, nil
	}
	texts := p.groups.FindStringSubmatch(id.String())
	expanded := t.spelled
	for _, capture := range t.captures {
		value := texts[p.groups.SubexpIndex(capture)]
		if !isLabel(value) {
			return "", fmt.Errorf("{%s} is %s of %s, which is not a label of a name: it must be a-z, 0-9 and '-', 63 at most",
				capture, safetext.Quote(value), safetext.Quote(id.String()))
		}
		expanded = strings.Replace(expanded, "{"+capture+"}", value, 1)
	}
	return expanded, nil
}

// CaptureNames returns the names of the captures, each as often as the pattern has it.
func (t *Name) CaptureNames() []string { return t.captures }

// String returns the pattern as it was parsed.
func (t *Name) String() string { return t.text }
