package owner

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// TestSetAllow replaces the identities that may subscribe:
//
//  1. The streams of a consumer that is no longer allowed end with Unauthenticated,
//     in both versions; those of other consumers go on.
//  2. A consumer that is not allowed gets no stream, and is logged.
//  3. A consumer that is allowed again is served again.
//  4. An empty list allows no consumer, instead of all of them.
func TestSetAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		consumer, stranger := idOf(t, consumerID), idOf(t, strangerID)
		f := start(t, nil)
		upsert(t, f.registry, service("a", 1))
		conns := map[federation.ID]*grpc.ClientConn{consumer: f.dial(t, consumerID), stranger: f.dial(t, strangerID)}
		served := func(id federation.ID) *client {
			t.Helper()
			c := subscribe(t, conns[id])
			if diff := cmp.Diff([]string{"upsert a 1", "end"}, c.nextN(2)); diff != "" {
				t.Errorf("unexpected responses (-want +got):\n%s", diff)
			}
			return c
		}
		refused := func(c *client) {
			t.Helper()
			if got := c.status(); got.Code() != codes.Unauthenticated || !strings.Contains(got.Message(), "may not subscribe") {
				t.Errorf("stream ended with %v, expected Unauthenticated: ... may not subscribe", got)
			}
		}

		kept, lost := served(consumer), served(stranger)
		silent := open(t, conns[stranger]) // has not sent the initial request
		old := subscribe1(t, conns[stranger])
		synctest.Wait()
		f.server.SetAllow([]federation.ID{consumer})
		refused(lost)
		refused(silent)
		var err error
		for err == nil {
			_, err = old.stream.Recv()
		}
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("the stream of v1alpha1 ended with %v, expected Unauthenticated", err)
		}
		refused(subscribe(t, conns[stranger]))
		if _, err := subscribe1(t, conns[stranger]).stream.Recv(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a new stream of v1alpha1 ended with %v, expected Unauthenticated", err)
		}
		if n := f.logged.Count("carries no identity that is allowed"); n != 2 {
			t.Errorf("%d log lines tell of the stranger, expected 2:\n%s", n, f.logged)
		}
		if n := f.logged.Count("not allowed any more"); n != 3 {
			t.Errorf("%d log lines tell of streams that end, expected 3:\n%s", n, f.logged)
		}
		upsert(t, f.registry, service("a", 2))
		if got := kept.next(); got != "upsert a 2" {
			t.Errorf("who is still allowed received %q, expected upsert a 2", got)
		}
		upsert(t, f.registry, service("a", 1))

		f.server.SetAllow([]federation.ID{stranger})
		refused(kept)
		refused(subscribe(t, conns[consumer]))
		lost = served(stranger)

		f.server.SetAllow(nil)
		refused(lost)
		refused(subscribe(t, conns[consumer]))
		refused(subscribe(t, conns[stranger]))
	})
}

// TestSetAllowKeepsConsumerWithSecondIdentity disallows one of the two identities of
// a consumer.
func TestSetAllowKeepsConsumerWithSecondIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Allow = []federation.ID{idOf(t, consumerID)} })
		c := subscribe(t, f.dialAs(t, mtls.Leaf{Name: "test", URIs: []string{consumerID}, DNSNames: []string{"consumer.example"}}))
		c.next()
		f.server.SetAllow([]federation.ID{idOf(t, "consumer.example")})
		upsert(t, f.registry, service("a", 1))
		if got := c.next(); got != "upsert a 1" {
			t.Errorf("received %q, expected upsert a 1", got)
		}
	})
}
