package owner

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Audience is what a class of consumers is told of a service.
type Audience struct {
	ClassStats // without Services; Rules is empty without a policy as well

	Everybody bool          // there is no policy, and one class
	Rule      int           // of the policy, that decides; 0: none does
	Service   *wire.Encoded // as they are told it; nil: they are not told
}

// Audiences returns what each class of consumers that are subscribed is told of the service of
// that name, in the order of their rules. There are none while nobody is subscribed. It
// holds up nobody for longer than it takes to look at each class.
func (r *Registry) Audiences(name string) []Audience {
	r.mu.Lock()
	one := judgedCatalog{map[string]*wire.Encoded{name: r.services[name]}, nil}
	if r.verdicts != nil {
		one.verdicts = map[string]policy.Verdict{name: r.verdicts[name]}
	}
	consumers := make(map[view]int, len(r.classes))
	for v, c := range r.classes {
		consumers[v] = len(c.subscriptions)
	}
	r.mu.Unlock()
	told := make([]Audience, 0, len(consumers))
	for v, n := range consumers {
		t := Audience{ClassStats: ClassStats{Consumers: n}, Everybody: v.whole, Rule: one.rule(v, name), Service: one.visible(v, name)}
		if !v.whole {
			t.Rules = v.class.Rules()
		}
		told = append(told, t)
	}
	slices.SortFunc(told, func(a, b Audience) int { return slices.Compare(a.Rules, b.Rules) })
	return told
}
