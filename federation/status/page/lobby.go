package page

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// lobby is a listener for maxConnections connections. Where one more comes, a connection
// that has not sent a request yet has to go: without a certificate nobody sends one, so
// nobody without a certificate keeps a reader out. netutil.LimitListener of golang.org/x/net
// would let the reader wait behind all of them.
type lobby struct {
	net.Listener

	mu      sync.Mutex // guards the fields below, and in of each arrival
	open    int
	waiting []*arrival // without a request so far, the oldest first
}

// arrival is a connection that is counted until it is closed.
type arrival struct {
	net.Conn

	lobby   *lobby
	address netip.Prefix
	in      bool
}

// Accept implements net.Listener.
func (l *lobby) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at it
		}
		v := &arrival{Conn: c, lobby: l, address: mtls.AddressOf(c.RemoteAddr())}
		displaced := l.enter(v)
		if displaced != nil {
			displaced.Close()
		}
		if displaced != v {
			return v, nil
		}
	}
}

// enter counts a connection, and returns the one that has to go for it. That is the oldest
// of the address that has the most, so that whoever opens many displaces their own. Where
// all others have sent a request, it is v.
func (l *lobby) enter(v *arrival) *arrival {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.in = true
	l.open++
	l.waiting = append(l.waiting, v)
	if l.open <= maxConnections {
		return nil
	}
	counts := make(map[netip.Prefix]int)
	for _, w := range l.waiting {
		counts[w.address]++
	}
	displaced := l.waiting[0]
	for _, w := range l.waiting {
		if counts[w.address] > counts[displaced.address] {
			displaced = w
		}
	}
	l.leave(displaced)
	return displaced
}

// leave ends the count of a connection. The caller holds the lock.
func (l *lobby) leave(v *arrival) {
	if v.in {
		v.in = false
		l.open--
		l.welcome(v)
	}
}

// welcome removes a connection from those that wait. The caller holds the lock.
func (l *lobby) welcome(v *arrival) {
	if i := slices.Index(l.waiting, v); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// follow is a http.Server.ConnState: a connection becomes active with its first request.
func (l *lobby) follow(c net.Conn, state http.ConnState) {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if v, ok := c.(*arrival); ok && state == http.StateActive {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.welcome(v)
	}
}

// Close implements net.Conn.
func (v *arrival) Close() error {
	v.lobby.mu.Lock()
	v.lobby.leave(v)
	v.lobby.mu.Unlock()
	return v.Conn.Close() //nolint:wrapcheck // it is one
}
