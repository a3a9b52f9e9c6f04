package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
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

	// The shape of the services that the rule gives.

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

// RuleMistake is what makes a policy invalid.
type RuleMistake struct {
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

// compiledRule is a Rule that has been compiled.
type compiledRule struct {
	names  []pattern.Name  // none: every name
	labels []pattern.Label // sorted by key
	tags   []string
	to     []pattern.ID
	shape  int // index of Policy.shapes
}

// isUnconditional reports whether every service meets the rule.
func (r *compiledRule) isUnconditional() bool { return r.names == nil && !r.looksInside() }

// looksInside reports whether there are conditions on more than the fqdn.
func (r *compiledRule) looksInside() bool { return r.labels != nil || r.tags != nil }

// unmetCondition returns the condition that the service does not meet, or "".
func (r *compiledRule) unmetCondition(s *federation.Service) string {
	if r.names != nil && !slices.ContainsFunc(r.names, func(p pattern.Name) bool { return p.Matches(s.FQDN) }) {
		return "the fqdn"
	}
	return r.unmetInside(s)
}

// unmetInside returns what unmetCondition does for conditions on more than the fqdn.
func (r *compiledRule) unmetInside(s *federation.Service) string {
	if slices.ContainsFunc(r.labels, func(p pattern.Label) bool { return !p.Matches(s.Labels) }) {
		return "the labels"
	}
	if r.tags != nil && !slices.ContainsFunc(s.Tags, func(tag string) bool { return slices.Contains(r.tags, tag) }) {
		return "the tags"
	}
	return ""
}

// ruleCompiler compiles one rule, and collects its mistakes.
type ruleCompiler struct {
	rule     int
	mistakes []RuleMistake
}

// noteError adds err to the mistakes, if it is not nil, and reports whether it is nil.
func (c *ruleCompiler) noteError(err error, field string, args ...any) bool {
	if err == nil {
		return true
	}
	c.mistakes = append(c.mistakes, RuleMistake{Rule: c.rule, Field: fmt.Sprintf(field, args...), Err: err})
	return false
}

// fitsLimit reports whether a list or map of so many entries is within the limit.
func (c *ruleCompiler) fitsLimit(field string, entries int) bool {
	if entries > MaxEntries {
		return c.noteError(errTooMany, "%s", field)
	}
	return true
}

// compileConditions returns the rule without its shape.
func (c *ruleCompiler) compileConditions(r *Rule) compiledRule {
	compiled := compiledRule{names: parseList(c, "match.fqdn", r.FQDNs, pattern.ParseName)}
	if slices.ContainsFunc(compiled.names, pattern.Name.IsEvery) {
		compiled.names = nil
	}
	if c.fitsLimit("match.labels", len(r.Labels)) {
		for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
			if label, err := pattern.NewLabel(key, r.Labels[key]); c.noteError(err, "match.labels.%s", key) {
				compiled.labels = append(compiled.labels, label)
			}
		}
	}
	compiled.tags = parseList(c, "match.tags", r.Tags, parseLiteral)
	compiled.to = parseList(c, "to", r.To, pattern.ParseID)
	if len(r.To) == 0 {
		c.noteError(errNobody, "to")
	}
	return compiled
}

// parseList returns the parsed entries of a list, each once.
func parseList[T comparable](c *ruleCompiler, field string, list []string, parse func(string) (T, error)) []T {
	if !c.fitsLimit(field, len(list)) {
		return nil
	}
	var parsed []T
	for i, s := range list {
		if p, err := parse(s); c.noteError(err, "%s[%d]", field, i) && !slices.Contains(parsed, p) {
			parsed = append(parsed, p)
		}
	}
	return parsed
}

// parseLiteral returns a tag, or a label of an endpoint, or why it is not one.
func parseLiteral(s string) (string, error) {
	switch s {
	case "":
		return "", errEmpty
	case "*":
		return "", errStar
	}
	if broken := limits.CheckText(s, limits.TagBytes); broken != nil {
		return "", broken
	}
	return s, nil
}

// compileShape returns the shape that the rule asks for.
func (c *ruleCompiler) compileShape(r *Rule) serviceShape {
	s := serviceShape{as: c.compileAs(r.As), endpoints: parseList(c, "endpoints.labels", r.Endpoints, parseLiteral)}
	slices.Sort(s.endpoints)
	if !c.fitsLimit("strip", len(r.Strip)) {
		return s
	}
	for i, field := range r.Strip {
		c.noteError(s.addStrip(field), "strip[%d]", i)
	}
	byText := func(a, b pattern.Key) int { return strings.Compare(a.String(), b.String()) }
	slices.SortFunc(s.labels, byText)
	slices.SortFunc(s.metadata, byText)
	s.labels, s.metadata = slices.Compact(s.labels), slices.Compact(s.metadata)
	return s
}

// compileAs returns the aliases, sorted by the name that they replace.
func (c *ruleCompiler) compileAs(as map[string]string) []zoneAlias {
	if !c.fitsLimit("as", len(as)) {
		return nil
	}
	var aliases []zoneAlias
	for _, key := range slices.Sorted(maps.Keys(as)) {
		from, err := parseZone(key)
		if err == nil && slices.ContainsFunc(aliases, func(a zoneAlias) bool { return a.from == from }) {
			err = errTwice
		}
		if !c.noteError(err, "as.%s", key) {
			continue
		}
		if to, err := parseZone(as[key]); c.noteError(err, "as.%s", key) {
			aliases = append(aliases, zoneAlias{from: from, to: to})
		}
	}
	slices.SortFunc(aliases, func(a, b zoneAlias) int { return cmp.Compare(a.from.String(), b.from.String()) })
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
		return federation.FQDN{}, fmt.Errorf("zone %s: %w", safetext.Quote(s), err)
	}
	return zone, nil
}
