package catalog_test

import (
	"fmt"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
)

// A service comes, its owner is lost, and it is kept until the retention ends.
func Example() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := catalog.New(catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour})
	show := func() {
		for _, change := range c.TakeChanges() {
			switch change.Kind() {
			case catalog.Offered:
				fmt.Println("offered:", change.Packed.Unpack().FQDN)
			case catalog.Confirmed:
				fmt.Println("offered again:", change.Name)
			case catalog.Gone:
				fmt.Println("gone:", change.Name, change.Cause)
			}
		}
		fmt.Println(c.Summary().State, c.Summary().Stale, "stale")
	}

	c.OpenStream(now)
	c.ExpectEndMarker() // the owner says when its catalog is complete
	for _, event := range []federation.Event{
		{Operation: federation.Upsert, Name: "shop", Service: exampleService("shop", "shop.fed.example")},
		{Operation: federation.End},
	} {
		if err := c.ApplyEvent(event, now); err != nil {
			fmt.Println(err)
		}
	}
	show()
	c.EndStream(now, now)
	show()
	c.AdvanceTo(now.Add(catalog.Grace))
	show()
	c.AdvanceTo(now.Add(time.Hour + time.Second))
	show()
	// Output:
	// offered: shop.fed.example.
	// synced 0 stale
	// synced 0 stale
	// stale 1 stale
	// gone: shop expired
	// expired 0 stale
}

func exampleService(name, fqdn string) *federation.Service {
	parsed, err := federation.ParseFQDN(fqdn)
	if err != nil {
		panic(err)
	}
	address, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		panic(err)
	}
	return &federation.Service{
		Name: name, FQDN: parsed,
		Endpoints: []federation.Endpoint{{Address: address, Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.TLS}},
	}
}
