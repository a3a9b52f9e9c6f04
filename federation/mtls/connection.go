package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// Grace is how long a connection outlives the certificate that its peer has shown. What
// happens to connections when the own certificate expires is for the peer to say.
const Grace = time.Minute

// What a connection fails with that this side has ended. The errors wrap
// [net.ErrClosed]: the other side has said nothing.
var (
	errDistrusted = fmt.Errorf("the CA bundle has no authority of the peer's certificate any more: %w", net.ErrClosed)
	errExpired    = fmt.Errorf("the peer's certificate has expired, and it has shown no newer one: %w", net.ErrClosed)
)

// guarded are credentials whose connections end when the peer would not be let in any
// more: TLS verifies the peer only in the handshake, and a stream may last for months.
type guarded struct {
	credentials.TransportCredentials // says what the protocol is

	source *Source
	usage  x509.ExtKeyUsage            // of the peer's certificate
	config func(*material) *tls.Config // of one handshake
}

// ClientHandshake implements credentials.TransportCredentials.
func (g guarded) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return g.shake(raw, func(c net.Conn, config *tls.Config) (net.Conn, credentials.AuthInfo, error) {
		return credentials.NewTLS(config).ClientHandshake(ctx, authority, c)
	})
}

// ServerHandshake implements credentials.TransportCredentials.
func (g guarded) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return g.shake(raw, func(c net.Conn, config *tls.Config) (net.Conn, credentials.AuthInfo, error) {
		return credentials.NewTLS(config).ServerHandshake(c)
	})
}

// Clone implements credentials.TransportCredentials.
func (g guarded) Clone() credentials.TransportCredentials {
	g.TransportCredentials = g.TransportCredentials.Clone()
	return g
}

func (g guarded) shake(
	raw net.Conn, handshake func(net.Conn, *tls.Config) (net.Conn, credentials.AuthInfo, error),
) (net.Conn, credentials.AuthInfo, error) {
	m := g.source.material.Load() // once, so that a handshake sees one generation
	if !m.held() {
		return nil, nil, m.missing()
	}
	c := &connection{Conn: raw, source: g.source, usage: g.usage}
	secured, info, err := handshake(c, g.config(m))
	if err != nil {
		g.source.origin.explain(err)
		return nil, nil, err
	}
	peer, identified := PeerOf(info)
	if !identified {
		return nil, nil, errors.New("the peer has shown no certificate") // no configuration of this package lets one in
	}
	peer.connection = c
	c.chain, c.at, c.expiry = peer.State.PeerCertificates, time.Now(), m.certificate.Leaf.NotAfter
	c.own = g.source.origin.shown(m)
	if other := c.chain[0].NotAfter; other.Before(c.expiry) {
		c.expiry = other
	}
	if err := g.source.add(c, m); err != nil {
		c.Close()
		return nil, nil, err
	}
	return secured, peer, nil
}

// add takes up a connection whose handshake was judged by m, unless newer material
// judges otherwise.
func (s *Source) add(c *connection, m *material) error {
	for {
		s.judging.Lock()
		now := s.material.Load()
		if now == m {
			defer s.judging.Unlock()
			s.open[c] = struct{}{}
			c.timer = time.AfterFunc(c.left(), c.expire)
			return nil
		}
		s.judging.Unlock() // as verifying takes a while
		if !c.trusted(now.trust.timeless()) {
			return errDistrusted
		}
		m = now
	}
}

// remove forgets a connection, and reports whether it was known.
func (s *Source) remove(c *connection) bool {
	s.judging.Lock()
	defer s.judging.Unlock()
	_, ok := s.open[c]
	if ok {
		c.timer.Stop()
		delete(s.open, c)
	}
	return ok
}

// replace puts m in the place of the material in use, which it returns, and ends the
// connections whose peers' certificates it does not trust. It returns how many there
// were.
//
// Peers are judged at the time of their handshake: when a certificate has expired
// since, that is for expire to say.
func (s *Source) replace(m *material) (old *material, ended int) {
	s.judging.Lock()
	old = s.material.Swap(m)
	var open map[*connection]struct{}
	if !old.trust.equal(&m.trust) {
		open = maps.Clone(s.open)
	}
	s.judging.Unlock()
	close(old.replaced) // after the swap: whoever waits for it finds the new material
	trust := m.trust.timeless()
	for c := range open {
		if !c.trusted(trust) && s.remove(c) {
			c.end(errDistrusted)
			ended++
		}
	}
	return old, ended
}

// connection is the network connection below TLS.
type connection struct {
	net.Conn

	// read-only once the handshake is over
	source *Source
	usage  x509.ExtKeyUsage
	chain  []*x509.Certificate // of the peer, its own certificate first
	at     time.Time           // of the handshake
	expiry time.Time           // of the first of the certificates of both sides
	own    Shown

	timer *time.Timer           // calls expire; there while the connection is one of Source.open, guarded as that is
	ended atomic.Pointer[error] // why this side has ended it
}

// trusted reports whether the authority of the peer is one of those that t trusts.
func (c *connection) trusted(t *trust) bool { return t.verify(c.chain, c.usage, c.at) == nil }

// left returns how long the connection may go on.
func (c *connection) left() time.Duration { return time.Until(c.chain[0].NotAfter.Add(Grace)) }

// Read implements net.Conn. Its error ends up in the status of the stream.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		if reason := c.ended.Load(); reason != nil {
			err = *reason
		}
	}
	return n, err
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.source.remove(c)
	return c.Conn.Close()
}

// end closes the connection for a reason, which its Read returns.
func (c *connection) end(reason error) {
	c.ended.CompareAndSwap(nil, &reason)
	_ = c.Close() // which ends its Read
}

// expire ends the connection if the certificate of the peer has expired for longer than
// Grace, unless the clock has been set back since the timer was set that calls it.
func (c *connection) expire() {
	s := c.source
	s.judging.Lock()
	_, ok := s.open[c]
	left := c.left()
	if ok && left > 0 {
		c.timer.Reset(left)
	}
	s.judging.Unlock()
	if ok && left <= 0 {
		c.end(errExpired)
	}
}
