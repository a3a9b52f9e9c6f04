package policy

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation/pattern"
)

// Shadow is a rule that never decides, because an earlier one decides wherever it could.
type Shadow struct{ Rule, By int } // from 1

// Shadowed returns the rules that are provably never reached because of a single
// earlier rule, each with the first such rule.
func (p *Policy) Shadowed() []Shadow {
	if p == nil {
		return nil
	}
	var shadows []Shadow
	for i := range p.rules {
		by := slices.IndexFunc(p.rules[:i], func(r rule) bool { return r.covers(&p.rules[i]) })
		if by >= 0 {
			shadows = append(shadows, Shadow{Rule: i + 1, By: by + 1})
		}
	}
	return shadows
}

// covers reports whether r provably decides wherever q could.
func (r *rule) covers(q *rule) bool {
	return coversAll(r.to, q.to, pattern.ID.Covers) &&
		(r.names == nil || q.names != nil && coversAll(r.names, q.names, pattern.Name.Covers)) &&
		(r.tags == nil || q.tags != nil && coversAll(r.tags, q.tags, func(a, b string) bool { return a == b })) &&
		!slices.ContainsFunc(r.labels, func(p pattern.Label) bool { return !slices.ContainsFunc(q.labels, p.Covers) })
}

// coversAll reports whether each of few is covered by one of many.
func coversAll[T any](many, few []T, covers func(T, T) bool) bool {
	return !slices.ContainsFunc(few, func(q T) bool {
		return !slices.ContainsFunc(many, func(p T) bool { return covers(p, q) })
	})
}
