package gate

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestDefaultLimits(t *testing.T) {
	for files, want := range map[uint64]int{
		0: 0, 16: 8, 64: 32, 128: 96, 256: 224, 1024: 896, 4096: 3584, 16384: 14336, 20000: 16384, math.MaxUint64: 16384,
	} {
		if got := connectionsFor(files); got != want {
			t.Errorf("with %d files there are %d connections, expected %d", files, got, want)
		}
	}
	for _, tt := range []struct{ given, want Limits }{
		{Limits{Connections: 16384}, Limits{16384, 12288, 8192, 4096}}, // room for thousands of consumers behind one address
		{Limits{Connections: 96}, Limits{96, 72, 48, 24}},
		{Limits{Connections: 1}, Limits{1, 1, 1, 1}},
		{Limits{10, 9, 8, 7}, Limits{10, 9, 8, 7}},
	} {
		if got := tt.given.withDefaults(); got != tt.want {
			t.Errorf("%+v becomes %+v, expected %+v", tt.given, got, tt.want)
		}
	}
	if got := (Limits{}).withDefaults(); got.Connections < 1 || got.Connections > mostConnections {
		t.Errorf("the default is %+v", got)
	}
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from   *net.TCPAddr
	closed atomic.Bool
}

func (c *addressed) RemoteAddr() net.Addr { return c.from }

func (c *addressed) Close() error {
	c.closed.Store(true)
	return nil
}

func from(ip string) *addressed { return &addressed{from: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}} }

// TestGate exceeds each limit: the connection is closed, unless a handshake that has
// lasted long enough is displaced. A connection that is closed makes room.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Limits: Limits{Connections: 8, ConnectionsPerAddress: 5, Handshakes: 4, HandshakesPerAddress: 2}, Logger: slog.New(slog.DiscardHandler)})
		var inside []*countedConn
		expect := func(ip, wantOver string, wantIn, wantDisplaced bool) *countedConn {
			t.Helper()
			in, displaced, over := g.admitConn(from(ip))
			if over != wantOver || (in != nil) != wantIn || (displaced != nil) != wantDisplaced {
				t.Errorf("%s: in %v, displaced %v, over %q, expected %v, %v, %q", ip, in != nil, displaced != nil, over, wantIn, wantDisplaced, wantOver)
			}
			if in != nil {
				inside = append(inside, in)
			}
			return in
		}
		const a, b, c, d, e = "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"
		expect(a, "", true, false)
		expect(a, "", true, false)
		expect(a, overHandshakesPerAddress, false, false)
		expect("::ffff:"+a, overHandshakesPerAddress, false, false) // the same address
		expect(c, "", true, false)
		expect(d, "", true, false) // the last handshake that there is room for
		expect(d, overHandshakesPerAddress, false, false)
		expect(b, overHandshakes, false, false)
		if len(g.addresses) != 2 {
			t.Errorf("%d addresses are known, expected those with connections, 2", len(g.addresses))
		}
		time.Sleep(safeHandshake)
		second := expect(b, overHandshakes, true, true) // in the place of the oldest, which is a's
		expect(d, overHandshakesPerAddress, true, true) // of its own /64
		for _, in := range inside {
			if !in.gone {
				g.completeHandshake(in)
			}
		}
		if g.handshakes.Len() != 0 || g.open != 4 {
			t.Fatalf("%d handshakes and %d connections, expected 0 and 4", g.handshakes.Len(), g.open)
		}
		for range 4 {
			if in := expect(a, "", true, false); in != nil {
				g.completeHandshake(in)
			}
		}
		expect(a, overConnectionsPerAddress, false, false)
		expect(e, overConnections, false, false)
		second.Close()
		second.Close()
		last := expect(e, "", true, false)
		time.Sleep(safeHandshake)
		expect(b, overConnections, true, true) // in the place of last
		if !last.gone {
			t.Error("an unfinished handshake is kept, and a newcomer is not")
		}
		for _, in := range inside {
			in.Close()
		}
		if g.open != 0 || len(g.addresses) != 0 || g.handshakes.Len() != 0 {
			t.Errorf("%d connections, %d addresses and %d handshakes are left", g.open, len(g.addresses), g.handshakes.Len())
		}
		_, turnedAway := g.Stats()
		want := map[string]uint64{overHandshakesPerAddress: 4, overHandshakes: 2, overConnectionsPerAddress: 1, overConnections: 2}
		if diff := cmp.Diff(want, turnedAway); diff != "" {
			t.Errorf("unexpected count (-want +got):\n%s", diff)
		}
	})
}

// TestGateDisplacesTheOnlyConnectionOfAnAddress displaces the one handshake of an
// address by another of the same address.
func TestGateDisplacesTheOnlyConnectionOfAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Limits: Limits{Connections: 8, ConnectionsPerAddress: 5, Handshakes: 4, HandshakesPerAddress: 1}, Logger: slog.New(slog.DiscardHandler)})
		first, _, _ := g.admitConn(from("192.0.2.1"))
		time.Sleep(safeHandshake - 1)
		if in, displaced, over := g.admitConn(from("192.0.2.1")); in != nil || displaced != nil || over != overHandshakesPerAddress {
			t.Errorf("before a second is over: in %v, displaced %v, over %q", in, displaced, over)
		}
		time.Sleep(time.Nanosecond)
		second, displaced, _ := g.admitConn(from("192.0.2.1"))
		if displaced != first || second == nil {
			t.Fatalf("in %v, displaced %v, expected the first one", second, displaced)
		}
		first.Close()
		if open, _ := g.Stats(); open != 1 || g.addresses[second.address].open != 1 {
			t.Errorf("%d connections are open, %d of the address, expected 1", open, g.addresses[second.address].open)
		}
		second.Close()
		if len(g.addresses) != 0 {
			t.Errorf("%d addresses are left", len(g.addresses))
		}
	})
}

// queue is a listener with these connections, and no more.
type queue struct {
	net.Listener
	conns []net.Conn
}

func (q *queue) Accept() (net.Conn, error) {
	if len(q.conns) == 0 {
		return nil, net.ErrClosed
	}
	c := q.conns[0]
	q.conns = q.conns[1:]
	return c, nil
}

// TestTellsWhoIsTurnedAway exceeds a limit: by a connection that finds no room, and by one
// in whose favour another one is closed. The one that is not wanted is closed at once.
func TestTellsWhoIsTurnedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		g := New(Config{
			Limits: Limits{Connections: 8, ConnectionsPerAddress: 5, Handshakes: 1, HandshakesPerAddress: 1}, Logger: slog.New(slog.DiscardHandler),
			TurnedAway: func(p TurnedAway) {
				told = append(told, fmt.Sprint(p.Role, " ", p.Address, " ", p.Reason, ": ", p.Rule))
			},
		})
		first, second, third := from("192.0.2.1"), from("192.0.2.2"), from("192.0.2.3")
		accept := func(conns ...net.Conn) {
			l := gatedListener{&queue{conns: conns}, g, "consumer"}
			for {
				if _, err := l.Accept(); err != nil {
					return
				}
			}
		}
		accept(first, second)
		if first.closed.Load() || !second.closed.Load() {
			t.Errorf("closed are: the first one %v, the second one %v, expected the second one", first.closed.Load(), second.closed.Load())
		}
		time.Sleep(safeHandshake)
		accept(third)
		if !first.closed.Load() || third.closed.Load() {
			t.Errorf("closed are: the first one %v, the third one %v, expected the first one", first.closed.Load(), third.closed.Load())
		}
		const rule = " limit: there are too many: the limit handshakes is reached"
		if diff := cmp.Diff([]string{"consumer 192.0.2.2:1" + rule, "consumer 192.0.2.1:1" + rule}, told); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// TestNothingIsSentAfterAFailedWrite lets the time of a connection pass in a write. What
// is written afterwards, as the alert of TLS is, does not reach the peer.
func TestNothingIsSentAfterAFailedWrite(t *testing.T) {
	g := New(Config{Limits: Limits{}, Logger: slog.New(slog.DiscardHandler)})
	near, far := net.Pipe()
	defer near.Close()
	c, _, over := g.admitConn(far)
	if over != "" {
		t.Fatalf("there is no room: %s", over)
	}
	must.Do(t, c.SetDeadline(time.Unix(1, 0)))
	if _, err := c.Write([]byte("lost")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write that is too late: %v, expected %v", err, os.ErrDeadlineExceeded)
	}
	must.Do(t, c.SetDeadline(time.Time{}))
	if _, err := c.Write([]byte("alert")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the write after it: %v, expected %v", err, net.ErrClosed)
	}
	c.Close()
	if got, err := io.ReadAll(near); len(got) > 0 || err != nil {
		t.Errorf("the peer got %q and %v, expected nothing", got, err)
	}
}

func TestNetworkOf(t *testing.T) {
	for _, tt := range []struct {
		address net.Addr
		want    string
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, "192.0.2.1/32"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1")}, "192.0.2.1/32"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6")}, "2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, "fe80::/64"},
		{&net.UnixAddr{Name: "x"}, "invalid Prefix"},
	} {
		if got := networkOf(tt.address).String(); got != tt.want {
			t.Errorf("the address of %v is %s, expected %s", tt.address, got, tt.want)
		}
	}
}
