package owner

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// token returns the token of the stream.
func (c *client) token() string {
	c.tb.Helper()
	header := must.Get(c.stream.Header())(c.tb)
	tokens := header.Get(wire.RenewalHeader)
	if len(tokens) != 1 || len(tokens[0]) < 26 {
		c.tb.Fatalf("the tokens of a stream are %q, expected one of at least 128 bits", tokens)
	}
	return tokens[0]
}

// renewStream renews the stream with the token on the connection, in either version,
// and returns the status.
func renewStream(tb testing.TB, conn *grpc.ClientConn, version wire.Version, token string) *status.Status {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, wire.RenewHeader, token)
	var receive func() error
	if version == wire.V1Alpha1 {
		stream, err := rdpb1.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
		if err != nil {
			return status.Convert(err)
		}
		receive = func() error { return stream.RecvMsg(new(rdpb1.StreamResponse)) }
	} else {
		stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
		if err != nil {
			return status.Convert(err)
		}
		receive = func() error { return stream.RecvMsg(new(rdpb.BidirectionalStream)) }
	}
	switch err := receive(); {
	case err == nil:
		tb.Fatal("a renewal was answered with a message")
	case !errors.Is(err, io.EOF):
		return status.Convert(err)
	}
	return status.New(codes.OK, "")
}

// TestRenewal renews the certificate of a stream, and tries to:
//
//  1. A renewal by the consumer of the stream, in any version and any number of times,
//     lets the stream outlive its certificate. It is no subscription, and counts as no
//     stream.
//  2. Tokens that are unknown, empty, or of a stream that has ended give NotFound.
//  3. A token that another consumer has stolen gives PermissionDenied, and a log line;
//     the stream goes on.
//  4. A consumer that may not subscribe any more gets Unauthenticated.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		upsert(t, f.registry, service("a", 1))
		leaf := func(id string, lifetime time.Duration) mtls.Leaf {
			return mtls.Leaf{Name: "test", URIs: []string{id}, Lifetime: time.Hour + lifetime} // counted from an hour before
		}
		old := f.dialAs(t, leaf(consumerID, time.Minute))
		c, ended, lost := subscribe(t, old), subscribe(t, old), subscribe(t, f.dialAs(t, leaf(strangerID, time.Minute)))
		c.nextN(2)
		ended.nextN(2)
		lost.nextN(2)
		tokens := map[string]bool{c.token(): true, ended.token(): true, lost.token(): true}
		if len(tokens) != 3 {
			t.Errorf("three streams have the tokens %v", tokens)
		}
		must.Do(t, ended.stream.CloseSend())
		ended.status()
		synctest.Wait()

		time.Sleep(time.Second)
		fresh, thief := f.dialAs(t, leaf(consumerID, time.Hour)), f.dialAs(t, leaf(strangerID, time.Hour))
		check := func(when string, conn *grpc.ClientConn, want codes.Code, token string) {
			t.Helper()
			for _, version := range []wire.Version{wire.V1Alpha1, wire.V1Alpha2} {
				if got := renewStream(t, conn, version, token); got.Code() != want {
					t.Errorf("%s, %v: %v, expected %v", when, version, got, want)
				}
			}
		}
		check("unknown token", fresh, codes.NotFound, "unknown")
		check("empty token", fresh, codes.NotFound, "")
		check("token of a stream that has ended", fresh, codes.NotFound, ended.token())
		check("stolen token", thief, codes.PermissionDenied, c.token())
		if n := f.logged.Count("renewal of a certificate refused"); n != 1 {
			t.Errorf("%d log lines tell of the thief, expected 1:\n%s", n, f.logged)
		}
		if strings.Contains(f.logged.String(), c.token()) {
			t.Error("the token is in the log")
		}
		check("renewal", fresh, codes.OK, c.token())
		check("renewal with an older certificate", old, codes.OK, c.token())

		time.Sleep(3 * time.Minute) // the certificates of the beginning have expired
		synctest.Wait()
		if stats := f.server.Stats().Catalogs[""]; stats.Consumers[wire.V1Alpha2] != 1 || len(stats.Ended) != 2 {
			t.Errorf("%d streams are open, and ended: %v; expected one, one that was closed, and one whose certificate has expired", stats.Consumers, stats.Ended)
		}
		if got := lost.status(); got.Code() != codes.Unavailable {
			t.Errorf("the stream that was not renewed ended with %v", got)
		}
		upsert(t, f.registry, service("a", 2))
		if got := c.next(); got != "upsert a 2" {
			t.Errorf("received %q, expected upsert a 2", got)
		}
		if n := len(f.server.renewals); n != 1 {
			t.Errorf("%d tokens are known, expected 1", n)
		}

		token := c.token()
		f.server.SetAllow([]federation.ID{idOf(t, strangerID)})
		check("consumer that is not allowed any more", fresh, codes.Unauthenticated, token)
		c.status()
		f.server.SetAllow([]federation.ID{idOf(t, consumerID)})
		check("token of a stream that was turned away", fresh, codes.NotFound, token)
		check("stranger that may not subscribe", thief, codes.Unauthenticated, token)
	})
}

// TestRenewalOfStreamThatEnds renews streams that have yet to end: of a catalog that has
// been replaced, and of a connection that is closed.
func TestRenewalOfStreamThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		old, conn := f.dial(t, consumerID), f.dial(t, consumerID)
		c := subscribe(t, old)
		c.next()
		token := c.token()
		ending := f.server.renewals[token]
		other := registry.New()
		f.server.SetCatalogs(map[string]*registry.Registry{"": other})
		c.status()
		synctest.Wait()
		f.server.renewals[token] = ending
		if got := renewStream(t, conn, wire.V1Alpha2, token); got.Code() != codes.Unavailable {
			t.Errorf("the catalog has been replaced: %v, expected Unavailable", got)
		}
		f.server.SetCatalogs(map[string]*registry.Registry{"": f.registry})
		if got := renewStream(t, conn, wire.V1Alpha2, token); got.Code() != codes.OK {
			t.Errorf("the catalog is as before: %v, expected OK", got)
		}
		old.Close()
		synctest.Wait()
		if got := renewStream(t, conn, wire.V1Alpha2, token); got.Code() != codes.NotFound {
			t.Errorf("the connection is closed: %v, expected NotFound", got)
		}
	})
}
