package owner

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// publish sends a response, as a peer does that is an owner as well, and in the same
// message the request if it is not nil.
func (c *client) publish(nonce string, request *rdpb.StreamRequest) {
	c.tb.Helper()
	event := wire.Event{Operation: wire.Upsert, Name: "theirs", Service: service("theirs", 1)}
	response := must.Get(wiretest.Response(event, nonce, "theirs"))(c.tb)
	must.Do(c.tb, c.stream.Send(&rdpb.BidirectionalStream{Request: request, Response: response}))
}

// say receives a message, acknowledges it if it is a response, and renders it.
func (c *client) say() string {
	c.tb.Helper()
	m := must.Get(c.stream.Recv())(c.tb)
	if request := m.GetRequest(); request != nil {
		return fmt.Sprintf("%s to %s: %s", codes.Code(request.GetStatus().GetCode()), request.GetResponseNonce(), request.GetContext())
	}
	event := must.Get(wire.Decode(m.GetResponse()))(c.tb)
	c.request(wire.Answer(m.GetResponse().GetNonce(), "session", nil))
	return show(event)
}

// TestPeerThatIsOwnerAndConsumer sends responses before it subscribes, while it owes
// an acknowledgement, and in one message with a request. Each of them is answered,
// and the peer gets the catalog and its changes like every consumer.
func TestPeerThatIsOwnerAndConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		upsert(t, f.registry, service("a", 1))
		c := open(t, f.dial(t, consumerID))
		var got []string
		c.publish("p1", nil)
		got = append(got, c.say())
		if err := c.stream.Send(&rdpb.BidirectionalStream{}); err != nil { // with neither part
			t.Fatal(err)
		}
		c.publish("p2", wire.Subscribe("session"))
		got = append(got, c.say())

		m, err := c.stream.Recv() // in flight, so nothing else of the catalog comes
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.GetResponse().GetResourceId())
		c.publish("", nil) // the public implementation has no nonces
		got = append(got, c.say())
		c.publish("p3", wire.Answer(m.GetResponse().GetNonce(), "session", nil))
		first, second := c.say(), c.say() // in any order
		if !strings.HasPrefix(first, "Unimplemented") {
			first, second = second, first
		}
		got = append(got, first, second)
		upsert(t, f.registry, service("a", 2))
		got = append(got, c.say())
		want := []string{
			"Unimplemented to p1: theirs", "Unimplemented to p2: theirs", "a", "Unimplemented to : theirs",
			"Unimplemented to p3: theirs", "alive", "upsert a 2",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected messages (-want +got):\n%s", diff)
		}
		synctest.Wait()
		if n := f.logged.Count("consumer publishes services"); n != 1 {
			t.Errorf("%d log lines tell of it, expected 1:\n%s", n, f.logged)
		}
	})
}

// stuckStream is the server's end of a stream of a peer that publishes without end
// and reads nothing.
type stuckStream struct {
	grpc.ServerStream

	ctx      context.Context //nolint:containedctx // gRPC asks the stream for its context
	received atomic.Int64
}

func (s *stuckStream) Context() context.Context   { return s.ctx }
func (*stuckStream) SendHeader(metadata.MD) error { return nil }

func (s *stuckStream) Send(*rdpb.BidirectionalStream) error {
	<-s.ctx.Done()
	return context.Cause(s.ctx)
}

func (s *stuckStream) Recv() (*rdpb.BidirectionalStream, error) {
	s.received.Add(1)
	return &rdpb.BidirectionalStream{Response: &rdpb.StreamResponse{Nonce: "n"}}, s.ctx.Err()
}

// TestAnswersThatWait publishes to an owner that cannot send. While one answer is being sent, the owner
// reads nothing.
func TestAnswersThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := must.Get(New(Config{Catalogs: map[string]*registry.Registry{"": registry.New()}, Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler)}))(t)
		info := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}}
		ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info}))
		stream := &stuckStream{ctx: ctx}
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := (serverV1Alpha2{server: server}).EstablishStream(stream); status.Code(err) != codes.Canceled {
				t.Errorf("the stream ended with %v, expected Canceled", err)
			}
		})
		synctest.Wait()
		if n := stream.received.Load(); n != 1 {
			t.Errorf("%d messages were read, expected 1", n)
		}
		cancel()
		serving.Wait()
		server.readers.Wait()
	})
}
