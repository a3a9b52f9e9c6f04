package policy

import (
	"unique"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Verdict is the result of all rules of a policy for one service; [Policy.Judge] makes it. It is
// small, never changes, and has one encoding of the service for each of its shapes. The zero value
// hides the service.
type Verdict struct {
	service *wire.EncodedService // nil: told to nobody
	met     unique.Handle[metBy] // zero without a policy
	shaped  []shapedService      // where a shape changes the service
}

// metBy is the set of rules that a service meets. Most services of a catalog meet the same, and
// share it.
type metBy struct {
	policy *Policy
	rules  ruleSet
}

// shapedService is a service in a shape that changes it.
type shapedService struct {
	shape   int                  // index of Policy.shapes
	service *wire.EncodedService // nil: hidden
}

// Judge returns the verdict on the service.
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

// encodeService returns the service in the shape, or nil if it is hidden, and whether the result
// differs from the service.
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

// ServiceFor returns the service in the shape for the consumers of a class, or nil if it is hidden
// from them. The class is one of the policy that judged the service. Where its rule changes
// nothing, the result is what Judge was given.
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

// MetRules returns a value that is equal for services that meet the same rules.
func (v Verdict) MetRules() any { return v.met }

// DecidingRule returns the number of the rule that decides for the consumers of a class, from 1, or
// 0 where none does. A rule that hides a service decides as well.
func (v Verdict) DecidingRule(c ConsumerClass) int {
	if v.met == (unique.Handle[metBy]{}) {
		return 0
	}
	met := v.met.Value()
	return met.rules.firstCommon(&c.rules) + 1
}
