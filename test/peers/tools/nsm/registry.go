package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/networkservicemesh/sdk/pkg/registry/chains/memory"
	"google.golang.org/grpc"
)

// serve serves the chain of the mesh's own registry in memory.
func serve(ctx context.Context, flags *flag.FlagSet, args []string) error {
	listen := flags.String("listen", "127.0.0.1:0", "address")
	expiration := flags.Duration("expiration", time.Minute, "how long an endpoint lives at most without a refresh")
	socket := flags.String("spiffe", "", "address of a SPIFFE agent; none: plain TCP")
	if err := flags.Parse(args); err != nil {
		return err
	}
	who, err := newIdentity(ctx, *socket)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.Creds(who.server))
	memory.NewServer(ctx, who.token,
		memory.WithDefaultExpiration(*expiration),
		memory.WithProxyRegistryURL(&url.URL{Scheme: "tcp", Host: "127.0.0.1:1"}), // names of other domains lead nowhere
	).Register(server)
	fmt.Println("serving at", listener.Addr())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		server.Stop()
		<-ended
	}
	return err
}
