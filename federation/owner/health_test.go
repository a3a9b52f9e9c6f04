package owner

import (
	"bytes"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestHealth asks the health service:
//
//  1. Every client with a certificate may ask, even one that may not subscribe.
//  2. The service knows the server and both versions of the API, and nothing else.
//  3. A server that stops does not wait for those who watch.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Allow = []federation.ID{idOf(t, consumerID)} })
		client := healthpb.NewHealthClient(f.dial(t, strangerID))
		watch := func(service string) healthpb.Health_WatchClient {
			t.Helper()
			return must.Get(client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: service}))(t)
		}
		expect := func(stream healthpb.Health_WatchClient, want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			if got, err := stream.Recv(); err != nil || got.GetStatus() != want {
				t.Errorf("health is %v (%v), expected %v", got.GetStatus(), err, want)
			}
		}
		var watched []healthpb.Health_WatchClient
		for _, service := range []string{"", "federation.resourcediscovery.v1alpha2.DiscoveryService", "federation.resourcediscovery.v1alpha1.DiscoveryService"} {
			got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("health of %q is %v (%v), expected SERVING", service, got.GetStatus(), err)
			}
			stream := watch(service)
			expect(stream, healthpb.HealthCheckResponse_SERVING)
			watched = append(watched, stream)
		}
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("health of an unknown service is the error %v, expected NotFound", err)
		}
		unknown := watch("other")
		expect(unknown, healthpb.HealthCheckResponse_SERVICE_UNKNOWN)

		begun := time.Now()
		f.stop()
		for _, stream := range append(watched, unknown) {
			for {
				if _, err := stream.Recv(); err != nil {
					break
				}
			}
		}
		if took := time.Since(begun); took >= gate.ShutdownTimeout {
			t.Errorf("the owner took %v to stop, expected less than %v", took, gate.ShutdownTimeout)
		}
	})
}

func TestHealthRequiresTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		conn := f.dial(t, consumerID, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("without TLS the error is %v, expected Unavailable", err)
		}
	})
}

// TestServedMethods lists the services of gRPC that the server registers. Reflection is
// not among them.
func TestServedMethods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		conn := f.dial(t, consumerID)
		for _, version := range []string{"v1", "v1alpha"} {
			method := "/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo"
			stream := must.Get(conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method))(t)
			if err := stream.RecvMsg(new(healthpb.HealthCheckResponse)); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s gave %v, expected Unimplemented", method, err)
			}
		}
	})
}

// pinger is a peer that speaks HTTP/2 and sends pings at its own pace, which a
// client of gRPC does not.
type pinger struct {
	net.Conn
	*http2.Framer
}

// newPinger returns a peer with an open stream.
func newPinger(t *testing.T, f *fixture) *pinger {
	t.Helper()
	p := newIdlePinger(t, f)
	p.openStream(t)
	return p
}

// newIdlePinger returns a peer without a stream.
func newIdlePinger(t *testing.T, f *fixture) *pinger {
	t.Helper()
	raw := must.Get(f.listener.DialContext(t.Context()))(t)
	conn, _, err := f.credentials(t, mtls.Leaf{Name: "test", URIs: []string{consumerID}}).ClientHandshake(t.Context(), "owner", raw)
	if err != nil {
		t.Fatal(err)
	}
	p := &pinger{conn, http2.NewFramer(conn, conn)}
	must.Get(conn.Write([]byte(http2.ClientPreface)))(t)
	must.Do(t, p.WriteSettings())
	return p
}

func (p *pinger) openStream(t *testing.T) {
	t.Helper()
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "owner"},
		{Name: ":path", Value: rdpb.DiscoveryService_EstablishStream_FullMethodName},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		must.Do(t, encoder.WriteField(field))
	}
	must.Do(t, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true}))
}

// answers returns how many pings were answered until the owner ended the
// connection, and the reason that it gave.
func (p *pinger) answers() (n int, reason string) {
	for {
		frame, err := p.ReadFrame()
		if err != nil {
			return n, reason
		}
		switch frame := frame.(type) {
		case *http2.PingFrame:
			if frame.IsAck() {
				n++
			}
		case *http2.GoAwayFrame:
			reason = string(frame.DebugData())
		}
	}
}

func TestPingIntervals(t *testing.T) {
	for _, tt := range []struct {
		name     string
		interval time.Duration
		pings    int
		reason   string
		idle     bool // there is no stream
	}{
		{"between two streams", 10 * time.Second, 5, "", true},
		{"every 20 s, as the reference consumer", 20 * time.Second, 180, "", false},
		{"every 2 s", 2 * time.Second, 1800, "", false},
		{"without a pause", 0, 100, "too_many_pings", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, nil)
				open := newPinger
				if tt.idle {
					open = newIdlePinger
				}
				p := open(t, f)
				var answered int
				var reason string
				read := make(chan struct{})
				go func() {
					defer close(read)
					answered, reason = p.answers()
				}()
				for range tt.pings {
					if err := p.WritePing(false, [8]byte{}); err != nil {
						if tt.reason == "" {
							t.Errorf("ping: %v", err)
						}
						break
					}
					time.Sleep(tt.interval)
				}
				synctest.Wait()
				p.Close()
				<-read
				if reason != tt.reason {
					t.Errorf("the owner ended the connection with %q, expected %q", reason, tt.reason)
				}
				if tt.reason == "" && answered != tt.pings {
					t.Errorf("%d of %d pings were answered", answered, tt.pings)
				}
			})
		})
	}
}
