package pattern_test

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
)

// A filter takes the services below a zone.
func Example() {
	name, err := pattern.ParseName("*.shop.fed.example")
	if err != nil {
		fmt.Println(err)
		return
	}
	filter := pattern.NameFilter{name}
	for _, s := range []string{"cart.shop.fed.example", "cart.bank.fed.example"} {
		fqdn, err := federation.ParseFQDN(s)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(s, filter.Matches(fqdn))
	}
	// Output:
	// cart.shop.fed.example true
	// cart.bank.fed.example false
}
