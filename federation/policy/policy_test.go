package policy_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

func id(t testing.TB, s string) mtls.ID {
	t.Helper()
	id, err := mtls.ParseID(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func encoded(t testing.TB, s *federation.Service) *wire.Encoded {
	t.Helper()
	e, err := wire.NewEncoded(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// web is a service with all that a policy can look at or leave out: web.pay.example.
func web(t testing.TB) *federation.Service {
	t.Helper()
	fqdn, err := federation.ParseFQDN("web.pay.example")
	if err != nil {
		t.Fatal(err)
	}
	address, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	return &federation.Service{
		Name: "web", FQDN: fqdn, Description: "of the service", Tags: []string{"edge"},
		Labels: federation.Pairs(map[string]string{"tier": "public", "internal-id": "7"}),
		SANs:   []string{"spiffe://pay.example/web"},
		Endpoints: []federation.Endpoint{
			{Address: address, Port: 1, Labels: []string{"edge"}, Description: "of the endpoint"},
			{Address: address, Port: 2, Labels: []string{"core"}},
		},
		Instances: []federation.Instance{
			{ID: "a", Protocol: federation.HTTP, EndpointSelector: []string{"edge", "core"}, Description: "of the instance"},
			{ID: "b", Protocol: federation.HTTP, EndpointSelector: []string{"core"}},
			{ID: "c", Protocol: federation.GRPC, EndpointSelector: []string{"nothing"}, Metadata: federation.Pairs(map[string]string{"internal-x": "1", "SNI": "s"})},
			{ID: "d", Protocol: federation.TCP},
		},
	}
}

// compile returns the policy of rules without mistakes.
func compile(t testing.TB, rules ...policy.Rule) *policy.Policy {
	t.Helper()
	p, mistakes := policy.New(rules)
	for _, m := range mistakes {
		t.Error(m)
	}
	return p
}

func TestNoPolicy(t *testing.T) {
	var p *policy.Policy
	s := encoded(t, web(t))
	if p.Judge(s).For(p.Class(nil)) != s {
		t.Error("without a policy, a service is not told")
	}
}

func TestFirstMatchDecides(t *testing.T) {
	p := compile(
		t,
		policy.Rule{FQDNs: []string{"*.pay.example"}, To: []string{"spiffe://acme.example/ns/dns/*"}, Endpoints: []string{"edge"}},
		policy.Rule{To: []string{"spiffe://acme.example/**"}},
	)
	s := encoded(t, web(t))
	v := p.Judge(s)
	if v.For(p.Class([]mtls.ID{id(t, "spiffe://acme.example/a")})) != s {
		t.Error("rule 2 does not tell the service as it is")
	}
	told := v.For(p.Class([]mtls.ID{id(t, "spiffe://acme.example/ns/dns/a")}))
	if told == nil || len(told.Service().Endpoints) != 1 || len(told.Service().Instances) != 3 {
		t.Errorf("rule 1 tells %+v", told)
	}
	for who, want := range map[string]int{"spiffe://acme.example/ns/dns/a": 1, "spiffe://acme.example/a": 2, "spiffe://other.example/a": 0} {
		if got := v.Rule(p.Class([]mtls.ID{id(t, who)})); got != want {
			t.Errorf("rule %d decides for %s, expected %d", got, who, want)
		}
	}
	if v.For(p.Class([]mtls.ID{id(t, "spiffe://other.example/a")})) != nil || v.For(p.Class(nil)) != nil {
		t.Error("told to somebody whom no rule names")
	}
}
