package owner

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestHealth asks the health service:
//
//  1. Every client with a certificate may ask, even one that may not subscribe.
//  2. The service knows the server and both versions of the API, and nothing else: there is no
//     reflection.
//  3. A server that stops does not wait for those who watch.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Allow = []federation.ID{idOf(t, consumerID)} })
		conn := f.dial(t, strangerID)
		client := healthpb.NewHealthClient(conn)
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

		const reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
		stream := must.Get(conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, reflection))(t)
		if err := stream.RecvMsg(new(healthpb.HealthCheckResponse)); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s gave %v, expected Unimplemented", reflection, err)
		}

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

// pinger is a peer that speaks HTTP/2 and sends pings at its own pace, which a
// client of gRPC does not.
type pinger struct {
	net.Conn
	*http2.Framer
}

// newPinger returns a peer without a stream.
func newPinger(t *testing.T, f *fixture) *pinger {
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

// TestPingIntervals has a peer ping without a stream, of which gRPC is less tolerant by default.
func TestPingIntervals(t *testing.T) {
	for name, tt := range map[string]struct {
		interval time.Duration
		pings    int
		reason   string
	}{
		"every 20 s, as the reference consumer": {20 * time.Second, 2, ""}, // later the connection is idle for too long
		"every 2 s":                             {2 * time.Second, 20, ""},
		"without a pause":                       {0, 100, "too_many_pings"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPinger(t, start(t, nil))
				var answered int
				var reason string
				read := make(chan struct{})
				go func() {
					defer close(read)
					answered, reason = p.answers()
				}()
				for range tt.pings {
					if err := p.WritePing(false, [8]byte{}); err != nil {
						break
					}
					time.Sleep(tt.interval)
				}
				synctest.Wait()
				p.Close()
				<-read
				if reason != tt.reason || reason == "" && answered != tt.pings {
					t.Errorf("%d of %d pings were answered, and the owner ended the connection with %q", answered, tt.pings, reason)
				}
			})
		})
	}
}
