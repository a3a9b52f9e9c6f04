package wire_test

import (
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// An owner's response becomes an event, and one that breaks a rule is refused.
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
		Name: "shop", FQDN: fqdn,
		Endpoints: []federation.Endpoint{{Address: address, Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.TLS}},
	}
	response, err := wire.Encode(federation.Event{Operation: federation.Upsert, Name: "shop", Service: service}, "7", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	event, err := wire.Decode(response)
	fmt.Println(event.Operation, event.Service.FQDN, err)

	response.Resource.Value = response.Resource.Value[:9] // a part of the message
	_, err = wire.Decode(response)
	request := wire.Nack(response.Nonce, "", err)
	fmt.Println("NACK of", request.GetResponseNonce(), "says:", err)
	// Output:
	// upsert shop.fed.example. <nil>
	// NACK of 7 says: service "shop": resource.value: malformed, or a string in it is not valid UTF-8
}
