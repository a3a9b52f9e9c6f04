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

// grace is how long a connection outlives the certificate that its peer has shown. When the own
// certificate expires, the peer decides what happens to the connection.
const grace = time.Minute

// The errors of a connection that this side has ended. They wrap
// [net.ErrClosed], because the other side has sent nothing.
var (
	errDistrusted = fmt.Errorf("the CA bundle has no authority of the peer's certificate any more: %w", net.ErrClosed)
	errExpired    = fmt.Errorf("the peer's certificate has expired, and it has shown no newer one: %w", net.ErrClosed)
)

// guardedCredentials are credentials whose connections end when a handshake with the peer would
// fail now. TLS verifies the peer only in the handshake, and a stream may last for months.
type guardedCredentials struct {
	credentials.TransportCredentials // says what the protocol is

	source *Source
	usage  x509.ExtKeyUsage               // of the peer's certificate
	config func(*tlsMaterial) *tls.Config // of one handshake
}

// ClientHandshake implements credentials.TransportCredentials.
func (g guardedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return g.guardHandshake(raw, func(c net.Conn, config *tls.Config) (net.Conn, credentials.AuthInfo, error) {
		return credentials.NewTLS(config).ClientHandshake(ctx, authority, c)
	})
}

// ServerHandshake implements credentials.TransportCredentials.
func (g guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return g.guardHandshake(raw, func(c net.Conn, config *tls.Config) (net.Conn, credentials.AuthInfo, error) {
		return credentials.NewTLS(config).ServerHandshake(c)
	})
}

// Clone implements credentials.TransportCredentials.
func (g guardedCredentials) Clone() credentials.TransportCredentials {
	g.TransportCredentials = g.TransportCredentials.Clone()
	return g
}

func (g guardedCredentials) guardHandshake(
	raw net.Conn, handshake func(net.Conn, *tls.Config) (net.Conn, credentials.AuthInfo, error),
) (net.Conn, credentials.AuthInfo, error) {
	m := g.source.material.Load() // once, so that a handshake sees one generation
	if !m.hasCertificate() {
		return nil, nil, m.whyMissing()
	}
	c := &guardedConn{Conn: raw, source: g.source, usage: g.usage}
	secured, info, err := handshake(c, g.config(m))
	if err != nil {
		g.source.origin.explainRefusal(err)
		return nil, nil, err
	}
	peer, identified := PeerOf(info)
	if !identified {
		return nil, nil, errors.New("the peer has shown no certificate") // no configuration of this package lets one in
	}
	peer.connection = c
	c.chain, c.at, c.expiry = peer.State.PeerCertificates, time.Now(), m.certificate.Leaf.NotAfter
	c.own = g.source.origin.shownCertificate(m)
	if other := c.chain[0].NotAfter; other.Before(c.expiry) {
		c.expiry = other
	}
	if err := g.source.addConnection(c, m); err != nil {
		c.Close()
		return nil, nil, err
	}
	return secured, peer, nil
}

// addConnection adds a connection to the open ones, after a handshake that was judged by m. If
// newer material does not trust the peer, it returns why.
func (s *Source) addConnection(c *guardedConn, m *tlsMaterial) error {
	for {
		s.judging.Lock()
		now := s.material.Load()
		if now == m {
			defer s.judging.Unlock()
			s.open[c] = struct{}{}
			c.timer = time.AfterFunc(c.timeLeft(), c.closeIfExpired)
			return nil
		}
		s.judging.Unlock() // because verifying takes a while
		if !c.isTrusted(now.trust.withoutValidity()) {
			return errDistrusted
		}
		m = now
	}
}

// removeConnection removes a connection from the open ones, and reports whether it was there.
func (s *Source) removeConnection(c *guardedConn) bool {
	s.judging.Lock()
	defer s.judging.Unlock()
	_, ok := s.open[c]
	if ok {
		c.timer.Stop()
		delete(s.open, c)
	}
	return ok
}

// replaceMaterial replaces the material in use by m, and ends the connections to peers whose
// certificates m does not trust. It returns the previous material, and how many connections it has
// ended.
//
// It judges peers as of the time of their handshake. Whether a certificate has expired since is for
// closeIfExpired to decide.
func (s *Source) replaceMaterial(m *tlsMaterial) (old *tlsMaterial, ended int) {
	s.judging.Lock()
	old = s.material.Swap(m)
	var open map[*guardedConn]struct{}
	if !old.trust.equal(&m.trust) {
		open = maps.Clone(s.open)
	}
	s.judging.Unlock()
	close(old.replaced) // after the swap: whoever waits for it finds the new material
	trust := m.trust.withoutValidity()
	for c := range open {
		if !c.isTrusted(trust) && s.removeConnection(c) {
			c.closeWithReason(errDistrusted)
			ended++
		}
	}
	return old, ended
}

// guardedConn is the network connection below TLS. It keeps what its handshake has shown, so that
// newer material can judge the peer again. The Source keeps it in open from the handshake to its
// end; its timer and replaceMaterial end it.
type guardedConn struct {
	net.Conn

	// read-only once the handshake is over
	source *Source
	usage  x509.ExtKeyUsage
	chain  []*x509.Certificate // of the peer, its own certificate first
	at     time.Time           // of the handshake
	expiry time.Time           // of the first of the certificates of both sides
	own    Shown

	timer *time.Timer           // calls closeIfExpired; set while the connection is in Source.open, and guarded like that
	ended atomic.Pointer[error] // why this side has ended the connection
}

// isTrusted reports whether t trusts the authority of the peer.
func (c *guardedConn) isTrusted(t *trustAnchors) bool {
	return t.verifyChain(c.chain, c.usage, c.at) == nil
}

// timeLeft returns for how long the connection may go on.
func (c *guardedConn) timeLeft() time.Duration { return time.Until(c.chain[0].NotAfter.Add(grace)) }

// Read implements net.Conn. Its error becomes the status of the stream.
func (c *guardedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		if reason := c.ended.Load(); reason != nil {
			err = *reason
		}
	}
	return n, err
}

// Close implements net.Conn.
func (c *guardedConn) Close() error {
	c.source.removeConnection(c)
	return c.Conn.Close()
}

// closeWithReason closes the connection. Its Read returns the reason.
func (c *guardedConn) closeWithReason(reason error) {
	c.ended.CompareAndSwap(nil, &reason)
	_ = c.Close() // which ends its Read
}

// closeIfExpired ends the connection if the certificate of the peer has expired for longer than
// grace. If the clock was set back since the timer was set, it sets the timer again.
func (c *guardedConn) closeIfExpired() {
	s := c.source
	s.judging.Lock()
	_, ok := s.open[c]
	left := c.timeLeft()
	if ok && left > 0 {
		c.timer.Reset(left)
	}
	s.judging.Unlock()
	if ok && left <= 0 {
		c.closeWithReason(errExpired)
	}
}
