package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// versionError ends a stream whose owner speaks another version of the protocol.
type versionError struct{ version uint32 }

func (e *versionError) Error() string {
	return fmt.Sprintf("the owner speaks version %d of the protocol, and this program version %d", e.version, version)
}

// closeError is the Close of an owner.
type closeError struct {
	reason     registrationv1.Close_Reason
	text       string
	retryAfter time.Duration
}

func (e *closeError) Error() string {
	text := "the owner closed the stream"
	if e.reason == registrationv1.Close_VERSION_MISMATCH {
		text = fmt.Sprintf("the owner does not speak version %d of the protocol", version)
	}
	if e.text != "" {
		text += ": " + safetext.Printable(e.text)
	}
	if e.retryAfter > 0 {
		text += fmt.Sprintf("; it is to be left alone for %v", e.retryAfter.Round(time.Millisecond))
	}
	return text
}

// streamError is the end of a stream by gRPC. Its text is safe to show.
type streamError struct{ error }

func (f streamError) Error() string {
	if errors.Is(f.error, io.EOF) {
		return "the owner ended the stream"
	}
	s := status.Convert(f.error)
	return fmt.Sprintf("%v: %s", s.Code(), safetext.Printable(s.Message()))
}

// Unwrap returns the error itself.
func (f streamError) Unwrap() error { return f.error }

// kindOf returns the same text for failures that mean the same to a reader of the log. The text has
// nothing that may change from one attempt to the next, such as a port.
func kindOf(err error) string {
	if network, ok := errors.AsType[*net.OpError](err); ok {
		return network.Op + " " + network.Err.Error()
	}
	if f, ok := errors.AsType[streamError](err); ok {
		return status.Code(f.error).String()
	}
	return fmt.Sprintf("%T", err)
}

// dialLog records why a connection could not be made, which gRPC reports only in the text of a
// status. It is the credentials and the dialer of one connection, and keeps its first failure.
type dialLog struct {
	credentials.TransportCredentials

	address string
	dial    func(ctx context.Context, address string) (net.Conn, error)
	first   atomic.Pointer[error]
}

// explainError returns err in a form that is safe to show. If gRPC only says that there is no
// connection, it returns the recorded failure.
func (l *dialLog) explainError(err error) error {
	if _, ok := status.FromError(err); err == nil || !ok && !errors.Is(err, io.EOF) {
		return err
	}
	if first := l.first.Load(); first != nil {
		return *first
	}
	return streamError{err}
}

func (l *dialLog) dialAddress(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := l.dial(ctx, l.address)
	if err != nil {
		l.first.CompareAndSwap(nil, &err)
	}
	return conn, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (l *dialLog) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := l.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		shown := fmt.Errorf("TLS handshake: %w", err)
		l.first.CompareAndSwap(nil, &shown)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials. It returns l itself, because a connection has
// one record.
func (l *dialLog) Clone() credentials.TransportCredentials { return l }
