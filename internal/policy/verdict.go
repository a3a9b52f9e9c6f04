package policy

import (
	"unique"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Verdict is what becomes of one service under all rules of a policy, which
// [Policy.Judge] finds out. It is small, never changes, and holds one encoding of the
// service for each shape in which it can be told. The zero value tells nothing.
type Verdict struct {
	service *wire.EncodedService // nil: told to nobody
	met     unique.Handle[metBy] // zero without a policy
	shaped  []shapedService      // where a shape changes the service
}

// metBy is the rules that a service meets, for which most services of a catalog are
// alike.
type metBy struct {
	policy *Policy
	rules  ruleSet
}

// shapedService is a service in a shape that changes it.
type shapedService struct {
	shape   int                  // index of Policy.shapes
	service *wire.EncodedService // nil: hidden
}

// Judge returns what becomes of the service.
func (p *Policy) Judge(s *wire.EncodedService) Verdict {
	if p == nil {
		return Verdict{service: s}
	}
	var (
		candidates = p.rulesForName(s.FQDN())
		decoded    *federation.Service
		met, tried ruleSet
		results    []shapedService
	)
	for i := range candidates.inOrder() {
		r := &p.rules[i]
		if decoded == nil && (r.looksInside() || r.shape != 0) {
			decoded = s.Service()
		}
		if r.looksInside() && r.unmetInside(decoded) != "" {
			continue
		}
		met.addRules(i)
		if r.shape != 0 && !tried.has(r.shape-1) {
			tried.addRules(r.shape - 1)
			if told, changed := p.shapes[r.shape].encodeService(decoded); changed {
				results = append(results, shapedService{r.shape, told})
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

// encodeService returns the service in the shape, nil if it is hidden, and whether that is
// not the service itself.
func (sh *serviceShape) encodeService(s *federation.Service) (*wire.EncodedService, bool) {
	told, err := sh.applyTo(s)
	if told == s {
		return nil, false
	}
	if err != nil {
		return nil, true
	}
	encoded, err := wire.NewEncoded(told)
	if err != nil {
		return nil, true // cannot be: what applyTo returns is valid
	}
	return encoded, true
}

// ServiceFor returns the service as the consumers of a class are told it, or nil if they are
// not. The class is one of the policy that judged the service. Where its rule changes
// nothing, it is what Judge was given.
func (v Verdict) ServiceFor(c ConsumerClass) *wire.EncodedService {
	if v.service == nil || v.met == (unique.Handle[metBy]{}) {
		return v.service
	}
	met := v.met.Value()
	i := met.rules.firstCommon(&c.rules)
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

// MetRules returns a value that is the same where the same rules are met.
func (v Verdict) MetRules() any { return v.met }

// DecidingRule returns the number of the rule that decides for the consumers of a class, from 1,
// or 0 where none does. A service that it hides is decided as well.
func (v Verdict) DecidingRule(c ConsumerClass) int {
	if v.met == (unique.Handle[metBy]{}) {
		return 0
	}
	met := v.met.Value()
	return met.rules.firstCommon(&c.rules) + 1
}
