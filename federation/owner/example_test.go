package owner_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
)

// shop is a row of this program's own data.
type shop struct {
	city, address string
	port          uint16
}

// service returns what consumers get to know of the shop. It need not be valid.
func (s shop) service() (*federation.Service, error) {
	fqdn, err := federation.ParseFQDN(s.city + ".shops.fed.example")
	if err != nil {
		return nil, fmt.Errorf("shop %q: %w", s.city, err)
	}
	address, err := federation.ParseAddress(s.address)
	if err != nil {
		return nil, fmt.Errorf("shop %q: %w", s.city, err)
	}
	return &federation.Service{
		Name:      "shop-" + s.city,
		FQDN:      fqdn,
		Endpoints: []federation.Endpoint{{Address: address, Port: s.port}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}, nil
}

// publish serves the shops to every consumer that the credentials accept, until
// ctx ends. To publish changes, call Set again, or Upsert and Delete.
func publish(ctx context.Context, listener net.Listener, credentials credentials.TransportCredentials, shops []shop) error {
	var services []*federation.Service
	for _, s := range shops {
		service, err := s.service()
		if err != nil {
			return err
		}
		services = append(services, service)
	}
	registry := owner.NewRegistry()
	if _, err := registry.Set(services); err != nil {
		return err // names each service that is not valid, with the reason
	}
	server, err := owner.New(owner.Config{Registry: registry, Credentials: credentials, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return server.Serve(ctx, listener) // which returns nil when ctx ends
}

// A program publishes from its own data, and handles every error. In a real one the
// credentials are those of mtls.Load, for the files of its certificate; here they
// and a consumer, which prints what it gets, are throwaway ones.
func Example() {
	with := func(shops ...shop) {
		ctx, listener, credentials, wait := demonstration()
		defer wait()
		if err := publish(ctx, listener, credentials, shops); err != nil {
			fmt.Println(err)
		}
	}
	with(shop{"berlin", "192.0.2.1", 443}, shop{"paris", "192.0.2.2", 8443})
	with(shop{"berlin", "192.0.2.1", 443}, shop{"oslo", "192.0.2.3", 0})
	with(shop{"rome", "192.0.2.256", 443})
	// Output:
	// upsert shop-berlin at berlin.shops.fed.example.
	// upsert shop-paris at paris.shops.fed.example.
	// the catalog is complete
	// service "shop-oslo": endpoints[0].port: 0 is not in 1 to 65535
	// shop "rome": address is neither an IP address nor a host name: last label is a number, so the name looks like an address
}
