package federation_test

import (
	"errors"
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// A program makes a service of its own data. Where that breaks a rule, the error says
// which field and which rule.
func Example() {
	fqdn, err := federation.ParseFQDN("shop.fed.example")
	if err != nil {
		fmt.Println(err)
		return
	}
	address, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		fmt.Println(err)
		return
	}
	service := &federation.Service{
		Name: "west/shop", FQDN: fqdn,
		Endpoints: []federation.Endpoint{{Address: address, Port: 8443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}
	fmt.Println(service.FQDN, "at", service.Endpoints[0], service.Validate())

	service.Endpoints[0].Port = 0
	invalid, _ := errors.AsType[*federation.InvalidError](service.Validate())
	fmt.Println(invalid.Field, invalid.Reason)
	// Output:
	// shop.fed.example. at 192.0.2.1:8443 <nil>
	// endpoints[0].port port
}
