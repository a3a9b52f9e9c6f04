package realserver

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Gate stands before a server and passes connections on, octet by octet, so that TLS
// goes through. It can cut them, stall them, and refuse new ones. Its methods may be
// called from any goroutine.
type Gate struct {
	Address string // where it listens

	received atomic.Int64
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	to      string
	conns   map[net.Conn]bool // of both sides; nil after the end
	refuses bool
	stalled chan struct{} // closed while nothing is stalled
}

// StartGate starts a gate before a server on host:port, and ends it with the test.
func StartGate(tb testing.TB, to string) *Gate {
	tb.Helper()
	address := loopback.Address(tb)
	listener := must.Get(net.Listen("tcp", address))(tb)
	g := &Gate{Address: address, to: to, listener: listener, conns: make(map[net.Conn]bool), stalled: make(chan struct{})}
	close(g.stalled)
	g.wg.Go(g.accept)
	tb.Cleanup(g.close)
	return g
}

// StartGate starts a gate before the API server, and returns it with its URL.
func (c *Cluster) StartGate(tb testing.TB) (*Gate, string) {
	tb.Helper()
	g := StartGate(tb, c.API.URL[len("https://"):])
	return g, "https://" + g.Address
}

func (g *Gate) accept() {
	for {
		near, err := g.listener.Accept()
		if err != nil {
			return // closed
		}
		g.mu.Lock()
		if g.refuses {
			g.mu.Unlock()
			_ = near.Close()
			continue
		}
		to := g.to
		g.mu.Unlock()
		far, err := net.Dial("tcp", to)
		if err != nil {
			_ = near.Close()
			continue
		}
		if !g.hold(near, far) {
			return
		}
		g.wg.Go(func() { g.pass(near, far, new(atomic.Int64)) })
		g.wg.Go(func() { g.pass(far, near, &g.received) })
	}
}

// hold notes a pair of connections. It closes them and returns false after the end.
func (g *Gate) hold(near, far net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		_, _ = near.Close(), far.Close()
		return false
	}
	g.conns[near], g.conns[far] = true, true
	return true
}

// pass carries what comes from one connection to the other, until one of them ends, and
// counts the octets.
func (g *Gate) pass(from, to net.Conn, count *atomic.Int64) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		g.mu.Lock()
		stalled := g.stalled
		g.mu.Unlock()
		<-stalled
		if n > 0 {
			count.Add(int64(n))
			if _, failed := to.Write(buf[:n]); failed != nil {
				err = failed
			}
		}
		if err != nil {
			break
		}
	}
	_, _ = from.Close(), to.Close()
	g.mu.Lock()
	delete(g.conns, from)
	delete(g.conns, to)
	g.mu.Unlock()
}

// Received returns how many octets have come from the server so far.
func (g *Gate) Received() int64 { return g.received.Load() }

// Cut closes every connection that is open now.
func (g *Gate) Cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.conns {
		_ = conn.Close()
	}
}

// Refuse says whether new connections are closed at once. Those that are open stay.
func (g *Gate) Refuse(refuse bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuses = refuse
}

// Stall says whether octets stay where they are. The connections stay open, as when a
// network loses all packets.
func (g *Gate) Stall(stall bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.stalled:
		if stall {
			g.stalled = make(chan struct{})
		}
	default:
		if !stall {
			close(g.stalled)
		}
	}
}

func (g *Gate) close() {
	_ = g.listener.Close()
	g.Stall(false)
	g.mu.Lock()
	for conn := range g.conns {
		_ = conn.Close()
	}
	g.conns = nil
	g.mu.Unlock()
	g.wg.Wait()
}
