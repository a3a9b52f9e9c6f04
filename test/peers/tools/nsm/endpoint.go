package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/networkservicemesh/api/pkg/api/registry"
	"github.com/networkservicemesh/sdk/pkg/registry/chains/client"
	"github.com/networkservicemesh/sdk/pkg/registry/core/next"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

const oneCall = 500 * time.Millisecond // by as much earlier than expiration_time a registry ends a registration

// register registers endpoints by the mesh's own client, which refreshes them until
// SIGTERM, and then unregisters them. Whoever kills it leaves them to expire.
func register(ctx context.Context, flags *flag.FlagSet, args []string) error {
	registryURL := flags.String("registry", "", "URL")
	name := flags.String("name", "", "of the endpoint; with -count it is followed by - and a number")
	services := flags.String("services", "", "names of network services, with commas")
	place := flags.String("url", "", "of the endpoint")
	labels := flags.String("labels", "", "KEY=VALUE, with commas, for each network service")
	count := flags.Int("count", 0, "of endpoints")
	if err := flags.Parse(args); err != nil {
		return err
	}
	at, err := url.Parse(*registryURL)
	if err != nil {
		return err
	}
	background := context.WithoutCancel(ctx) // what has been registered is unregistered after SIGTERM
	c := client.NewNetworkServiceEndpointRegistryClient(background,
		client.WithClientURL(at), client.WithDialTimeout(oneCall), client.WithNSEAdditionalFunctionality(new(hasty)),
		client.WithDialOptions(grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true))))
	var registered []*registry.NetworkServiceEndpoint
	for _, each := range names(*name, *count) {
		endpoint := &registry.NetworkServiceEndpoint{
			Name: each, NetworkServiceNames: strings.Split(*services, ","), Url: *place,
			NetworkServiceLabels: make(map[string]*registry.NetworkServiceLabels),
		}
		for _, service := range endpoint.GetNetworkServiceNames() {
			endpoint.NetworkServiceLabels[service] = &registry.NetworkServiceLabels{Labels: pairs(*labels)}
		}
		// A deadline here would be that of each refresh, attempts included: the client would
		// give up for good when the registry is away for longer.
		if endpoint, err = c.Register(background, endpoint); err != nil {
			return err
		}
		registered = append(registered, endpoint)
		fmt.Println("registered", endpoint.GetName(), "until", endpoint.GetExpirationTime().AsTime().Format(time.RFC3339Nano))
	}
	fmt.Println("all registered")
	<-ctx.Done()
	for _, endpoint := range registered {
		call, cancel := context.WithTimeout(background, oneCall)
		_, why := c.Unregister(call, endpoint)
		cancel()
		err = errors.Join(err, why)
	}
	return err
}

// hasty gives each attempt to register the deadline oneCall, instead of 15 seconds.
type hasty struct{}

func (*hasty) Register(ctx context.Context, in *registry.NetworkServiceEndpoint, options ...grpc.CallOption) (*registry.NetworkServiceEndpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, oneCall)
	defer cancel()
	return next.NetworkServiceEndpointRegistryClient(ctx).Register(ctx, in, options...)
}

func (*hasty) Find(ctx context.Context, query *registry.NetworkServiceEndpointQuery, options ...grpc.CallOption) (registry.NetworkServiceEndpointRegistry_FindClient, error) {
	return next.NetworkServiceEndpointRegistryClient(ctx).Find(ctx, query, options...)
}

func (*hasty) Unregister(ctx context.Context, in *registry.NetworkServiceEndpoint, options ...grpc.CallOption) (*emptypb.Empty, error) {
	return next.NetworkServiceEndpointRegistryClient(ctx).Unregister(ctx, in, options...)
}

// names returns one name, or count of them with numbers.
func names(name string, count int) []string {
	if count == 0 {
		return []string{name}
	}
	all := make([]string, count)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", name, i)
	}
	return all
}

func pairs(text string) map[string]string {
	all := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			all[key] = value
		}
	}
	return all
}
