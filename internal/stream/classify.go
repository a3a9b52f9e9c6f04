package stream

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/connect"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// retryVerdict says what to do after the end of a session.
type retryVerdict uint8

const (
	retry retryVerdict = iota
	quick              // retry, and soon: an attempt costs next to nothing
	calm               // retry, and send fewer pings
	slow               // retry, but not often: somebody has to fix something first
	park               // do not retry before something has changed, or before the time that the owner gave
)

// sessionError says how a session ended, and what to do next. Its text is safe to show.
type sessionError struct {
	verdict retryVerdict
	code    codes.Code
	err     error
	after   time.Duration // for how long the owner asks not to be tried; 0: the owner does not ask
}

// classifyEnd returns what to do after the error with which a session ended. A status code comes
// from the owner itself, because no stream is opened before the owner has proved its identity.
func classifyEnd(err error) sessionError {
	code := status.Code(err)
	f, below := errors.AsType[*connect.DialError](err)
	after := retryAfter(err)
	_, unwanted := errors.AsType[UnwantedError](err)
	r, resumed := errors.AsType[*resumeError](err)
	switch {
	// Whatever is wrong with a handshake may pass: clocks get set, certificates get
	// renewed, and what answered in plain text was not the owner.
	case below && f.Handshake && !isCutOff(err):
		return sessionError{verdict: slow, code: codes.Unavailable, err: err}
	// Nobody listens yet, or the name is not there: a restart ends in that way. What stands before
	// the owner may accept connections meanwhile, and has nobody to pass them on to.
	case below && !isTimeout(err):
		return sessionError{verdict: quick, code: codes.Unavailable, err: err}
	case below:
		return sessionError{verdict: retry, code: codes.Unavailable, err: err}
	case errors.Is(err, errSilent):
		return sessionError{verdict: retry, code: codes.DeadlineExceeded, err: err}
	case unwanted:
		return sessionError{verdict: slow, code: codes.FailedPrecondition, err: err}
	case resumed && !r.asked: // so the next attempt ends in the same way
		return sessionError{verdict: slow, code: codes.FailedPrecondition, err: err}
	case resumed:
		return sessionError{verdict: retry, code: codes.FailedPrecondition, err: err}
	case errors.Is(err, io.EOF):
		return sessionError{verdict: retry, code: codes.OK, err: err}
	// Hamlet: a consumer that is not authenticated "must not retry", unless the owner says
	// that it may.
	case code == codes.Unauthenticated, code == codes.InvalidArgument:
		return sessionError{verdict: park, code: code, err: err, after: after}
	case isUnreadable(err):
		return sessionError{verdict: slow, code: code, err: err}
	// gRPC, A8: an owner that gets more pings than it allows ends the connection
	// with this debug data. gRPC shows it nowhere but in the text of the status.
	case code == codes.Unavailable && strings.Contains(status.Convert(err).Message(), `debug data: "too_many_pings"`):
		return sessionError{verdict: calm, code: code, err: err}
	// The owner says itself when it can be tried again: soon, and not by all at once.
	case code == codes.Unavailable && after > 0:
		return sessionError{verdict: quick, code: code, err: err, after: after}
	}
	return sessionError{verdict: retry, code: code, err: err, after: after}
}

// retryAfter returns for how long the owner asks not to be tried, by a RetryInfo (google.rpc) in a
// status Unavailable or in a status after which it would not be tried again. It returns 0 where the
// owner asks for nothing that makes sense.
func retryAfter(err error) time.Duration {
	s, ok := status.FromError(err)
	if !ok || !slices.Contains([]codes.Code{codes.Unavailable, codes.Unauthenticated, codes.InvalidArgument}, s.Code()) {
		return 0
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() {
			return min(max(info.GetRetryDelay().AsDuration(), 0), maxSlowDelay)
		}
	}
	return 0
}

// isUnreadable reports whether a message was too large to be read at all. The next stream comes to
// the same message again, after the whole catalog before it. The owner is not parked for that,
// because it can repair the message alone, without any change on this side.
func isUnreadable(err error) bool {
	// gRPC shows it only in the text. An owner that sends this text itself is
	// subscribed to less often.
	return status.Code(err) == codes.ResourceExhausted &&
		strings.HasPrefix(status.Convert(err).Message(), "grpc: received message larger than max")
}

func (e sessionError) Error() string {
	if e.code == codes.OK {
		return "the owner closed the stream"
	}
	if e.verdict == calm { // gRPC puts the reason at the end of a text that is too long to be shown
		return fmt.Sprintf("%v: the owner gets more pings than it allows (too_many_pings)", e.code)
	}
	if s, ok := status.FromError(e.err); ok {
		return fmt.Sprintf("%v: %s", e.code, safetext.Printable(s.Message()))
	}
	return e.err.Error()
}

func (e sessionError) Unwrap() error { return e.err }

// wasSilent reports whether this side left the owner because nothing came from it.
func (e sessionError) wasSilent() bool { return errors.Is(e.err, errSilent) }

// logKey returns the same string for ends that mean the same to a reader of the log. Unlike the
// text, the key has nothing that changes from one attempt to the next, such as a port number, the
// time or the owner's own words.
func (e sessionError) logKey() string {
	var kind strings.Builder
	kind.WriteString(e.code.String())
	for err := e.err; err != nil; err = errors.Unwrap(err) {
		fmt.Fprintf(&kind, " %T", err)
		switch err := err.(type) { //nolint:errorlint // each link of the chain is looked at
		case syscall.Errno:
			kind.WriteString(strconv.Itoa(int(err)))
		case x509.CertificateInvalidError:
			kind.WriteString(strconv.Itoa(int(err.Reason)))
		case *mtls.RefusedError:
			kind.WriteString(err.Cause)
		}
	}
	text, _ := connect.AlertText(e.err)
	return kind.String() + text
}

// Remedy returns what to do about the end of the session, or "". Section "Why there is no stream"
// of docs/runbook.md says the same at length.
func (e sessionError) Remedy() string {
	if text, ok := connect.AlertText(e.err); ok {
		var own mtls.Shown
		if away, ok := errors.AsType[*connect.AlertError](e.err); ok {
			own = away.Own
		}
		return alertRemedy(text, own)
	}
	if refused, ok := mtls.RefusalOf(e.err); ok {
		return refused.Remedy("the owner")
	}
	var plain tls.RecordHeaderError
	var name *net.DNSError
	f, below := errors.AsType[*connect.DialError](e.err)
	switch own := RemedyOf(e.err); {
	case own != "":
		return own
	case e.code == codes.Unavailable && e.after > 0:
		return "wait a moment; if this lasts, have the owner repair the source that its catalog waits for: the owner's status page and log say which"
	case errors.As(e.err, &plain):
		return "whatever listens at this port does not speak TLS; check the address"
	case below && !f.Handshake && errors.As(e.err, &name):
		return "correct the name in the address of the owner, or the resolver of this machine"
	case below && !f.Handshake && errors.Is(e.err, syscall.ECONNREFUSED):
		return "start the owner; if it runs, compare the address that it listens on with the address here"
	case below && !f.Handshake && (isTimeout(e.err) || errors.Is(e.err, syscall.EHOSTUNREACH) || errors.Is(e.err, syscall.ENETUNREACH)):
		return "check the address of the owner, its machine, and the firewalls and links in between"
	case below && isTimeout(e.err), errors.Is(e.err, errSilent), isUnansweredPing(e):
		return "open the owner's status page: if it does not answer either, restart the owner; if it does, the network in between drops packets"
	case e.verdict == calm:
		return "nothing: this consumer doubles the interval of its pings until the owner allows them"
	case e.code == codes.Unauthenticated:
		return "have the owner allow an identity of this consumer's certificate, or use another certificate"
	case e.code == codes.InvalidArgument, e.code == codes.Unimplemented:
		return "set api to the version that the owner speaks"
	case isUnreadable(e.err):
		return fmt.Sprintf("have the owner split the service: a message that is %d times as large as is allowed cannot be skipped", readFactor)
	}
	return ""
}

// isCutOff reports whether the other side ended a connection without saying why.
func isCutOff(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

// RemedyOf returns the remedy that an error has for its cause, or "".
func RemedyOf(err error) string {
	if failure, ok := errors.AsType[interface {
		error
		Remedy() string
	}](err); ok {
		return failure.Remedy()
	}
	return ""
}

// isTimeout reports whether an error from below gRPC says that something took too long.
func isTimeout(err error) bool {
	limit, ok := errors.AsType[net.Error](err)
	return ok && limit.Timeout()
}

// isUnansweredPing reports whether the owner has left a ping unanswered, which gRPC shows only in
// the text.
func isUnansweredPing(e sessionError) bool {
	return e.code == codes.Unavailable && strings.Contains(status.Convert(e.err).Message(), "keepalive ping failed")
}

// alertRemedy returns what to do about an alert of the owner, or "". Own is the certificate that
// this side has shown to the owner.
func alertRemedy(text string, own mtls.Shown) string {
	// RFC 8446 section 6.2
	const (
		certificateExpired    = tls.AlertError(45)
		unknownAuthority      = tls.AlertError(48)
		protocolVersion       = tls.AlertError(70)
		internalError         = tls.AlertError(80)
		userCanceled          = tls.AlertError(90)
		noApplicationProtocol = tls.AlertError(120)
	)
	switch text {
	case internalError.Error(), userCanceled.Error(): // have nothing to do with this consumer
		return ""
	case protocolVersion.Error(), noApplicationProtocol.Error():
		return "have the owner speak TLS 1.3 and HTTP/2"
	}
	renew, expiry := cmp.Or(own.Renew, "the certificate of this consumer"), own.Expiry.UTC().Format(time.RFC3339)
	switch {
	case !own.Expiry.IsZero() && time.Until(own.Expiry) <= 0:
		return "renew " + renew + ", expired at " + expiry
	case text == certificateExpired.Error():
		return "compare the clocks of both machines: " + renew + " is valid until " + expiry
	case text == unknownAuthority.Error():
		return "have the owner add the CA that has signed " + renew + " to its own CA file, or use a certificate of a CA that it knows"
	}
	return "look under 'turned away' in the status of the owner: the reason there says what the owner does not accept of " + renew
}
