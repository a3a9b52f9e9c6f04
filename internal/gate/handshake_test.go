package gate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// hello is the first record of a connection.
var hello = append([]byte{recordHandshake, 3, 1, 0, 100}, make([]byte, 100)...)

// laborious are credentials whose handshakes take a while after the first record, and then
// a round trip.
type laborious struct {
	credentials.TransportCredentials

	work time.Duration

	mu            sync.Mutex
	working, most int
}

func (l *laborious) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	first := make([]byte, len(hello))
	if _, err := io.ReadFull(conn, first); err != nil || !bytes.Equal(first, hello) {
		return nil, nil, errors.Join(err, errors.New("not what the peer has sent"))
	}
	l.mu.Lock()
	l.working++
	l.most = max(l.most, l.working)
	l.mu.Unlock()
	time.Sleep(l.work)
	l.mu.Lock()
	l.working--
	l.mu.Unlock()
	_, err := conn.Read(first[:1])
	return conn, nil, err
}

// shake has a peer at an address shake hands. It sends the octets, and then another one
// after a delay.
func shake(t *testing.T, g *Gate, w slotCredentials, ip string, octets []byte, delay time.Duration) (done func() error) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	c, _, over := g.admitConn(&addressed{Conn: far, from: &net.TCPAddr{IP: net.ParseIP(ip)}})
	if over != "" {
		t.Fatalf("there is no room: %s", over)
	}
	go func() {
		_, _ = near.Write(octets)
		time.Sleep(delay)
		_, _ = near.Write([]byte{1})
	}()
	ended := make(chan error, 1)
	go func() {
		_, _, err := w.ServerHandshake(c)
		c.Close()
		ended <- err
	}()
	return func() error { return <-ended }
}

// TestHandshakesWait has a thousand peers come at once, and peers that say nothing. As many
// handshakes are worked on as there are slots, and those that would be too late are turned
// away in time.
func TestHandshakesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Limits: Limits{Connections: 2000, ConnectionsPerAddress: 2000, Handshakes: 2000, HandshakesPerAddress: 2000}, Logger: slog.New(slog.DiscardHandler)})
		work := &laborious{work: 100 * time.Millisecond}
		w := slotCredentials{work, "peer", t.Context()}
		for range 100 {
			shake(t, g, w, "192.0.2.3", hello[:10], time.Hour)
		}
		begin := time.Now()
		took := make(chan time.Duration, 1000)
		var ended sync.WaitGroup
		served, late := 0, 0
		var mu sync.Mutex
		for range 1000 {
			done := shake(t, g, w, "192.0.2.1", hello, time.Minute)
			ended.Go(func() {
				err := done()
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					served++
				case errors.Is(err, errLate):
					late++
					took <- time.Since(begin)
				default:
					t.Error(err)
				}
			})
		}
		ended.Wait()
		close(took)
		latest := slices.Collect(func(yield func(time.Duration) bool) {
			for d := range took {
				if !yield(d) {
					return
				}
			}
		})
		slots := int(handshakeSlots())
		if want := min(1000, slots*60); work.most != slots || served < want-slots || served+late != 1000 {
			t.Errorf("%d at a time, %d were served and %d were late, expected %d, about %d and the rest", work.most, served, late, slots, want)
		}
		if late > 0 && slices.Max(latest) > longestWait {
			t.Errorf("a peer was turned away after %v, expected up to %v", slices.Max(latest), longestWait)
		}
		if _, turnedAway := g.Stats(); int(turnedAway[overWait]) != late {
			t.Errorf("%v are counted, expected %d", turnedAway, late)
		}
		if g.waiting != 0 || g.handshakes.Len() != 100 {
			t.Errorf("%d wait and %d are in their handshake, expected those 100 that say nothing", g.waiting, g.handshakes.Len())
		}
		if !g.slots.TryAcquire(int64(slots)) {
			t.Error("some slots are taken, expected none")
		}
		time.Sleep(time.Hour)
	})
}

// TestFloodOfHandshakes has an address take all that it may, again and again. A peer of another
// one is not behind more than that.
func TestFloodOfHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 20
		limit := each * int(handshakeSlots())
		g := New(Config{Limits: Limits{Connections: 2000, ConnectionsPerAddress: 2000, Handshakes: 2000, HandshakesPerAddress: limit}, Logger: slog.New(slog.DiscardHandler)})
		work := &laborious{work: 100 * time.Millisecond}
		w := slotCredentials{work, "peer", t.Context()}
		begin := time.Now()
		var flood sync.WaitGroup
		for range limit {
			flood.Go(func() {
				for time.Since(begin) < longestWait {
					must.Do(t, shake(t, g, w, "192.0.2.1", hello, 0)())
				}
			})
		}
		time.Sleep(time.Second)
		came := time.Now()
		must.Do(t, shake(t, g, w, "192.0.2.2", hello, 0)())
		if d := time.Since(came); d > (each+1)*work.work {
			t.Errorf("a peer of another address has waited for %v", d)
		}
		flood.Wait()
	})
}

// TestSlotIsAwaitedUntilThePortEnds has handshakes wait when their port ends.
func TestSlotIsAwaitedUntilThePortEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Config{Limits: Limits{Connections: 2000, ConnectionsPerAddress: 2000, Handshakes: 2000, HandshakesPerAddress: 2000}, Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		w := slotCredentials{&laborious{work: 500 * time.Millisecond}, "peer", ctx}
		for range handshakeSlots() {
			shake(t, g, w, "192.0.2.1", hello, 0)
		}
		synctest.Wait()
		done := shake(t, g, w, "192.0.2.1", hello, 0)
		synctest.Wait()
		if g.waiting != 1 {
			t.Errorf("%d wait, expected 1", g.waiting)
		}
		cancel()
		if err := done(); !errors.Is(err, context.Canceled) {
			t.Errorf("the handshake that waited has ended with %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if open, _ := g.Stats(); open != 0 || g.waiting != 0 || len(g.addresses) != 0 {
			t.Errorf("%d connections are open, %d wait and %d addresses are known, expected none", open, g.waiting, len(g.addresses))
		}
	})
}

// TestReadHello reads what a connection may begin with.
func TestReadHello(t *testing.T) {
	long := append([]byte{recordHandshake, 3, 1, 0x20, 0}, make([]byte, 0x2000)...)
	for _, tt := range []struct {
		name        string
		given, want []byte
		err         error
	}{
		{"hello", append(slices.Clone(hello), 1, 2, 3), hello, nil},
		{"no TLS", []byte("PRI * HTTP/2.0"), []byte("PRI *"), nil},
		{"long", long, long[:recordHeaderBytes], nil},
		{"nothing", nil, nil, io.EOF},
		{"cut", hello[:50], nil, io.ErrUnexpectedEOF},
	} {
		from := bytes.NewReader(tt.given)
		got, err := readHello(from)
		if !errors.Is(err, tt.err) || err == nil && (!bytes.Equal(got, tt.want) || from.Len() != len(tt.given)-len(tt.want)) {
			t.Errorf("%s: %d bytes, %v and %d left", tt.name, len(got), err, from.Len())
		}
	}
}
