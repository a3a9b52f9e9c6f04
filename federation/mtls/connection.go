package mtls

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// errDistrusted is what a connection fails with whose peer would not be let in any
// more. It wraps [net.ErrClosed]: the connection was closed on this side, and the other
// side has said nothing.
var errDistrusted = fmt.Errorf("the CA file has no authority of the peer's certificate any more: %w", net.ErrClosed)

// distrustable are credentials whose connections end when the CA bundle no longer
// has an authority of the peer's certificate. TLS verifies the peer only in the
// handshake, and a stream may last for months.
type distrustable struct {
	credentials.TransportCredentials

	source *Source
	usage  x509.ExtKeyUsage // of the peer's certificate
}

// ClientHandshake implements credentials.TransportCredentials.
func (d distrustable) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return d.shake(raw, func(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
		return d.TransportCredentials.ClientHandshake(ctx, authority, c)
	})
}

// ServerHandshake implements credentials.TransportCredentials.
func (d distrustable) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return d.shake(raw, d.TransportCredentials.ServerHandshake)
}

// Clone implements credentials.TransportCredentials.
func (d distrustable) Clone() credentials.TransportCredentials {
	return distrustable{d.TransportCredentials.Clone(), d.source, d.usage}
}

func (d distrustable) shake(
	raw net.Conn, handshake func(net.Conn) (net.Conn, credentials.AuthInfo, error),
) (net.Conn, credentials.AuthInfo, error) {
	before := d.source.material.Load()
	c := &connection{Conn: raw, source: d.source, usage: d.usage}
	secured, info, err := handshake(c)
	if err != nil {
		return nil, nil, err
	}
	tlsInfo, _ := info.(credentials.TLSInfo)
	c.chain, c.at = tlsInfo.State.PeerCertificates, time.Now()
	d.source.connections.add(c)
	// The material may have been replaced since the handshake looked at it and
	// before the replacement could find the connection.
	if now := d.source.material.Load(); now != before && !c.trusted(anchors(now.authorities)) {
		c.Close()
		return nil, nil, errDistrusted
	}
	return secured, info, nil
}

// connections are the open ones of a Source.
type connections struct {
	mu   sync.Mutex
	open map[*connection]struct{} // guarded by mu
}

func (s *connections) add(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[*connection]struct{})
	}
	s.open[c] = struct{}{}
}

func (s *connections) remove(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// judge ends the connections whose peers' certificates the authorities did not
// sign, and returns how many there were.
func (s *connections) judge(authorities []*x509.Certificate) (ended int) {
	s.mu.Lock()
	open := make([]*connection, 0, len(s.open))
	for c := range s.open {
		open = append(open, c)
	}
	s.mu.Unlock()
	roots := anchors(authorities)
	for _, c := range open {
		if !c.trusted(roots) {
			c.distrust()
			ended++
		}
	}
	return ended
}

// connection is the network connection below TLS.
type connection struct {
	net.Conn

	// read-only once the handshake is over
	source *Source
	usage  x509.ExtKeyUsage
	chain  []*x509.Certificate // of the peer, its own certificate first
	at     time.Time           // of the handshake

	distrusted atomic.Bool
}

// Read implements net.Conn. Its error ends up in the status of the stream.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.distrusted.Load() {
		err = errDistrusted
	}
	return n, err
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.source.connections.remove(c)
	return c.Conn.Close()
}

func (c *connection) distrust() {
	c.distrusted.Store(true)
	_ = c.Close() // which ends its Read
}

// trusted reports whether the handshake would have succeeded with these roots. The
// peer's certificate is judged at the time of the handshake: when it has expired since,
// its successor is used in the next handshake, and no healthy stream ends.
func (c *connection) trusted(roots *x509.CertPool) bool {
	return verifyChain(c.chain, roots, c.usage, c.at) == nil
}

// anchors returns the authorities as roots that are valid at any time, as of a trust
// anchor only the name and the key count (RFC 5280 section 6.1.1 (d)). An authority
// whose certificate was renewed for the same key becomes valid after the handshakes of
// connections that it still vouches for.
func anchors(authorities []*x509.Certificate) *x509.CertPool {
	roots := x509.NewCertPool()
	for _, authority := range authorities {
		anchor := *authority
		anchor.NotBefore, anchor.NotAfter = time.Time{}, time.Unix(1<<40, 0)
		roots.AddCert(&anchor)
	}
	return roots
}

func sameCertificates(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}
