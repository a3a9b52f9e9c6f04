// Package connect makes one connection to an owner, and remembers why it could not be made or was
// refused, which gRPC says only in the text of a status.
package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Attempt is one connection to an owner: its dialer, and what is remembered of it. The goroutines
// of gRPC write to it, so that its fields are atomic. Of several failures it keeps the first one.
type Attempt struct {
	Address string
	Dial    func(ctx context.Context, address string) (net.Conn, error) // nil: TCP

	dialed  atomic.Bool
	failure atomic.Pointer[DialError] // the first one
	expiry  atomic.Pointer[time.Time] // as mtls.Peer.Expiry has it; nil before the handshake
}

// DialError is an error from below gRPC. Its text is safe to show, because crypto/tls and net
// repeat nothing that the peer sent, and package mtls quotes it.
type DialError struct {
	Handshake bool // the TLS handshake failed, not dialing
	Err       error
}

func (f *DialError) Error() string {
	if f.Handshake {
		return fmt.Sprintf("TLS handshake: %v", f.Err)
	}
	return f.Err.Error()
}

func (f *DialError) Unwrap() error { return f.Err }

// Explain returns the failure that was recorded, instead of an error, or that error where there is
// none.
func (a *Attempt) Explain(err error) error {
	if f := a.failure.Load(); f != nil && err != nil {
		return f
	}
	return err
}

// Expiry returns when the first of the certificates expires, or zero where the connection does
// not end with them.
func (a *Attempt) Expiry() time.Time {
	if expiry := a.expiry.Load(); expiry != nil {
		return *expiry
	}
	return time.Time{}
}

// noteFailure records a failure, unless there was one before.
func (a *Attempt) noteFailure(handshake bool, err error) {
	a.failure.CompareAndSwap(nil, &DialError{handshake, err})
}

// DialOnce dials the address once, and fails when it is called again. Where an owner ends the
// connection before it has seen the stream, gRPC would connect again at once; but when to do so is
// for the caller to decide.
func (a *Attempt) DialOnce(ctx context.Context, _ string) (net.Conn, error) {
	if a.dialed.Swap(true) {
		return nil, errors.New("the owner ended the connection before the stream")
	}
	dial := a.Dial
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	conn, err := dial(ctx, a.Address)
	if err != nil {
		a.noteFailure(false, err)
	}
	return conn, err
}

// NewClient returns a connection for one stream, with credentials whose handshakes are recorded in the
// attempt. Each stream has its own connection, so that gRPC's backoff between connections never applies.
// Timeout bounds TCP, TLS and the first frame of HTTP/2, and most the bytes of a response header.
func (a *Attempt) NewClient(of credentials.TransportCredentials, timeout time.Duration, most uint32, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///owner", append(options, // the dialer knows the address
		grpc.WithContextDialer(a.DialOnce),
		grpc.WithTransportCredentials(a.Credentials(of)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: timeout}),
		grpc.WithMaxHeaderListSize(most),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	)...)
}

// Credentials returns the credentials with handshakes that are recorded in the attempt.
func (a *Attempt) Credentials(of credentials.TransportCredentials) credentials.TransportCredentials {
	return attemptCredentials{of, a}
}

type attemptCredentials struct {
	credentials.TransportCredentials

	attempt *Attempt
}

func (c attemptCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		c.attempt.noteFailure(true, err)
		return nil, nil, err
	}
	owner, _ := mtls.PeerOf(info)
	c.attempt.expiry.Store(new(owner.Expiry()))
	return &unconfirmedConn{Conn: conn, attempt: c.attempt, own: owner.Own()}, info, nil
}

func (c attemptCredentials) Clone() credentials.TransportCredentials {
	return attemptCredentials{c.TransportCredentials.Clone(), c.attempt}
}

// unconfirmedConn is a connection whose TLS handshake may not be over. In TLS 1.3 a client is done
// before the server has verified the client's certificate, and learns of a refusal when it reads
// for the first time (RFC 8446 section 4.4.2.4 and appendix E.1.2).
type unconfirmedConn struct {
	net.Conn
	attempt *Attempt
	own     mtls.Shown
	read    atomic.Bool // something has been read
}

// AlertError is the alert of an owner that refuses the certificate of this side.
type AlertError struct {
	Own   mtls.Shown // that certificate
	alert error
}

func (e *AlertError) Error() string { return e.alert.Error() }

func (e *AlertError) Unwrap() error { return e.alert }

// Read records an alert that is the first thing to read.
func (c *unconfirmedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.read.Load() {
		return n, err
	}
	if n > 0 {
		c.read.Store(true)
	} else if _, refused := AlertText(err); refused {
		c.attempt.noteFailure(true, &AlertError{c.own, err})
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

// AlertText returns the alert with which the owner ended the TLS handshake, and whether there is
// one.
func AlertText(err error) (text string, ok bool) {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" { // as crypto/tls calls it
		return "", false
	}
	return op.Err.Error(), true
}
