package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

const (
	ownerID    = "spiffe://owner.example/owner"
	consumerID = "spiffe://consumer.example/consumer"
	strangerID = "spiffe://consumer.example/stranger"
)

// fixture is a running owner, reached over memory with mutual TLS.
type fixture struct {
	server    *Server
	registry  *registry.Registry
	authority *mtls.Authority
	listener  *bufconn.Listener
	logged    *testlog.Buffer
	stop      func() // ends Serve and waits for it
}

// start runs an owner until the test ends, or until its stop is called.
func start(tb testing.TB, configure func(*Config)) *fixture {
	tb.Helper()
	f := &fixture{registry: registry.New(), authority: pki.New(tb), listener: bufconn.Listen(1 << 20), logged: &testlog.Buffer{}}
	c := Config{
		Catalogs:    map[string]*registry.Registry{"": f.registry},
		Credentials: f.source(tb, ownerID).Server(),
		Logger:      f.logged.Logger(),
		Window:      1,
	}
	if configure != nil {
		configure(&c)
	}
	f.server = must.Get(New(c))(tb)
	end := must.Run(tb, func(ctx context.Context) error { return f.server.Serve(ctx, f.listener) })
	f.stop = sync.OnceFunc(func() {
		end()
		if n := registrytest.Subscribers(f.registry); n != 0 {
			tb.Errorf("%d subscriptions are left behind", n)
		}
	})
	tb.Cleanup(f.stop)
	return f
}

// source returns the certificate files of the party with that identity.
func (f *fixture) source(tb testing.TB, id string) *mtls.Source {
	tb.Helper()
	return f.sourceOf(tb, mtls.Leaf{Name: "test", URIs: []string{id}})
}

func (f *fixture) sourceOf(tb testing.TB, leaf mtls.Leaf) *mtls.Source {
	tb.Helper()
	return pki.Source(tb, f.authority, leaf)
}

// credentials returns those of a consumer.
func (f *fixture) credentials(tb testing.TB, leaf mtls.Leaf) credentials.TransportCredentials {
	tb.Helper()
	return f.sourceOf(tb, leaf).Client("owner", []federation.ID{idOf(tb, ownerID)})
}

// dial returns a connection of the consumer with that identity.
func (f *fixture) dial(tb testing.TB, id string, options ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	return f.dialAs(tb, mtls.Leaf{Name: "test", URIs: []string{id}}, options...)
}

// dialAs returns a connection of a consumer with that certificate.
func (f *fixture) dialAs(tb testing.TB, leaf mtls.Leaf, options ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	options = append([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return f.listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(f.credentials(tb, leaf)),
	}, options...)
	conn := must.Get(grpc.NewClient("passthrough:///owner", options...))(tb)
	tb.Cleanup(func() { conn.Close() })
	return conn
}

// client is a consumer that speaks raw messages.
type client struct {
	tb     testing.TB
	stream rdpb.DiscoveryService_EstablishStreamClient
}

// open opens a stream on the connection, with these pairs in its header, and sends nothing. It
// takes as many responses ahead as the owner sends, unless the pairs say something else.
func open(tb testing.TB, conn *grpc.ClientConn, pairs ...string) *client {
	tb.Helper()
	ctx := metadata.AppendToOutgoingContext(tb.Context(), append(pairs, wire.WindowHeader, strconv.Itoa(wire.MaxWindow))...)
	return &client{tb, must.Get(rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx))(tb)}
}

// subscribe opens a stream and sends the initial request.
func subscribe(tb testing.TB, conn *grpc.ClientConn, pairs ...string) *client {
	tb.Helper()
	c := open(tb, conn, pairs...)
	c.request(wire.Subscribe("session"))
	return c
}

func (c *client) request(r *rdpb.StreamRequest) {
	c.tb.Helper()
	if err := c.stream.Send(&rdpb.BidirectionalStream{Request: r}); err != nil && !errors.Is(err, io.EOF) {
		c.tb.Fatal(err)
	}
}

// receive returns the next response and what it says, rendered by show.
func (c *client) receive() (*rdpb.StreamResponse, string) {
	c.tb.Helper()
	m := must.Get(c.stream.Recv())(c.tb)
	event := must.Get(wire.Decode(m.GetResponse()))(c.tb)
	if event.Operation == wire.Alive {
		event.Operation = wire.End
	}
	return m.GetResponse(), show(event)
}

// next receives a response and acknowledges it.
func (c *client) next() string {
	c.tb.Helper()
	response, text := c.receive()
	c.request(wire.Answer(response.GetNonce(), response.GetContext(), nil))
	return text
}

func (c *client) nextN(n int) []string {
	c.tb.Helper()
	var got []string
	for range n {
		got = append(got, c.next())
	}
	return got
}

// status receives until the stream ends, and returns its status.
func (c *client) status() *status.Status {
	c.tb.Helper()
	for {
		if _, err := c.stream.Recv(); errors.Is(err, io.EOF) {
			return status.New(codes.OK, "")
		} else if err != nil {
			return status.Convert(err)
		}
	}
}

func TestNewRefusesIncompleteConfig(t *testing.T) {
	whole := Config{Catalogs: map[string]*registry.Registry{"": registry.New()}, Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler)}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no credentials", func(c *Config) { c.Credentials = nil }, "owner needs credentials: there is no unsecured mode"},
		{"largest message below", func(c *Config) { c.MaxMessage = -1 }, "largest message is -1 bytes, it must not be negative"},
		{"window below", func(c *Config) { c.Window = -1 }, "window is -1, it must be 1 to 1024"},
		{"window above", func(c *Config) { c.Window = 1025 }, "window is 1025, it must be 1 to 1024"},
	} {
		c := whole
		tt.change(&c)
		if _, err := New(c); err == nil || err.Error() != tt.want {
			t.Errorf("%s: error is %v, expected %q", tt.name, err, tt.want)
		}
	}
	if s := must.Get(New(whole))(t); s.config.Window != 256 || s.config.MaxMessage != 16<<20 {
		t.Errorf("the defaults are a window of %d and messages of %d bytes", s.config.Window, s.config.MaxMessage)
	}
	whole.Window = MaxWindow
	must.Get(New(whole))(t)
}

// TestSubscription follows a catalog. Each response has the whole service, also where the
// consumer has an earlier version of it.
func TestSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		sent := make(map[string]*federation.Service)
		full := func(name string, version int) *federation.Service {
			s := service(name, version)
			s.Tags, s.SANs = []string{"tag"}, []string{"spiffe://owner.example/" + name}
			s.Labels = []federation.Pair{{Key: "tier", Value: "public"}}
			s.Endpoints[0].Labels, s.Endpoints[0].Description = []string{"eu"}, "rack"
			in := &s.Instances[0]
			in.Metadata, in.EndpointSelector, in.Description = []federation.Pair{{Key: "team", Value: "pay"}}, []string{"eu"}, "newest"
			sent[fmt.Sprintf("upsert %s %d", name, version)] = s
			return s
		}
		set(t, f.registry, []*federation.Service{full("b", 1), full("a", 1), full("c", 1)})
		c := open(t, f.dial(t, consumerID))

		// The announcement does not wait for a message.
		header := must.Get(c.stream.Header())(t)
		if diff := cmp.Diff([]string{wire.CatalogEndMarked}, header.Get(wire.CatalogEndHeader)); diff != "" {
			t.Errorf("unexpected header (-want +got):\n%s", diff)
		}

		c.request(wire.Subscribe("session 1"))
		nonces := make(map[string]bool)
		var got []string
		for i := range 8 {
			response, text := c.receive()
			if response.GetContext() != "session 1" || response.GetResourceUrl() != wire.ResourceURL {
				t.Errorf("response %d has context %q and resource_url %q", i, response.GetContext(), response.GetResourceUrl())
			}
			if nonces[response.GetNonce()] || response.GetNonce() == "" {
				t.Errorf("response %d has the nonce %q of another one, or none", i, response.GetNonce())
			}
			nonces[response.GetNonce()] = true
			got = append(got, text)
			if s := must.Get(wire.Decode(response))(t).Service; s != nil && !s.Equal(sent[text]) {
				t.Errorf("response %d has the service %+v, expected all of %+v", i, s, sent[text])
			}
			switch i {
			case 3: // the end; in flight while the catalog changes
				upsert(t, f.registry, full("d", 1))
				f.registry.Delete("a")
				upsert(t, f.registry, full("b", 2))
				upsert(t, f.registry, full("b", 2))
				upsert(t, f.registry, full("a", 3))
			case 6:
				f.registry.Delete("c")
			}
			c.request(wire.Answer(response.GetNonce(), "session 1", nil))
		}
		want := []string{"upsert a 1", "upsert b 1", "upsert c 1", "end", "upsert d 1", "upsert a 3", "upsert b 2", "delete c"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected responses (-want +got):\n%s", diff)
		}
		synctest.Wait()
		if n := f.logged.Count("consumer has the whole catalog"); n != 1 {
			t.Errorf("%d log lines tell of the whole catalog, expected 1:\n%s", n, f.logged)
		}
	})
}

// TestResponsesInFlight counts the responses to a consumer that reads and does not
// acknowledge. There is one in flight, as the specification says, unless the consumer takes more.
func TestResponsesInFlight(t *testing.T) {
	for _, tt := range []struct {
		window int
		takes  string // what the consumer says in its header
		want   int
	}{{0, "1024", 6}, {0, "256", 6}, {0, "4", 4}, {0, "", 1}, {0, "0", 1}, {1, "1024", 1}, {3, "1024", 3}, {64, "2", 2}, {64, "1025", 6}} {
		t.Run(fmt.Sprintf("%d and %q", tt.window, tt.takes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, func(c *Config) { c.Window = tt.window })
				set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1), service("c", 1), service("d", 1), service("e", 1)})
				c := subscribe(t, f.dial(t, consumerID), wire.WindowHeader, tt.takes)
				var mu sync.Mutex
				var nonces []string
				var reader sync.WaitGroup
				reader.Go(func() {
					for {
						m, err := c.stream.Recv()
						if err != nil {
							return
						}
						mu.Lock()
						nonces = append(nonces, m.GetResponse().GetNonce())
						mu.Unlock()
					}
				})
				received := func() []string {
					synctest.Wait()
					mu.Lock()
					defer mu.Unlock()
					return slices.Clone(nonces)
				}
				if got := received(); len(got) != tt.want {
					t.Errorf("%d responses are in flight, expected %d", len(got), tt.want)
				}
				time.Sleep(time.Hour) // no time-out replaces an acknowledgement
				got := received()
				if len(got) != tt.want {
					t.Errorf("%d responses are in flight after an hour, expected %d", len(got), tt.want)
				}
				// Acknowledged out of order, as by a consumer that works in parallel.
				for _, nonce := range slices.Backward(got) {
					c.request(wire.Answer(nonce, "session", nil))
				}
				if n, want := len(received()), min(2*tt.want, 6); n != want {
					t.Errorf("%d responses came after the acknowledgements, expected %d", n, want)
				}
				f.stop()
				reader.Wait()
			})
		})
	}
}

func TestRefusalIsLoggedOnceAndNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		refusal := &federation.InvalidError{Service: "a", Field: "fqdn", Reason: federation.ReasonOutOfZone, Rule: "not \x1b[31mours\n"}
		refuse := func(c *client) {
			t.Helper()
			response, text := c.receive()
			if !strings.HasPrefix(text, "upsert a") {
				t.Fatalf("received %q, expected service a", text)
			}
			c.request(wire.Answer(response.GetNonce(), response.GetContext(), refusal))
		}
		conn := f.dial(t, consumerID)
		for range 3 { // each stream gets it anew
			c := subscribe(t, conn)
			refuse(c)
			if diff := cmp.Diff([]string{"upsert b 1", "end"}, c.nextN(2)); diff != "" {
				t.Errorf("unexpected responses (-want +got):\n%s", diff)
			}
			must.Do(t, c.stream.CloseSend())
			if got := c.status(); got.Code() != codes.OK {
				t.Errorf("a stream that the consumer ends has the status %v, expected OK", got)
			}
		}
		line := `service=a error="fqdn: not \\x1b[31mours\\n"`
		if n := f.logged.Count("consumer refuses"); n != 1 || f.logged.Count(line) != 1 {
			t.Errorf("%d log lines tell of the refusal, expected 1 with %s:\n%s", n, line, f.logged)
		}

		c := subscribe(t, conn)
		refuse(c)
		c.nextN(2)
		upsert(t, f.registry, service("a", 2)) // refused for the same reason
		refuse(c)
		upsert(t, f.registry, service("a", 3)) // for another one
		refusal.Rule = "reserved"
		refuse(c)
		upsert(t, f.registry, service("a", 4)) // accepted, and then refused again
		c.next()
		upsert(t, f.registry, service("a", 5))
		refuse(c)
		synctest.Wait()
		if n := f.logged.Count("consumer refuses"); n != 3 {
			t.Errorf("%d log lines tell of refusals, expected 3:\n%s", n, f.logged)
		}
		if diff := cmp.Diff(map[string]uint64{"fqdn": 7}, f.server.Stats().Catalogs[""].Refused); diff != "" {
			t.Errorf("unexpected count of refusals (-want +got):\n%s", diff)
		}
	})
}

func TestBadRequestEndsTheStream(t *testing.T) {
	other := wire.Subscribe("session")
	other.ResourceUrl = "type.googleapis.com/other"
	for _, tt := range []struct {
		name     string
		requests []*rdpb.StreamRequest
		want     string // in the message
	}{
		{"other resource", []*rdpb.StreamRequest{other}, "resource_url"},
		{"answer first", []*rdpb.StreamRequest{wire.Answer("1", "session", nil)}, "the first request of a stream must have neither response_nonce nor status"},
		{"subscribed twice", []*rdpb.StreamRequest{wire.Subscribe("session"), wire.Subscribe("session")}, `response_nonce "" is not that of an unacknowledged response`},
		{"unknown nonce", []*rdpb.StreamRequest{wire.Subscribe("session"), wire.Answer("no\nnce", "session", nil)}, `response_nonce "no\nnce" is not that`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, nil)
				c := open(t, f.dial(t, consumerID))
				for _, r := range tt.requests {
					c.request(r)
					synctest.Wait()
				}
				got := c.status()
				if delayWith(t, codes.InvalidArgument, got.Err()) != parkingDelay || !strings.Contains(got.Message(), tt.want) {
					t.Errorf("status is %v, expected InvalidArgument with %q", got, tt.want)
				}
			})
		})
	}
}

// TestLargestRequest sends a message of 256 KiB, which is read, and one that is
// larger by a byte.
func TestLargestRequest(t *testing.T) {
	for over, want := range []codes.Code{codes.InvalidArgument, codes.ResourceExhausted} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, nil)
			c := open(t, f.dial(t, consumerID))
			m := &rdpb.BidirectionalStream{Request: wire.Subscribe("")}
			m.Request.Context = strings.Repeat("x", 256<<10-100)
			m.Request.Context += strings.Repeat("x", 256<<10+over-proto.Size(m))
			must.Do(t, c.stream.Send(m))
			if got := c.status(); got.Code() != want {
				t.Errorf("with %d bytes the status is %v, expected %v", proto.Size(m), got, want)
			}
		})
	}
}

// TestLargeHeaderIsRefused opens a stream with 16 KiB of metadata. The owner tells
// its limit when the connection begins, and a client of gRPC keeps to it.
func TestLargeHeaderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		conn := f.dial(t, consumerID)
		subscribe(t, conn).next() // the limit has arrived
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", 16<<10))
		stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil || !strings.Contains(err.Error(), "16384 bytes") {
			t.Errorf("error is %v, expected one with the limit of 16384 bytes", err)
		}
	})
}

func TestAuthorisation(t *testing.T) {
	allow := func(ids ...string) func(*Config) {
		return func(c *Config) {
			for _, text := range ids {
				id := must.Get(federation.ParseID(text))(t)
				c.Allow = append(c.Allow, id)
			}
		}
	}
	for _, tt := range []struct {
		name      string
		configure func(*Config)
		consumer  string
		allowed   bool
	}{
		{"every certificate", nil, strangerID, true},
		{"allowed", allow(strangerID, consumerID), consumerID, true},
		{"not allowed", allow(consumerID), strangerID, false},
		{"not quite", allow(consumerID), consumerID + "/sub", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, tt.configure)
				upsert(t, f.registry, service("a", 1))
				c := subscribe(t, f.dial(t, tt.consumer))
				if tt.allowed {
					if diff := cmp.Diff([]string{"upsert a 1", "end"}, c.nextN(2)); diff != "" {
						t.Errorf("unexpected responses (-want +got):\n%s", diff)
					}
					return
				}
				want := fmt.Sprintf("the identities [%s] of your certificate may not subscribe; have the owner allow one of them", tt.consumer)
				if _, err := c.stream.Recv(); status.Code(err) != codes.Unauthenticated || status.Convert(err).Message() != want {
					t.Errorf("the first response is the error %v, expected Unauthenticated: %s", err, want)
				}
				if f.logged.Count("consumer turned away") != 1 {
					t.Errorf("the refusal is not logged:\n%s", f.logged)
				}
			})
		})
	}
}

// TestConsumerWithoutIdentity subscribes with a certificate in which there is no
// identity. Every certificate may subscribe until there is a list.
func TestConsumerWithoutIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		c := subscribe(t, f.dialAs(t, mtls.Leaf{Name: "test"}))
		c.next()
		if n := f.logged.Count(`msg="consumer subscribed" consumer="without identity"`); n != 1 {
			t.Errorf("%d log lines tell of the consumer, expected 1:\n%s", n, f.logged)
		}
		f.server.SetAllow([]federation.ID{idOf(t, consumerID)})
		if delay := delayWith(t, codes.Unauthenticated, c.status().Err()); delay != parkingDelay {
			t.Errorf("the delay is %v", delay)
		}
	})
}

func TestConsumerWithoutCertificateIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		conn := f.dial(t, consumerID, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if _, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("opening a stream without TLS gave %v, expected Unavailable", err)
		}
	})
	// Only credentials that do not ask for a certificate, a mistake of the caller,
	// let such a consumer get so far.
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Credentials = insecure.NewCredentials() })
		c := subscribe(t, f.dial(t, consumerID, grpc.WithTransportCredentials(insecure.NewCredentials())))
		if got := c.status(); got.Code() != codes.Unauthenticated {
			t.Errorf("status is %v, expected Unauthenticated", got)
		}
	})
}

func TestShutdownEndsStreamsWithUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		upsert(t, f.registry, service("a", 1))
		conn := f.dial(t, consumerID)
		streams := map[string]*client{
			"silent":      open(t, conn), // has not sent the initial request
			"synced":      subscribe(t, conn),
			"in flight":   subscribe(t, conn), // owes an acknowledgement
			"not reading": subscribe(t, conn),
		}
		streams["synced"].nextN(2)
		streams["in flight"].receive()
		synctest.Wait()
		begun := time.Now()
		f.stop()
		if took := time.Since(begun); took >= gate.ShutdownTimeout {
			t.Errorf("the owner took %v to stop, expected less than %v", took, gate.ShutdownTimeout)
		}
		for name, c := range streams {
			if got := c.status(); got.Code() != codes.Unavailable || got.Message() != "owner is shutting down" {
				t.Errorf("stream %q ended with %v, expected Unavailable: owner is shutting down", name, got)
			}
		}
	})
}

// large returns a service of about 40 kB.
func large(name string, version int) *federation.Service {
	s := service(name, version)
	for i := range 10 {
		s.Labels = append(s.Labels, federation.Pair{Key: strconv.Itoa(i), Value: strings.Repeat("x", 4000)})
	}
	return s
}

func TestShutdownDoesNotWaitForAConsumerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Window = MaxWindow })
		for i := range 200 {
			upsert(t, f.registry, large(fmt.Sprintf("s%d", i), 1))
		}
		subscribe(t, f.dial(t, consumerID)) // blocks the owner in a send
		synctest.Wait()
		begun := time.Now()
		f.stop()
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("the owner took %v to stop, expected 5 s", took)
		}
	})
}

// TestShutdownDoesNotWaitForAHandshake stops an owner while a consumer is silent: before its
// TLS handshake, and after it, where HTTP/2 would begin.
func TestShutdownDoesNotWaitForAHandshake(t *testing.T) {
	for name, shakeHands := range map[string]bool{"before the handshake": false, "after the handshake": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, nil)
				conn := must.Get(f.listener.DialContext(t.Context()))(t)
				defer conn.Close()
				if shakeHands {
					conn, _, err := f.credentials(t, mtls.Leaf{Name: "test", URIs: []string{consumerID}}).ClientHandshake(t.Context(), "owner.example", conn)
					must.Do(t, err)
					defer conn.Close()
				}
				synctest.Wait()
				begun := time.Now()
				f.stop()
				if took := time.Since(begun); took > 0 {
					t.Errorf("the owner took %v to stop, expected that it stops at once", took)
				}
			})
		})
	}
}

func TestStreamsOfOneConnectionAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		conn := f.dial(t, consumerID)
		first := subscribe(t, conn)
		first.next()
		for range 7 {
			subscribe(t, conn).next()
		}
		var opened atomic.Bool
		var waiting sync.WaitGroup
		waiting.Go(func() {
			subscribe(t, conn).next()
			opened.Store(true)
		})
		synctest.Wait()
		if opened.Load() {
			t.Error("the ninth stream of a connection is served")
		}
		must.Do(t, first.stream.CloseSend())
		waiting.Wait()
		// Another connection is another consumer.
		subscribe(t, f.dial(t, consumerID)).next()
	})
}

func TestServeWithAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	server := must.Get(New(Config{Catalogs: map[string]*registry.Registry{"": registry.New()}, Credentials: insecure.NewCredentials(), Logger: slog.New(slog.DiscardHandler)}))(t)
	if err := server.Serve(ctx, bufconn.Listen(1)); err != nil {
		t.Errorf("Serve failed with %v, expected nil", err)
	}
}

// mutedConn is a connection that discards what is written once it is mute.
type mutedConn struct {
	net.Conn
	mute *atomic.Bool
}

func (c mutedConn) Write(p []byte) (int, error) {
	if c.mute.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func TestStreamOfAVanishedConsumerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		var mute atomic.Bool
		c := subscribe(t, f.dial(t, consumerID, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := f.listener.DialContext(ctx)
			return mutedConn{conn, &mute}, err
		})))
		c.next()
		time.Sleep(time.Hour)
		if n := registrytest.Subscribers(f.registry); n != 1 {
			t.Errorf("an idle consumer has %d subscriptions after an hour, expected 1", n)
		}
		time.Sleep(30 * time.Second) // half the time between two pings
		mute.Store(true)
		muted := time.Now()
		for registrytest.Subscribers(f.registry) > 0 && time.Since(muted) < time.Hour {
			time.Sleep(time.Second)
		}
		if took := time.Since(muted); took < 50*time.Second || took > 51*time.Second {
			t.Errorf("the stream of a consumer that is gone ended after %v, expected 30 s to the next ping and 20 s for its answer", took)
		}
	})
}

// BenchmarkFullSync downloads a catalog of 10,000 services, with one message in flight
// and with a window.
func BenchmarkFullSync(b *testing.B) {
	const services = 10_000
	for _, window := range []int{1, 64} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			f := start(b, func(c *Config) { c.Window = window })
			set(b, f.registry, catalogOf(services))
			conn := f.dial(b, consumerID)
			for b.Loop() {
				c := subscribe(b, conn)
				for range services + 1 {
					m := must.Get(c.stream.Recv())(b)
					c.request(wire.Answer(m.GetResponse().GetNonce(), "session", nil))
				}
				must.Do(b, c.stream.CloseSend())
				c.status()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*services), "ns/service")
		})
	}
}
