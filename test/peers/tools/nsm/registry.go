package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/golang-jwt/jwt/v4"
	"github.com/networkservicemesh/sdk/pkg/registry/chains/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// serve serves the chain of the mesh's own registry in memory.
func serve(ctx context.Context, flags *flag.FlagSet, args []string) error {
	listen := flags.String("listen", "127.0.0.1:0", "address")
	expiration := flags.Duration("expiration", time.Minute, "how long an endpoint lives at most without a refresh")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	memory.NewServer(ctx, newToken,
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

// newToken returns a token that nobody verifies; the SDK reads its subject all the same.
func newToken(credentials.AuthInfo) (string, time.Time, error) {
	until := time.Now().Add(10 * time.Minute)
	claims := jwt.RegisteredClaims{Subject: "spiffe://nsm.test/anybody", ExpiresAt: jwt.NewNumericDate(until)}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("no secret"))
	return signed, until, err
}
