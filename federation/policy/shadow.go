package policy

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

// Shadow is a rule that never decides, because an earlier one decides wherever it could.
type Shadow struct{ Rule, By int } // from 1

// Shadowed returns the rules that are provably never reached because of a single
// earlier rule, each with the first such rule.
func (p *Policy) Shadowed() []Shadow {
	if p == nil {
		return nil
	}
	var (
		shadows []Shadow
		earlier ruleSet
	)
	for i := range p.rules {
		for by := range p.covering(i, earlier).each() {
			if p.rules[by].coversInside(&p.rules[i]) {
				shadows = append(shadows, Shadow{Rule: i + 1, By: by + 1})
				break
			}
		}
		earlier.add(i)
	}
	return shadows
}

// covering returns those of the rules that are for every consumer and every fqdn that
// rule i is for.
func (p *Policy) covering(i int, rules ruleSet) *ruleSet {
	r := &p.rules[i]
	if r.names == nil {
		rules.intersect(&p.anyName)
	}
	for _, name := range r.names {
		var covering ruleSet
		if zone, below := name.Zone(); below {
			covering = p.anyName
			covering.add(p.belowName[zone]...)
			p.addAbove(&covering, zone)
		} else {
			covering = p.named(zone)
		}
		if rules.intersect(&covering); rules == (ruleSet{}) {
			break // the usual case
		}
	}
	for _, to := range r.to {
		if rules == (ruleSet{}) {
			break
		}
		covering := p.everyone
		if !to.IsEveryone() {
			p.addFor(&covering, to.String(), func(by pattern.ID) bool { return by.Covers(to) })
		}
		rules.intersect(&covering)
	}
	return &rules
}

// coversInside reports whether a service that meets the conditions of q on more than its
// fqdn provably meets those of r.
func (r *rule) coversInside(q *rule) bool {
	lacks := func(tag string) bool { return !slices.Contains(r.tags, tag) }
	return (r.tags == nil || q.tags != nil && !slices.ContainsFunc(q.tags, lacks)) &&
		!slices.ContainsFunc(r.labels, func(p pattern.Label) bool { return !slices.ContainsFunc(q.labels, p.Covers) })
}
