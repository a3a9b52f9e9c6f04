package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

// The limits of a policy.
const (
	MaxRules   = 1000
	MaxEntries = 256 // of each list and map of a rule
)

// Rule is one rule of a policy. A list of conditions is met by any of its entries, and
// an empty one by every service.
type Rule struct {
	// The conditions. A service meets the rule when it meets each of them.

	FQDNs  []string          // patterns of the fqdn, as pattern.ParseName takes them
	Labels map[string]string // labels of the service, all of which it must have; "*" is any value
	Tags   []string          // of which the service must have one

	To []string // patterns of consumers, as pattern.ParseID takes them; not empty

	// The shape of what is told.

	// As renames the fqdn: FROM and the names below it become TO and the names below that.
	// Where several FROM are the fqdn or above it, the longest counts. Both are names as
	// federation.ParseFQDN takes them, or the root (".").
	As map[string]string

	// Endpoints are labels. Only the endpoints that have one of them are told, and of the
	// instances those that are reached through what remains. Where none remains, the service
	// is hidden.
	Endpoints []string

	// Strip is what is left out: description (of the service, its instances and its
	// endpoints), tags, sans, labels.KEY (of the service), and metadata.KEY (of its
	// instances), where KEY is a pattern as pattern.ParseKey takes it.
	Strip []string
}

// Mistake is what makes a policy invalid.
type Mistake struct {
	Rule  int    // from 1; 0 is the policy as a whole
	Field string // such as to[1], match.fqdn[0], match.labels.tier, as.pay.example, endpoints.labels[0]; "" is the rule
	Err   error
}

// The rules that a policy can break, beside those of package pattern.
var (
	errTooManyRules = fmt.Errorf("more than %d rules", MaxRules)
	errTooMany      = fmt.Errorf("more than %d entries", MaxEntries)
	errNobody       = errors.New(`names nobody; "*" is everyone who may subscribe`)
	errEmpty        = errors.New("is empty; leave it out")
	errStar         = errors.New(`is taken as it is written, and "*" stands for nothing here; leave the list out for all`)
	errTwice        = errors.New("is the same name as another entry")
	errStrip        = errors.New("is none of description, tags, sans, labels.KEY and metadata.KEY, where '*' in a KEY stands for any characters")
)

// rule is a Rule that has been compiled.
type rule struct {
	names  []pattern.Name  // none: every name
	labels []pattern.Label // sorted by key
	tags   []string
	to     []pattern.ID
	shape  int // index of Policy.shapes
}

// unconditional reports whether every service meets the rule.
func (r *rule) unconditional() bool { return r.names == nil && !r.looksInside() }

// looksInside reports whether there are conditions on more than the fqdn.
func (r *rule) looksInside() bool { return r.labels != nil || r.tags != nil }

// unmet returns the condition that the service does not meet, "" if it meets all.
func (r *rule) unmet(s *federation.Service) string {
	if r.names != nil && !slices.ContainsFunc(r.names, func(p pattern.Name) bool { return p.Matches(s.FQDN) }) {
		return "the fqdn"
	}
	return r.unmetInside(s)
}

// unmetInside is unmet for the conditions on more than the fqdn.
func (r *rule) unmetInside(s *federation.Service) string {
	if slices.ContainsFunc(r.labels, func(p pattern.Label) bool { return !p.Matches(s.Labels) }) {
		return "the labels"
	}
	if r.tags != nil && !slices.ContainsFunc(s.Tags, func(tag string) bool { return slices.Contains(r.tags, tag) }) {
		return "the tags"
	}
	return ""
}

// compiler compiles one rule, and notes its mistakes.
type compiler struct {
	rule     int
	mistakes []Mistake
}

// check notes err, if there is one, and reports whether there is none.
func (c *compiler) check(err error, field string, args ...any) bool {
	if err == nil {
		return true
	}
	c.mistakes = append(c.mistakes, Mistake{Rule: c.rule, Field: fmt.Sprintf(field, args...), Err: err})
	return false
}

// fits reports whether a list or map of so many entries is within the limit.
func (c *compiler) fits(field string, entries int) bool {
	if entries > MaxEntries {
		return c.check(errTooMany, "%s", field)
	}
	return true
}

// compile returns the rule without its shape.
func (c *compiler) compile(r *Rule) rule {
	compiled := rule{names: parseList(c, "match.fqdn", r.FQDNs, pattern.ParseName)}
	if slices.ContainsFunc(compiled.names, pattern.Name.IsEvery) {
		compiled.names = nil
	}
	if c.fits("match.labels", len(r.Labels)) {
		for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
			if label, err := pattern.NewLabel(key, r.Labels[key]); c.check(err, "match.labels.%s", key) {
				compiled.labels = append(compiled.labels, label)
			}
		}
	}
	compiled.tags = parseList(c, "match.tags", r.Tags, literal)
	compiled.to = parseList(c, "to", r.To, pattern.ParseID)
	if len(r.To) == 0 {
		c.check(errNobody, "to")
	}
	return compiled
}

// parseList parses the entries of a list, and leaves out those that are there twice.
func parseList[T comparable](c *compiler, field string, list []string, parse func(string) (T, error)) []T {
	if !c.fits(field, len(list)) {
		return nil
	}
	var parsed []T
	for i, s := range list {
		if p, err := parse(s); c.check(err, "%s[%d]", field, i) && !slices.Contains(parsed, p) {
			parsed = append(parsed, p)
		}
	}
	return parsed
}

// literal checks a tag, or a label of an endpoint.
func literal(s string) (string, error) {
	switch s {
	case "":
		return "", errEmpty
	case "*":
		return "", errStar
	}
	if err := federation.CheckText("", s, federation.MaxTagBytes); err != nil {
		return "", err
	}
	return s, nil
}

// compileShape returns the shape that the rule asks for.
func (c *compiler) compileShape(r *Rule) shape {
	s := shape{as: c.compileAs(r.As), endpoints: parseList(c, "endpoints.labels", r.Endpoints, literal)}
	slices.Sort(s.endpoints)
	if !c.fits("strip", len(r.Strip)) {
		return s
	}
	for i, field := range r.Strip {
		c.check(s.addStrip(field), "strip[%d]", i)
	}
	byText := func(a, b pattern.Key) int { return strings.Compare(a.String(), b.String()) }
	slices.SortFunc(s.labels, byText)
	slices.SortFunc(s.metadata, byText)
	s.labels, s.metadata = slices.Compact(s.labels), slices.Compact(s.metadata)
	return s
}

// compileAs returns the aliases, sorted by the name that they are for.
func (c *compiler) compileAs(as map[string]string) []alias {
	if !c.fits("as", len(as)) {
		return nil
	}
	var aliases []alias
	for _, key := range slices.Sorted(maps.Keys(as)) {
		from, err := parseZone(key)
		if err == nil && slices.ContainsFunc(aliases, func(a alias) bool { return a.from == from }) {
			err = errTwice
		}
		if !c.check(err, "as.%s", key) {
			continue
		}
		if to, err := parseZone(as[key]); c.check(err, "as.%s", key) {
			aliases = append(aliases, alias{from: from, to: to})
		}
	}
	slices.SortFunc(aliases, func(a, b alias) int { return cmp.Compare(a.from.String(), b.from.String()) })
	return aliases
}

// parseZone returns the name of a zone that can hold services.
func parseZone(s string) (federation.FQDN, error) {
	parse := federation.ParseFQDN
	if s == "." {
		parse = federation.ParseOrigin
	}
	zone, err := parse(s)
	if err != nil {
		return federation.FQDN{}, fmt.Errorf("zone %s: %w", federation.Quote(s), err)
	}
	return zone, nil
}
