package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/networkservicemesh/api/pkg/api/registry"
	"github.com/networkservicemesh/sdk/pkg/registry/common/dnsresolve"
	"github.com/networkservicemesh/sdk/pkg/registry/core/next"
	"github.com/networkservicemesh/sdk/pkg/registry/core/streamchannel"
	"github.com/networkservicemesh/sdk/pkg/tools/clienturlctx"
	"github.com/networkservicemesh/sdk/pkg/tools/interdomain"
)

const lookUp = 10 * time.Second // bounds the look-ups of one domain

// resolve asks the mesh's own resolver, as a registry does that is asked for a name of
// another domain, and prints where it would go: to that domain's registry, and as the
// URL of its endpoints to its manager's proxy.
func resolve(ctx context.Context, flags *flag.FlagSet, args []string) error {
	server := flags.String("dns", "", "address of the DNS server")
	domain := flags.String("domain", "", "name")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookUp)
	defer cancel()
	resolver := dnsresolve.WithResolver(&net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *server)
		},
	})

	var there seen
	services := next.NewNetworkServiceRegistryServer(dnsresolve.NewNetworkServiceRegistryServer(resolver), &serviceRegistry{seen: &there})
	service := &registry.NetworkService{Name: interdomain.Join("web", *domain)}
	if _, err := services.Register(ctx, service); err != nil {
		return err
	}
	fmt.Println("network services:", there.url)

	endpoints := next.NewNetworkServiceEndpointRegistryServer(dnsresolve.NewNetworkServiceEndpointRegistryServer(resolver), &endpointRegistry{seen: &there})
	found := make(chan *registry.NetworkServiceEndpointResponse, 1)
	query := &registry.NetworkServiceEndpointQuery{NetworkServiceEndpoint: &registry.NetworkServiceEndpoint{
		NetworkServiceNames: []string{interdomain.Join("web", *domain)},
	}}
	if err := endpoints.Find(query, streamchannel.NewNetworkServiceEndpointFindServer(ctx, found)); err != nil {
		return err
	}
	fmt.Println("endpoints:", there.url)
	endpoint := (<-found).GetNetworkServiceEndpoint()
	fmt.Println("endpoint:", endpoint.GetName(), endpoint.GetNetworkServiceNames(), endpoint.GetUrl())
	return nil
}

// seen is where the registry of the other domain was found.
type seen struct{ url *url.URL }

// serviceRegistry and endpointRegistry stand for the registry of the other domain: they
// note where the resolver has found it, and know one endpoint.
type serviceRegistry struct {
	registry.NetworkServiceRegistryServer

	*seen
}

func (s *serviceRegistry) Register(ctx context.Context, service *registry.NetworkService) (*registry.NetworkService, error) {
	s.url = clienturlctx.ClientURL(ctx)
	return service, nil
}

type endpointRegistry struct {
	registry.NetworkServiceEndpointRegistryServer

	*seen
}

func (e *endpointRegistry) Find(query *registry.NetworkServiceEndpointQuery, server registry.NetworkServiceEndpointRegistry_FindServer) error {
	e.url = clienturlctx.ClientURL(server.Context())
	return server.Send(&registry.NetworkServiceEndpointResponse{NetworkServiceEndpoint: &registry.NetworkServiceEndpoint{
		Name: "nse", NetworkServiceNames: query.GetNetworkServiceEndpoint().GetNetworkServiceNames(), Url: "tcp://192.0.2.1:80",
	}})
}
