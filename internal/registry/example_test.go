package registry_test

import (
	"context"
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
)

// A registry without a server: a subscriber gets the catalog first, and then each
// service that has changed once, in its latest version.
func Example() {
	at := func(address string) *federation.Service {
		return &federation.Service{
			Name:      "shop-berlin",
			FQDN:      ensure(federation.ParseFQDN("berlin.shops.fed.example")),
			Endpoints: []federation.Endpoint{{Address: ensure(federation.ParseAddress(address)), Port: 443}},
			Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
		}
	}
	catalog := registry.New()
	ensure(catalog.Set([]*federation.Service{at("192.0.2.1")}))
	// A service that is not valid is an error, and changes nothing.
	if _, err := catalog.Upsert(&federation.Service{Name: "shop-berlin"}); err != nil {
		fmt.Println(err)
	}

	subscription := catalog.Subscribe()
	defer subscription.Close()
	next := func() {
		switch event := ensure(subscription.NextEvent(context.Background())); event.Operation {
		case federation.Upsert:
			fmt.Println(event.Name, "is at", event.Service.Endpoints[0].Address)
		case federation.Delete:
			fmt.Println(event.Name, "is gone")
		case federation.End:
			fmt.Println("the catalog is complete")
		}
	}
	next()
	next()
	for i := range 100 {
		ensure(catalog.Upsert(at(fmt.Sprintf("192.0.2.%d", 100+i))))
	}
	next()
	catalog.Delete("shop-berlin")
	next()
	// Output:
	// service "shop-berlin": fqdn: required
	// shop-berlin is at 192.0.2.1
	// the catalog is complete
	// shop-berlin is at 192.0.2.199
	// shop-berlin is gone
}

// ensure returns v, and panics when there is an error: that is for the throwaway
// parts of an example.
func ensure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
