package pattern

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

const (
	scheme = "spiffe://"
	rest   = "**" // as the last segment of a path: one segment or more
)

// The rules that a pattern of identities can break, beside those of [mtls.ParseID].
var (
	errDomainStar = errors.New(`a trust domain is never a pattern: write it out, and one pattern for each`)
	errNoPath     = errors.New("the path is missing: /** behind the trust domain is everyone in it")
	errRest       = errors.New(`"**" is one whole segment, and the last`)
	errHostRest   = errors.New(`"**" is for the paths of SPIFFE IDs; "*." in front of a name is exactly one label`)
	errHostStar   = errors.New(`"*" stands alone, or as the first label before a name, as in *.dns.example`)
)

// ID is a pattern of the identities of consumers. Patterns that are equal (==) match
// the same identities.
type ID struct{ text string }

// ParseID returns the pattern that s spells:
//
//   - "*" is everyone who may subscribe, also without an identity.
//   - A SPIFFE ID whose trust domain is written out. In a segment of its path, '*' is any
//     number of any characters, but never a slash. A last segment "**" is one segment
//     or more: spiffe://acme.example/** is everyone in that trust domain.
//   - A host name, as in a DNS SAN. A first label "*" is exactly one label.
//
// The rest is spelled as [mtls.ParseID] takes it.
func ParseID(s string) (ID, error) {
	text, err := parseID(s)
	if err != nil {
		return ID{}, fmt.Errorf("identity pattern %s: %w", safetext.Quote(s), err)
	}
	return ID{text}, nil
}

// parseID returns the canonical text of a pattern, or the rule that it breaks.
func parseID(s string) (string, error) {
	if s == all {
		return all, nil
	}
	if path, ok := strings.CutPrefix(s, scheme); ok {
		return s, checkSPIFFE(s, path)
	}
	host, isBelow := strings.CutPrefix(s, below)
	switch {
	case strings.Contains(s, "://"): // refused, with the scheme
	case strings.Contains(s, rest):
		return "", errHostRest
	case strings.Contains(host, all):
		return "", errHostStar
	}
	id, err := federation.ParseID(host)
	switch {
	case err != nil:
		return "", errors.Unwrap(err) // the rule, without what was parsed: that is not what the pattern says
	case !isBelow:
		return id.String(), nil
	case len(id.String())+len(".") > longestAbove:
		return "", errNoName
	}
	return below + id.String(), nil
}

// checkSPIFFE checks the pattern s of SPIFFE IDs, which is the scheme and path.
func checkSPIFFE(s, path string) error {
	domain, path, _ := strings.Cut(path, "/")
	switch {
	case strings.Contains(domain, all):
		return errDomainStar
	case domain != "" && path == "":
		return errNoPath
	}
	for path, more := path, true; more; {
		var segment string
		segment, path, more = strings.Cut(path, "/")
		if strings.Contains(segment, rest) && (segment != rest || more) {
			return errRest
		}
	}
	// Whatever a '*' stands for, the text around it obeys the rules of SPIFFE IDs.
	_, err := federation.ParseID(strings.ReplaceAll(s, all, "x"))
	return errors.Unwrap(err) // likewise
}

// Matches reports whether p matches the identity. Only "*" matches the zero ID, which
// is nobody.
func (p ID) Matches(id federation.ID) bool { return p.matchesText(id.String()) }

// Covers reports whether p provably matches every identity that q matches. It may report false
// where a proof takes more than to compare their segments one by one.
func (p ID) Covers(q ID) bool { return p.matchesText(q.text) }

// IsEveryone reports whether p matches everyone who may subscribe.
func (p ID) IsEveryone() bool { return p.text == all }

// IsPlain reports whether p matches the identity that it is spelled as, and no other.
func (p ID) IsPlain() bool { return !strings.Contains(p.text, all) }

// GroupOf returns the part of a spelled identity, or pattern of identities, that all patterns share
// which match or cover it, except "*": the scheme and the trust domain, or what follows the first
// label of a host name. It is for indices of patterns.
func GroupOf(spelled string) string {
	if path, ok := strings.CutPrefix(spelled, scheme); ok {
		domain, _, _ := strings.Cut(path, "/")
		return spelled[:len(scheme)+len(domain)]
	}
	_, parent, _ := strings.Cut(spelled, ".")
	return parent
}

// IsSPIFFE reports whether p matches SPIFFE IDs only.
func (p ID) IsSPIFFE() bool { return strings.HasPrefix(p.text, scheme) }

// matchesText reports whether p matches an identity, or everything that a pattern matches. A star
// in that pattern is a character that only a star of p can match.
func (p ID) matchesText(text string) bool {
	switch {
	case p.text == all:
		return true
	case p.text == text:
		return text != ""
	case p.IsSPIFFE():
		text, ok := strings.CutPrefix(text, scheme)
		return ok && matchesPath(p.text[len(scheme):], text)
	case strings.HasPrefix(p.text, below) && !strings.HasPrefix(text, scheme):
		_, parent, _ := strings.Cut(text, ".")
		return parent == p.text[len(below):]
	}
	return false
}

// matchesPath matches a trust domain and path, segment by segment.
func matchesPath(pattern, text string) bool {
	for {
		p, patternRest, patternMore := strings.Cut(pattern, "/")
		t, textRest, textMore := strings.Cut(text, "/")
		switch {
		case p == rest:
			return true
		case t == rest || !matchesGlob(p, t):
			return false
		case !patternMore || !textMore:
			return patternMore == textMore
		}
		pattern, text = patternRest, textRest
	}
}

// String returns the pattern as it was parsed, a host name in lower case without a
// final dot, or "" for the zero value.
func (p ID) String() string { return p.text }
