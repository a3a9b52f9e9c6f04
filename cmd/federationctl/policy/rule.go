// Package policy says what the consumers of an owner are told, as far as its files say
// so: one consumer, or all of them.
//
// It decides nothing by itself: who is told of what is decided by internal/policy, as
// in the owner.
//
// Only packages of this module import it: it is not a stable API.
package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Rule is a rule of an export policy. Its text is for people.
type Rule struct {
	Number int    `json:"number"` // in the catalog, from 1
	File   string `json:"file"`
	Line   int    `json:"line"`
	Match  string `json:"match"`
	To     string `json:"to"`
}

func newRule(number int, file string, export *config.Export) Rule {
	var conditions, labels []string
	for _, key := range slices.Sorted(maps.Keys(export.Rule.Labels)) {
		labels = append(labels, key+"="+export.Rule.Labels[key])
	}
	few := func(words []string) string { return printable.JoinFew(words, most, ",", printable.QuoteWord) }
	for _, condition := range []struct {
		on  string
		any []string
	}{{"fqdn ", export.Rule.FQDNs}, {"labels ", labels}, {"tags ", export.Rule.Tags}} {
		if len(condition.any) > 0 {
			conditions = append(conditions, condition.on+few(condition.any))
		}
	}
	match := cmp.Or(strings.Join(conditions, ", "), "everything")
	return Rule{Number: number, File: file, Line: export.Line, Match: match, To: few(export.Rule.To)}
}

// String returns the rule in short, with its place.
func (r *Rule) String() string {
	return fmt.Sprintf("rule %d (%s:%d: %s to %s)", r.Number, safetext.Printable(r.File), r.Line, r.Match, r.To)
}

// most is how many words a text has of a list of any length.
const most = 8

// plainFQDN returns a name in DNS without its final dot.
func plainFQDN(name federation.FQDN) string { return strings.TrimSuffix(name.String(), ".") }
