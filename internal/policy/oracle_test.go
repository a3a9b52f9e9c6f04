package policy_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/policy/policytest"
)

// same compares services.
var same = cmp.Options{cmpopts.EquateComparable(federation.FQDN{}, federation.Address{}), cmpopts.EquateEmpty()}

// FuzzPolicy compares what a policy says of random rules, services and consumers with
// what package policytest says of them.
func FuzzPolicy(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed, uint8(seed%12))
	}
	f.Add(uint64(1), uint8(49))
	f.Fuzz(func(t *testing.T, seed uint64, limit uint8) {
		r := policytest.New(seed)
		rules := r.Rules(int(limit) % 50)
		p, mistakes := policy.New(rules)
		for _, m := range mistakes {
			t.Fatal(m)
		}
		var services []*federation.Service
		for range 8 {
			services = append(services, r.Service("s"))
		}
		for range 8 {
			ids := r.IDs()
			for _, s := range services {
				compare(t, p, rules, ids, s)
			}
		}
	})
}

// compare compares what is told of one service to one consumer, and returns the rule
// that decides.
func compare(t *testing.T, p *policy.Policy, rules []policy.Rule, ids []federation.ID, s *federation.Service) int {
	t.Helper()
	before := encoded(t, s)
	decides, want := policytest.Decide(rules, ids, s)
	class := p.ClassOf(ids)
	if decides != 0 && !slices.Contains(class.RuleNumbers(), decides) {
		t.Errorf("rule %d decides for %v, and is not among the rules %v of the class: %+v", decides, ids, class.RuleNumbers(), rules)
	}

	verdict := p.Judge(before)
	if rule := verdict.DecidingRule(class); rule != decides {
		t.Errorf("rule %d decides for %v of %+v, want rule %d of %+v", rule, ids, s, decides, rules)
	}
	told := verdict.ServiceFor(class)
	var service *federation.Service
	if told != nil {
		service = told.Service()
	}
	if diff := cmp.Diff(want, service, same); diff != "" {
		t.Errorf("what %v is told of %+v (-want +got):\n%sby rule %d of %+v", ids, s, diff, decides, rules)
	}
	if want != nil && before.Equal(encoded(t, want)) != (told == before) {
		t.Errorf("of %+v, %v is told %p, and the service itself is %p: %+v", s, ids, told, before, rules)
	}
	if told != nil {
		checkReach(t, s, service)
	}

	explained := p.Explain(class, s)
	if diff := cmp.Diff(want, explained.Service, same); diff != "" || explained.Rule != decides || explained.Reason == "" {
		t.Errorf("Explain says %+v of %+v for %v, and rule %d decides (-want +got):\n%s", explained, s, ids, decides, diff)
	}
	if !before.Equal(encoded(t, s)) {
		t.Errorf("the service was changed to %+v", s)
	}
	return decides
}

// checkReach checks that no instance that is told is reached through another endpoint
// than before.
func checkReach(t *testing.T, s, told *federation.Service) {
	t.Helper()
	type place struct {
		address federation.Address
		port    uint16
	}
	reached := func(s *federation.Service, in federation.Instance) (places []place) {
		for _, i := range policytest.ReachedEndpoints(s.Endpoints, in) {
			places = append(places, place{s.Endpoints[i].Address, s.Endpoints[i].Port})
		}
		return places
	}
	for _, in := range told.Instances {
		i := slices.IndexFunc(s.Instances, func(was federation.Instance) bool { return was.ID == in.ID })
		was := reached(s, s.Instances[i])
		for _, p := range reached(told, in) {
			if !slices.Contains(was, p) {
				t.Errorf("instance %s of %+v came to be reached through %v: %+v", in.ID, s, p, told)
			}
		}
	}
}
