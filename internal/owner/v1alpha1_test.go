package owner

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// client1 is a consumer of v1alpha1 that speaks raw messages.
type client1 struct {
	tb     testing.TB
	stream rdpb1.DiscoveryService_EstablishStreamClient
}

// subscribe1 opens a stream, with these pairs in its header, and sends the initial request.
func subscribe1(tb testing.TB, conn *grpc.ClientConn, pairs ...string) *client1 {
	tb.Helper()
	ctx := metadata.AppendToOutgoingContext(tb.Context(), append(pairs, wire.WindowHeader, strconv.Itoa(wire.MaxWindow))...)
	c := &client1{tb, must.Get(rdpb1.NewDiscoveryServiceClient(conn).EstablishStream(ctx))(tb)}
	c.request(wire.SubscribeV1Alpha1())
	return c
}

func (c *client1) request(r *rdpb1.StreamRequest) {
	c.tb.Helper()
	if err := c.stream.Send(r); err != nil && !errors.Is(err, io.EOF) {
		c.tb.Fatal(err)
	}
}

// receive returns the next response and what it says, as "CREATE web 2",
// "DELETE web" or "UNKNOWN".
func (c *client1) receive() (*rdpb1.StreamResponse, string) {
	c.tb.Helper()
	m := must.Get(c.stream.Recv())(c.tb)
	event := must.Get(wire.DecodeV1Alpha1(m))(c.tb)
	text := show(event)
	_, rest, _ := strings.Cut(text, " ")
	return m, strings.TrimSpace(m.GetOperation().String() + " " + rest)
}

// nextN receives that many responses and acknowledges each.
func (c *client1) nextN(n int) []string {
	c.tb.Helper()
	var got []string
	for range n {
		response, text := c.receive()
		got = append(got, text)
		c.request(wire.AnswerV1Alpha1(response.GetNonce(), nil))
	}
	return got
}

func TestSubscriptionV1Alpha1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		set(t, f.registry, []*federation.Service{expressible("b", 1), expressible("a", 1)})
		c := subscribe1(t, f.dial(t, consumerID))
		header := must.Get(c.stream.Header())(t)
		if diff := cmp.Diff([]string{wire.CatalogEndMarked}, header.Get(wire.CatalogEndHeader)); diff != "" {
			t.Errorf("unexpected header (-want +got):\n%s", diff)
		}
		response, text := c.receive()
		c.request(wire.AnswerV1Alpha1(response.GetNonce(), &federation.InvalidError{Rule: "not ours"}))
		got := append([]string{text}, c.nextN(2)...)
		upsert(t, f.registry, expressible("c", 1))
		upsert(t, f.registry, expressible("a", 2))
		f.registry.Delete("b")
		got = append(got, c.nextN(3)...)
		upsert(t, f.registry, expressible("b", 2))
		got = append(got, c.nextN(1)...)
		want := []string{"CREATE a 1", "CREATE b 1", "UNKNOWN", "CREATE c 1", "UPDATE a 2", "DELETE b", "CREATE b 2"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected responses (-want +got):\n%s", diff)
		}
		synctest.Wait()
		for _, line := range []string{`service=a error="not ours"`, "consumer has the whole catalog"} {
			if n := f.logged.Count(line); n != 1 {
				t.Errorf("%d log lines have %q, expected 1:\n%s", n, line, f.logged)
			}
		}
		c.request(wire.AnswerV1Alpha1(response.GetNonce(), nil)) // a second answer
		if _, err := c.stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("the stream ended with %v, expected InvalidArgument", err)
		}
	})
}

// TestServiceThatV1Alpha1CannotExpress publishes services without a SAN. Consumers of
// v1alpha1 do not get them, and no room in the window is taken. As they would deny what
// they do not have, they are told the end of the catalog only when they have all of it.
// Consumers of v1alpha2 get all services.
func TestServiceThatV1Alpha1CannotExpress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		audit := &testlog.Buffer{}
		f := start(t, func(c *Config) { c.Audit = audit.Logger() })
		set(t, f.registry, []*federation.Service{service("a", 1), expressible("b", 1), service("c", 1)})
		conn := f.dial(t, consumerID)
		newer := subscribe(t, conn)
		if diff := cmp.Diff([]string{"upsert a 1", "upsert b 1", "upsert c 1", "end"}, newer.nextN(4)); diff != "" {
			t.Errorf("v1alpha2 (-want +got):\n%s", diff)
		}
		c := subscribe1(t, conn)
		expect := func(withheld int, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, c.nextN(len(want))); diff != "" {
				t.Errorf("unexpected responses (-want +got):\n%s", diff)
			}
			synctest.Wait()
			if got := f.server.Stats().Catalogs[""].Withheld; got[wire.V1Alpha1] != withheld || got[wire.V1Alpha2] != 0 {
				t.Errorf("%v are withheld, expected %d of v1alpha1", got, withheld)
			}
		}
		expect(2, "CREATE b 1")

		upsert(t, f.registry, service("a", 2)) // still withheld
		upsert(t, f.registry, expressible("d", 1))
		expect(2, "CREATE d 1")
		upsert(t, f.registry, expressible("a", 3)) // can be expressed now
		expect(1, "CREATE a 3")
		upsert(t, f.registry, expressible("a", 4))
		expect(1, "UPDATE a 4")
		upsert(t, f.registry, service("a", 5)) // can no longer be expressed
		expect(2, "DELETE a")
		upsert(t, f.registry, service("a", 6)) // withheld
		f.registry.Delete("a")                 // unknown to consumers of v1alpha1
		synctest.Wait()
		f.registry.Delete("c") // and so is this
		expect(0, "UNKNOWN")   // which was the last one
		upsert(t, f.registry, expressible("c", 2))
		expect(0, "CREATE c 2")
		f.registry.Delete("c")
		expect(0, "DELETE c")

		// A catalog that was complete is so no more.
		upsert(t, f.registry, service("c", 3))
		if _, err := c.stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Fatalf("the stream ended with %v, expected Unavailable", err)
		}
		c = subscribe1(t, conn)
		expect(1, "CREATE b 1", "CREATE d 1")
		other := expressible("c", 4)
		other.Instances[0].Metadata = []federation.Pair{{Key: "SNI", Value: "elsewhere"}}
		upsert(t, f.registry, other)
		synctest.Wait()
		upsert(t, f.registry, expressible("c", 5))
		expect(0, "CREATE c 5", "UNKNOWN")
		upsert(t, f.registry, service("d", 2)) // which it has
		if _, err := c.stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Fatalf("the stream ended with %v, expected Unavailable", err)
		}
		if n := audit.Count("service=a reason=\"the version of the API cannot express it\""); n != 1 {
			t.Errorf("the audit has %d lines of what it cannot express, expected 1:\n%s", n, audit)
		}
		for line, want := range map[string]int{
			"cannot be expressed in a version of the API":                6,
			`service=a error="v1alpha1 requires a SAN; add one to sans"`: 2,
			`service=c error="v1alpha1 requires a SAN; add one to sans"`: 3,
		} {
			if n := f.logged.Count(line); n != want {
				t.Errorf("%d log lines have %q, expected %d:\n%s", n, line, want, f.logged)
			}
		}
	})
}
