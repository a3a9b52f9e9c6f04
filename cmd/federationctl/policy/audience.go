package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Audience says who is told of a service.
type Audience struct {
	Asked   string           `json:"asked"`
	Name    string           `json:"name"`
	FQDN    string           `json:"fqdn"` // in the catalog
	Told    []ToldGroup      `json:"told"`
	NotTold []UntoldGroup    `json:"notTold"`
	Further []FurtherPattern `json:"further"`
}

// ToldGroup has the consumers that are told of a service by one rule.
type ToldGroup struct {
	Consumers []string `json:"consumers"`
	Rule      *Rule    `json:"rule,omitempty"`
	*ToldService

	why string
}

// UntoldGroup has the consumers that may subscribe and are not told, for one reason.
type UntoldGroup struct {
	Consumers []string `json:"consumers"`
	Reason    string   `json:"reason"`
}

// FurtherPattern is a pattern of consumers that allow does not name, and that would be told.
type FurtherPattern struct {
	To   string `json:"to"`
	Rule *Rule  `json:"rule"`
}

// String returns the audience as lines.
func (a *Audience) String() string {
	var b strings.Builder
	told, all := 0, 0
	for _, s := range a.Told {
		told += len(s.Consumers)
	}
	for _, r := range a.NotTold {
		all += len(r.Consumers)
	}
	fmt.Fprintf(&b, "%stold to %s of %s\n", lineStart(a.Asked, a.Name), status.FormatNumber(told), status.CountNoun(told+all, "consumer"))
	for _, s := range a.Told {
		fmt.Fprintf(&b, "%s\n%s%s", s.why, s.formatRows(), formatConsumers(s.Consumers))
	}
	for _, r := range a.NotTold {
		fmt.Fprintf(&b, "not told: %s\n%s", r.Reason, formatConsumers(r.Consumers))
	}
	if len(a.Further) > 0 {
		b.WriteString("told once allow names them:\n")
	}
	for _, f := range a.Further {
		fmt.Fprintf(&b, "  consumer   %s, by rule %d\n", printable.QuoteWord(f.To), f.Rule.Number)
	}
	return b.String()
}

// formatConsumers returns the consumers, one a line.
func formatConsumers(consumers []string) string {
	var b strings.Builder
	for _, id := range consumers {
		fmt.Fprintf(&b, "  consumer   %s\n", printable.QuoteWord(id))
	}
	return b.String()
}

// WhoCan returns who is told of the services with that name or fqdn, of which one may
// be an alias. Told reports whether anybody is.
func (c *Catalog) WhoCan(name string) (audiences []*Audience, told bool, err error) {
	alone, err := c.policyPerRule()
	if err != nil {
		return nil, false, err
	}
	found, err := c.findServices(name, func(s *wire.EncodedService, as federation.FQDN) bool {
		whole := s.Service()
		return slices.ContainsFunc(alone, func(p *policy.Policy) bool {
			d := p.Explain(p.ClassOf(nil), whole)
			return d.Service != nil && d.Service.FQDN == as
		})
	})
	if err != nil {
		return nil, false, err
	}
	for _, s := range found {
		a := &Audience{Asked: name, Name: s.Name(), FQDN: s.FQDN(), Told: []ToldGroup{}, NotTold: []UntoldGroup{}}
		c.groupConsumers(a, s)
		a.Further = c.furtherPatterns(s, alone)
		told = told || len(a.Told) > 0
		audiences = append(audiences, a)
	}
	return audiences, told, nil
}

// groupConsumers finds out what each of the consumers that may subscribe is told of the service.
func (c *Catalog) groupConsumers(a *Audience, s *wire.EncodedService) {
	for _, id := range c.allowed {
		outcome := c.decideOutcome(c.newConsumer(id), s)
		if outcome.told == nil {
			i := slices.IndexFunc(a.NotTold, func(r UntoldGroup) bool { return r.Reason == outcome.reason })
			if i < 0 {
				i = len(a.NotTold)
				a.NotTold = append(a.NotTold, UntoldGroup{Reason: outcome.reason})
			}
			a.NotTold[i].Consumers = append(a.NotTold[i].Consumers, id.String())
			continue
		}
		i := slices.IndexFunc(a.Told, func(s ToldGroup) bool { return s.Rule == outcome.rule })
		if i < 0 {
			i = len(a.Told)
			a.Told = append(a.Told, ToldGroup{Rule: outcome.rule, ToldService: outcome.toldForm(), why: outcome.toldReason()})
		}
		a.Told[i].Consumers = append(a.Told[i].Consumers, id.String())
	}
}

// allowsPattern reports whether a pattern is an identity that may subscribe.
func (c *Catalog) allowsPattern(pattern string) bool {
	id, err := federation.ParseID(pattern)
	if err != nil {
		return false
	}
	_, allowed := c.countingIDs([]federation.ID{id})
	return allowed
}

// policyPerRule returns a policy for each rule, in which it is the only one and for everybody.
func (c *Catalog) policyPerRule() ([]*policy.Policy, error) {
	policies := make([]*policy.Policy, len(c.rules))
	for i := range c.rules {
		rule := c.rules[i].rule
		rule.To = []string{"*"}
		p, mistakes := policy.New([]policy.Rule{rule})
		if len(mistakes) > 0 {
			return nil, mistakes[0].Err // the rule has none: it is in force
		}
		policies[i] = p
	}
	return policies, nil
}

// furtherPatterns returns the patterns of consumers that would be told of the service if allow
// named them. It leaves out those all of whose consumers an earlier rule decides about.
func (c *Catalog) furtherPatterns(s *wire.EncodedService, alone []*policy.Policy) []FurtherPattern {
	further, whole := []FurtherPattern{}, s.Service()
	var decided []pattern.ID
	for i := range c.rules {
		d := alone[i].Explain(alone[i].ClassOf(nil), whole)
		if d.Rule == 0 {
			continue
		}
		var its []pattern.ID
		for _, to := range c.rules[i].rule.To {
			p, err := pattern.ParseID(to)
			if err != nil || slices.ContainsFunc(decided, func(by pattern.ID) bool { return by.Covers(p) }) {
				continue
			}
			its = append(its, p)
			if d.Service != nil && !c.allowsPattern(to) {
				further = append(further, FurtherPattern{to, &c.rules[i]})
			}
		}
		decided = append(decided, its...)
	}
	return further
}
