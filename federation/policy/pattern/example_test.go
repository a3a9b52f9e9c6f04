package pattern_test

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

// A filter takes the services below a zone that have a label.
func Example() {
	name, err := pattern.ParseName("*.shop.fed.example")
	if err != nil {
		fmt.Println(err)
		return
	}
	label, err := pattern.ParseLabel("env=prod")
	if err != nil {
		fmt.Println(err)
		return
	}
	filter := pattern.Filter{Names: []pattern.Name{name}, Labels: []pattern.Label{label}}
	for _, s := range []struct{ fqdn, env string }{
		{"cart.shop.fed.example", "prod"},
		{"cart.shop.fed.example", "test"},
		{"cart.bank.fed.example", "prod"},
	} {
		fqdn, err := federation.ParseFQDN(s.fqdn)
		if err != nil {
			fmt.Println(err)
			return
		}
		service := &federation.Service{FQDN: fqdn, Labels: federation.Pairs(map[string]string{"env": s.env})}
		fmt.Println(s.fqdn, s.env, filter.Matches(service))
	}
	// Output:
	// cart.shop.fed.example prod true
	// cart.shop.fed.example test false
	// cart.bank.fed.example prod false
}
