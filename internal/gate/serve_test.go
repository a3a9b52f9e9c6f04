package gate

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// unserved describes a service without methods.
func unserved(name string) func(to grpc.ServiceRegistrar) {
	return func(to grpc.ServiceRegistrar) {
		to.RegisterService(&grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil)}, nil)
	}
}

// TestPortsOfOneGate serves two ports. Their connections count together, each knows
// its own service, and one ends without the other.
func TestPortsOfOneGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Limits: Limits{Connections: 2, ConnectionsPerAddress: 2, Handshakes: 2, HandshakesPerAddress: 2}, Logger: slog.New(slog.DiscardHandler)})
		var running sync.WaitGroup
		serve := func(name string) (*bufconn.Listener, context.CancelFunc) {
			listener := bufconn.Listen(1 << 10)
			ctx, cancel := context.WithCancel(t.Context())
			running.Go(func() {
				p := Port{Listener: listener, Credentials: insecure.NewCredentials(), Role: "peer", MaxMessage: 1 << 10, Register: unserved(name)}
				if err := g.Serve(ctx, p); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
			return listener, cancel
		}
		dial := func(listener *bufconn.Listener) *grpc.ClientConn {
			t.Helper()
			conn := must.Get(grpc.NewClient("passthrough:///port", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(t)
			t.Cleanup(func() { conn.Close() })
			return conn
		}
		health := func(conn *grpc.ClientConn, service string) codes.Code {
			_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			return status.Code(err)
		}
		first, endFirst := serve("first")
		second, endSecond := serve("second")
		toFirst, toSecond := dial(first), dial(second)
		for _, tt := range []struct {
			conn    *grpc.ClientConn
			service string
			want    codes.Code
		}{
			{toFirst, "", codes.OK},
			{toFirst, "first", codes.OK},
			{toFirst, "second", codes.NotFound},
			{toSecond, "second", codes.OK},
			{dial(first), "", codes.Unavailable}, // the third connection
		} {
			if got := health(tt.conn, tt.service); got != tt.want {
				t.Errorf("health of %q: %v, expected %v", tt.service, got, tt.want)
			}
		}
		if open, turnedAway := g.Stats(); open != 2 || turnedAway["connections_per_address"] == 0 {
			t.Errorf("%d connections are open and %v were turned away", open, turnedAway)
		}
		endFirst()
		synctest.Wait()
		if open, _ := g.Stats(); open != 1 {
			t.Errorf("%d connections are open after the first port has ended, expected that to the second", open)
		}
		if got := health(toSecond, "second"); got != codes.OK {
			t.Errorf("health of the second port: %v", got)
		}
		endSecond()
		running.Wait()
	})
}

// recorded is a connection of which what is read is kept.
type recorded struct {
	net.Conn

	all *bytes.Buffer
}

func (r recorded) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.all.Write(p[:n])
	return n, err
}

// TestNoPings has a peer send messages, and expects no frame for them but the answers.
func TestNoPings(t *testing.T) {
	var all bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Limits: Limits{}, Logger: slog.New(slog.DiscardHandler)})
		listener := bufconn.Listen(1 << 10)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			must.Do(t, g.Serve(ctx, Port{Listener: listener, Credentials: insecure.NewCredentials(), Role: "peer", MaxMessage: 1 << 20}))
		})
		conn := must.Get(grpc.NewClient("passthrough:///port", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				raw, err := listener.DialContext(ctx)
				return recorded{raw, &all}, err
			})))(t)
		for range 3 {
			must.Get(healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}))(t)
		}
		conn.Close()
		cancel()
		running.Wait()
	})
	frames := make(map[http2.FrameType]int)
	for framer := http2.NewFramer(nil, &all); ; {
		frame, err := framer.ReadFrame()
		if err != nil {
			break
		}
		if ping, ok := frame.(*http2.PingFrame); !ok || !ping.IsAck() {
			frames[frame.Header().Type]++
		}
	}
	if frames[http2.FrameData] != 3 || frames[http2.FramePing] > 0 || frames[http2.FrameWindowUpdate] > 1 {
		t.Errorf("the peer got the frames %v, expected three of DATA, at most one WINDOW_UPDATE, for the connection, and no PING", frames)
	}
}

// TestServeFails closes the listener of a port.
func TestServeFails(t *testing.T) {
	g := New(Config{Limits: Limits{}, Logger: slog.New(slog.DiscardHandler)})
	listener := bufconn.Listen(1)
	listener.Close()
	if err := g.Serve(t.Context(), Port{Listener: listener, Credentials: insecure.NewCredentials(), Register: unserved("a")}); err == nil {
		t.Error("a port whose listener is closed is served without an error")
	}
}

// TestLastingStreams ends a port with two streams: the one of a service of Register ends
// with it, and that of a lasting one by itself.
func TestLastingStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Limits: Limits{}, Logger: slog.New(slog.DiscardHandler)})
		release := make(chan struct{})
		streaming := func(name string) func(to grpc.ServiceRegistrar) {
			return func(to grpc.ServiceRegistrar) {
				to.RegisterService(&grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
					StreamName: "Talk", ServerStreams: true, ClientStreams: true,
					Handler: func(_ any, stream grpc.ServerStream) error {
						select {
						case <-stream.Context().Done():
							return context.Cause(stream.Context())
						case <-release:
							return status.Error(codes.Aborted, "goodbye")
						}
					},
				}}}, nil)
			}
		}
		listener := bufconn.Listen(1 << 10)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			p := Port{Listener: listener, Credentials: insecure.NewCredentials(), Role: "peer", Register: streaming("a.Ending"), Lasting: streaming("a.Lasting")}
			if err := g.Serve(ctx, p); err != nil {
				t.Error(err)
			}
		})
		conn := must.Get(grpc.NewClient("passthrough:///port", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(t)
		defer conn.Close()
		open := func(method string) (ended func() error) {
			t.Helper()
			stream := must.Get(conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method))(t)
			return func() error { return stream.RecvMsg(new(healthpb.HealthCheckResponse)) }
		}
		ending, lasting := open("/a.Ending/Talk"), open("/a.Lasting/Talk")
		synctest.Wait()
		cancel()
		if err := ending(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream that ends with the port ended with %v, expected Unavailable", err)
		}
		close(release)
		if err := lasting(); status.Code(err) != codes.Aborted {
			t.Errorf("the lasting stream ended with %v, expected Aborted, its own status", err)
		}
		running.Wait()
	})
}
