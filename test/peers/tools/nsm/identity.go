package main

import (
	"context"
	"time"

	"github.com/golang-jwt/jwt/v4"
	"github.com/networkservicemesh/sdk/pkg/tools/spiffejwt"
	"github.com/networkservicemesh/sdk/pkg/tools/token"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const tokenLifetime = 10 * time.Minute

// identity is how a program proves who it is: to its connections, and by a token in each
// call, as all programs of the mesh do.
type identity struct {
	server, client credentials.TransportCredentials
	token          token.GeneratorFunc
}

// newIdentity takes the identity from the SPIFFE agent at the socket, or makes up one
// for plain TCP where there is none.
func newIdentity(ctx context.Context, socket string) (identity, error) {
	if socket == "" {
		return identity{insecure.NewCredentials(), insecure.NewCredentials(), madeUp}, nil
	}
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(socket)))
	if err != nil {
		return identity{}, err
	}
	return identity{
		server: credentials.NewTLS(tlsconfig.MTLSServerConfig(source, source, tlsconfig.AuthorizeAny())),
		client: credentials.NewTLS(tlsconfig.MTLSClientConfig(source, source, tlsconfig.AuthorizeAny())),
		token:  spiffejwt.TokenGeneratorFunc(source, tokenLifetime),
	}, nil
}

// madeUp returns a token that nobody verifies; the SDK reads its subject all the same.
func madeUp(credentials.AuthInfo) (string, time.Time, error) {
	until := time.Now().Add(tokenLifetime)
	claims := jwt.RegisteredClaims{Subject: "spiffe://nsm.test/anybody", ExpiresAt: jwt.NewNumericDate(until)}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("no secret"))
	return signed, until, err
}
