package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// verdict is what the end of a session calls for.
type verdict uint8

const (
	retry verdict = iota
	calm          // retry, and send fewer pings
	park          // do not retry before something has changed
)

// end is how a session ended. It is an error with a text that is safe to show.
type end struct {
	verdict verdict
	code    codes.Code
	err     error
}

// classify turns the error with which a session ended into a decision.
func classify(err error) end {
	var f *failure
	code := status.Code(err)
	switch {
	// Hamlet: a consumer that is not authenticated "must not retry". Neither does
	// it help to try an owner again that is not who it should be.
	case errors.As(err, &f) && f.handshake && refused(f.err):
		return end{park, codes.Unauthenticated, err}
	case f != nil:
		return end{retry, codes.Unavailable, err}
	case errors.Is(err, io.EOF):
		return end{retry, codes.OK, err}
	case code == codes.Unauthenticated, code == codes.InvalidArgument:
		return end{park, code, err}
	// gRPC, A8: an owner that gets more pings than it allows ends the connection
	// with this debug data. gRPC shows it nowhere but in the text of the status.
	case code == codes.Unavailable && strings.Contains(status.Convert(err).Message(), `debug data: "too_many_pings"`):
		return end{calm, code, err}
	}
	return end{retry, code, err}
}

// refused tells whether an error of a TLS handshake is a refusal: the
// certificate of one side does not please the other, or the other does not speak
// TLS. Otherwise the network failed, or the owner could not answer just then.
func refused(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") { // an alert, received or sent
		// RFC 8446 section 6.2: these two have nothing to do with the peer.
		text := op.Err.Error()
		return text != tls.AlertError(80).Error() && text != tls.AlertError(90).Error() // internal_error, user_canceled
	}
	var network net.Error
	return !errors.As(err, &network) &&
		!errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.ErrClosedPipe) &&
		!errors.Is(err, net.ErrClosed) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func (e end) Error() string {
	if e.code == codes.OK {
		return "the owner closed the stream"
	}
	if s, ok := status.FromError(e.err); ok {
		return fmt.Sprintf("%v: %s", e.code, federation.Quote(s.Message()))
	}
	return e.err.Error()
}

func (e end) Unwrap() error { return e.err }

// kind is the same for ends that are the same to a reader of the log. Unlike
// the text it holds nothing that changes from one attempt to the next, such as
// a port number or what the owner pleases to say.
func (e end) kind() string {
	var f *failure
	var number syscall.Errno
	errors.As(e.err, &f)
	errors.As(e.err, &number)
	return fmt.Sprint(e.code, f != nil, f != nil && f.handshake, int(number))
}

// remedy tells what can be done, where something can.
func (e end) remedy() string {
	var identity *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(e.err, &identity):
		return "correct the owner's certificate, or owner_id, tls_servername and the CA file here"
	case errors.As(e.err, &plain):
		return "correct the address: what answers there does not speak TLS"
	case e.code == codes.Unauthenticated:
		return "have the owner admit the certificate of this consumer, or use another one"
	case e.code == codes.InvalidArgument, e.code == codes.Unimplemented:
		return "compare api with the version that the owner speaks"
	case e.code == codes.ResourceExhausted:
		return "raise max_message if the owner has services that are really so large"
	}
	return ""
}
