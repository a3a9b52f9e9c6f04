package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// dialLog records for one connection why it could not be made, which gRPC reports only in the text
// of a status, and until when its certificates are valid. The goroutines of gRPC write to it, so
// that its fields are atomic. Of several failures it keeps the first one.
type dialLog struct {
	address string
	dial    func(ctx context.Context, address string) (net.Conn, error)

	dialed  atomic.Bool
	failure atomic.Pointer[connectError] // the first one
	expiry  atomic.Pointer[time.Time]    // as mtls.Peer.Expiry has it; nil before the handshake
}

// connectError is an error from below gRPC. Its text is safe to show, because crypto/tls and net
// repeat nothing that the peer sent, and package mtls quotes it.
type connectError struct {
	handshake bool // the TLS handshake failed, not dialing
	err       error
}

func (f *connectError) Error() string {
	if f.handshake {
		return fmt.Sprintf("TLS handshake: %v", f.err)
	}
	return f.err.Error()
}

func (f *connectError) Unwrap() error { return f.err }

// explainError returns the failure that was recorded, or err where there is none.
func (l *dialLog) explainError(err error) error {
	if f := l.failure.Load(); f != nil && err != nil {
		return f
	}
	return err
}

// expiryTime returns when the first of the certificates expires, or zero where the connection does
// not end with them.
func (l *dialLog) expiryTime() time.Time {
	if expiry := l.expiry.Load(); expiry != nil {
		return *expiry
	}
	return time.Time{}
}

// noteFailure records a failure, unless there was one before.
func (l *dialLog) noteFailure(handshake bool, err error) {
	l.failure.CompareAndSwap(nil, &connectError{handshake, err})
}

// dialOnce dials the address once, and fails when it is called again. Where an owner ends the
// connection before it has seen the stream, gRPC would connect again at once; but when to do so is
// Run's decision.
func (l *dialLog) dialOnce(ctx context.Context, _ string) (net.Conn, error) {
	if l.dialed.Swap(true) {
		return nil, errors.New("the owner ended the connection before the stream")
	}
	conn, err := l.dial(ctx, l.address)
	if err != nil {
		l.noteFailure(false, err)
	}
	return conn, err
}

// loggedCredentials are credentials whose handshakes are recorded in a dialLog.
type loggedCredentials struct {
	credentials.TransportCredentials
	dialLog *dialLog
}

func (c loggedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		c.dialLog.noteFailure(true, err)
		return nil, nil, err
	}
	owner, _ := mtls.PeerOf(info)
	c.dialLog.expiry.Store(new(owner.Expiry()))
	return &unconfirmedConn{Conn: conn, dialLog: c.dialLog, own: owner.Own()}, info, nil
}

func (c loggedCredentials) Clone() credentials.TransportCredentials {
	return loggedCredentials{c.TransportCredentials.Clone(), c.dialLog}
}

// unconfirmedConn is a connection whose TLS handshake may not be over. In TLS 1.3 a client is done
// before the server has verified the client's certificate, and learns of a refusal when it reads
// for the first time (RFC 8446 section 4.4.2.4 and appendix E.1.2).
type unconfirmedConn struct {
	net.Conn
	dialLog *dialLog
	own     mtls.Shown
	read    atomic.Bool // something has been read
}

// turnedAwayError is the alert of an owner that refuses the certificate of this side.
type turnedAwayError struct {
	own   mtls.Shown
	alert error
}

func (e *turnedAwayError) Error() string { return e.alert.Error() }

func (e *turnedAwayError) Unwrap() error { return e.alert }

// Read records an alert that is the first thing to read.
func (c *unconfirmedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.read.Load() {
		return n, err
	}
	if n > 0 {
		c.read.Store(true)
	} else if _, refused := alertText(err); refused {
		c.dialLog.noteFailure(true, &turnedAwayError{c.own, err})
	}
	return n, err
}

// Write hides that the owner is gone until something has been read. gRPC reads at the same time,
// and at an error of Write it closes the connection before Read has reached the alert that says
// why.
func (c *unconfirmedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && !c.read.Load() {
		return len(p), nil
	}
	return n, err
}
