package policy_test

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
)

// An owner tells the DNS servers of a partner about its public services, under another
// name, and everyone else nothing.
func Example() {
	p, mistakes := policy.New([]policy.Rule{{
		FQDNs:  []string{"*.pay.example"},
		Labels: map[string]string{"tier": "public"},
		To:     []string{"spiffe://partner.example/ns/dns/*"},
		As:     map[string]string{"pay.example": "pay.partner.example"},
		Strip:  []string{"description"},
	}})
	for _, m := range mistakes {
		fmt.Printf("rule %d: %s: %v\n", m.Rule, m.Field, m.Err)
	}

	name, _ := federation.ParseFQDN("web.pay.example")
	address, _ := federation.ParseAddress("192.0.2.1")
	web := &federation.Service{
		Name: "web", FQDN: name, Description: "on the second floor", Labels: federation.Pairs(map[string]string{"tier": "public"}),
		Endpoints: []federation.Endpoint{{Address: address, Port: 443}},
		Instances: []federation.Instance{{ID: "a", Protocol: federation.HTTPS}},
	}
	for _, consumer := range []string{"spiffe://partner.example/ns/dns/a", "dns.example"} {
		id, _ := federation.ParseID(consumer)
		decision := p.Explain(p.ClassOf([]federation.ID{id}), web)
		fmt.Printf("%s: %s\n", consumer, decision.Reason)
	}
	// Output:
	// spiffe://partner.example/ns/dns/a: told as web.pay.partner.example in place of web.pay.example, stripped of descriptions
	// dns.example: no rule is for this consumer
}
