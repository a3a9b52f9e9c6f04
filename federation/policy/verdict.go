package policy

import (
	"unique"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Verdict is what becomes of one service under all rules of a policy, which
// [Policy.Judge] finds out. It is small, never changes, and holds one encoding of the
// service for each shape in which it can be told. The zero value tells nothing.
type Verdict struct {
	service *wire.Encoded        // nil: told to nobody
	met     unique.Handle[metBy] // zero without a policy
	shaped  []shaped             // where a shape changes the service
}

// metBy is the rules that a service meets, for which most services of a catalog are
// alike.
type metBy struct {
	policy *Policy
	rules  ruleSet
}

// shaped is a service in a shape that changes it.
type shaped struct {
	shape   int           // index of Policy.shapes
	service *wire.Encoded // nil: hidden
}

// Judge returns what becomes of the service.
func (p *Policy) Judge(s *wire.Encoded) Verdict {
	if p == nil {
		return Verdict{service: s}
	}
	var (
		candidates = p.named(s.FQDN())
		decoded    *federation.Service
		met, tried ruleSet
		results    []shaped
	)
	for i := range candidates.each() {
		r := &p.rules[i]
		if decoded == nil && (r.looksInside() || r.shape != 0) {
			decoded = s.Service()
		}
		if r.looksInside() && r.unmetInside(decoded) != "" {
			continue
		}
		met.add(i)
		if r.shape != 0 && !tried.has(r.shape-1) {
			tried.add(r.shape - 1)
			if told, changed := p.shapes[r.shape].encode(decoded); changed {
				results = append(results, shaped{r.shape, told})
			}
		}
		if p.everyone.has(i) {
			break // no later rule decides for anybody
		}
	}
	if met == (ruleSet{}) {
		return Verdict{}
	}
	return Verdict{service: s, met: unique.Make(metBy{p, met}), shaped: results}
}

// encode returns the service in the shape, nil if it is hidden, and whether that is
// not the service itself.
func (sh *shape) encode(s *federation.Service) (*wire.Encoded, bool) {
	told, err := sh.apply(s)
	if told == s {
		return nil, false
	}
	if err != nil {
		return nil, true
	}
	encoded, err := wire.NewEncoded(told)
	if err != nil {
		return nil, true // cannot be: what apply returns is valid
	}
	return encoded, true
}

// For returns the service as the consumers of a class are told it, or nil if they are
// not. The class is one of the policy that judged the service. Where its rule changes
// nothing, it is what Judge was given.
func (v Verdict) For(c Class) *wire.Encoded {
	if v.service == nil || v.met == (unique.Handle[metBy]{}) {
		return v.service
	}
	met := v.met.Value()
	i := met.rules.first(&c.rules)
	if i < 0 {
		return nil
	}
	shape := met.policy.rules[i].shape
	for _, result := range v.shaped {
		if result.shape == shape {
			return result.service
		}
	}
	return v.service
}

// Met returns a value that is the same where the same rules are met.
func (v Verdict) Met() any { return v.met }

// Rule returns the number of the rule that decides for the consumers of a class, from 1,
// or 0 where none does. A service that it hides is decided as well.
func (v Verdict) Rule(c Class) int {
	if v.met == (unique.Handle[metBy]{}) {
		return 0
	}
	met := v.met.Value()
	return met.rules.first(&c.rules) + 1
}
