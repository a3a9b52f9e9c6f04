// Package limits has the limits of a service, in entries and in bytes. A service beyond any of
// them is refused as a whole. The package also checks the names of owners.
//
// Federation checks services by them, wire counts the entries of a message by them before it
// decodes it, and sources cut by them what they publish. The package imports no other of this
// module but safetext, so that federation may import it.
package limits

import (
	"fmt"
	"unicode/utf8"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// How many entries the lists of a service may have.
const (
	Endpoints = 1000
	Instances = 1000
	Tags      = 64
	Labels    = 64 // of a service, and of each endpoint
	SANs      = 64
	Selectors = 64 // entries of an instance's endpoint_selector
	Metadata  = 64 // entries of an instance's metadata
)

// How long the strings of a service may be, in bytes. The lengths of DNS names are those of
// federation.ParseFQDN.
const (
	NameBytes        = 512 // of a service, and of the ID of an instance
	DescriptionBytes = 4096
	TagBytes         = 512       // of a tag, of an endpoint's label and of a selector's entry
	SANBytes         = 2048      // SPIFFE-ID section 2.3
	KeyBytes         = 512       // of a label, and of metadata
	ValueBytes       = 16 * 1024 // of a label, and of metadata: known owners put a PEM certificate there
)

// RuleError says which rule a text or a list breaks, in the words of a federation.InvalidError.
type RuleError struct{ Reason, Rule string }

// Error returns the rule.
func (e *RuleError) Error() string { return e.Rule }

// Of returns an error that names what breaks the rule, or nil for a nil RuleError.
func (e *RuleError) Of(what string) error {
	if e == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, e)
}

// CheckText returns nil for a text of at most limit bytes of valid UTF-8, and otherwise the rule
// that the text breaks.
func CheckText(s string, limit int) *RuleError {
	switch {
	case len(s) > limit:
		return &RuleError{"limit", fmt.Sprintf("%d bytes, the limit is %d", len(s), limit)}
	case !utf8.ValidString(s):
		return &RuleError{"undecodable", "not valid UTF-8: " + safetext.Quote(s)}
	}
	return nil
}

// CheckRequired returns the result of CheckText, and refuses an empty text as well.
func CheckRequired(s string, limit int) *RuleError {
	if s == "" {
		return &RuleError{"missing", "required"}
	}
	return CheckText(s, limit)
}

// CheckCount returns nil for a list of n entries, of which limit are allowed, or the rule that the
// list breaks.
func CheckCount(n, limit int) *RuleError {
	if n > limit {
		return &RuleError{"limit", fmt.Sprintf("more than %d entries", limit)}
	}
	return nil
}
