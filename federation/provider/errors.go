package provider

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/connect"
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

// explainError returns err in a form that is safe to show or, if gRPC only says that there is
// no connection, what the attempt has recorded of that.
func explainError(err error, attempt *connect.Attempt) error {
	if _, ok := status.FromError(err); err == nil || !ok && !errors.Is(err, io.EOF) {
		return err
	}
	return attempt.Explain(streamError{err})
}
