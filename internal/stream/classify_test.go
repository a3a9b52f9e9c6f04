package stream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/internal/connect"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// alerted is the error of a handshake that the peer ended with an alert.
func alerted(alert tls.AlertError) error {
	return &connect.DialError{Handshake: true, Err: &net.OpError{Op: "remote error", Err: alert}}
}

// What each end of a session calls for, says, and advises.
func TestClassify(t *testing.T) {
	const admit = "have the owner allow an identity of this consumer's certificate, or use another certificate"
	for name, tc := range map[string]struct {
		err     error
		verdict retryVerdict
		code    codes.Code
		text    string
		remedy  string // its beginning
	}{
		"refused connection": {&connect.DialError{Err: syscall.ECONNREFUSED}, quick, codes.Unavailable, "connection refused", "start the owner"},
		"dial too late": {
			&connect.DialError{Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}}, retry, codes.Unavailable, "dial tcp: i/o timeout", "check the address of the owner, its machine",
		},
		"no route": {
			&connect.DialError{Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}},
			quick, codes.Unavailable, "dial tcp: connect: no route to host", "check the address of the owner, its machine",
		},
		"no name": {
			&connect.DialError{Err: &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "o.example", IsNotFound: true}}},
			quick, codes.Unavailable, "dial tcp: lookup o.example: no such host", "correct the name",
		},
		"late name": {
			&connect.DialError{Err: &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "i/o timeout", Name: "o.example", IsTimeout: true}}},
			retry, codes.Unavailable, "dial tcp: lookup o.example: i/o timeout", "correct the name",
		},
		"late handshake": {&connect.DialError{Handshake: true, Err: context.DeadlineExceeded}, slow, codes.Unavailable, "TLS handshake: context deadline exceeded", "open the owner's status page"},
		"no answer to a ping": {
			status.Error(codes.Unavailable, "keepalive ping failed to receive ACK within timeout"), retry, codes.Unavailable, "Unavailable: ", "open the owner's status page",
		},
		"handshake": {&connect.DialError{Handshake: true, Err: io.EOF}, quick, codes.Unavailable, "TLS handshake: EOF", ""},
		"alert":     {alerted(42), slow, codes.Unavailable, "TLS handshake: remote error: tls: bad certificate", "look under 'turned away' in the status of the owner: the reason there says what the owner does not accept of the certificate of this consumer"},
		"alert 70":  {alerted(70), slow, codes.Unavailable, "TLS handshake: remote error: tls: protocol version not supported", "have the owner speak TLS 1.3 and HTTP/2"},
		"alert 120": {alerted(120), slow, codes.Unavailable, "TLS handshake: remote error: tls: no application protocol", "have the owner speak TLS 1.3 and HTTP/2"},
		"alert 80":  {alerted(80), slow, codes.Unavailable, "TLS handshake: remote error: tls: internal error", ""},
		"alert 90":  {alerted(90), slow, codes.Unavailable, "TLS handshake: remote error: tls: user canceled", ""},
		"plain text": {
			&connect.DialError{Handshake: true, Err: tls.RecordHeaderError{Msg: "odd"}}, slow, codes.Unavailable, "TLS handshake: tls: odd", "whatever listens at this port",
		},
		"expired": {
			&connect.DialError{Handshake: true, Err: &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}},
			slow, codes.Unavailable, "TLS handshake: tls: failed to verify certificate: x509: certificate has expired", "have the owner renew its certificate",
		},
		"no CA": {
			&connect.DialError{Handshake: true, Err: &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign}}},
			slow, codes.Unavailable, "TLS handshake: tls: failed to verify certificate: x509: certificate is not authorized to sign", "have the owner get a certificate that keeps this rule",
		},
		"digests that were not sent": {&resumeError{"odd", false}, slow, codes.FailedPrecondition, "the owner's header federation-resume: odd", ""},
		"digests that were sent":     {&resumeError{"odd", true}, retry, codes.FailedPrecondition, "the owner's header federation-resume: odd", ""},
		"silent":                     {fmt.Errorf("wrapped: %w", errSilent), retry, codes.DeadlineExceeded, "wrapped: the owner sends nothing", "open the owner's status page"},
		"closed":                     {io.EOF, retry, codes.OK, "the owner closed the stream", ""},
		"unauthenticated":            {status.Error(codes.Unauthenticated, "who?"), park, codes.Unauthenticated, "Unauthenticated: who?", admit},
		"invalid argument":           {status.Error(codes.InvalidArgument, "no"), park, codes.InvalidArgument, "InvalidArgument: no", "set api to the version"},
		"unimplemented":              {status.Error(codes.Unimplemented, "no"), retry, codes.Unimplemented, "Unimplemented: no", "set api to the version"},
		"unavailable":                {status.Error(codes.Unavailable, "down"), retry, codes.Unavailable, "Unavailable: down", ""},
		"unavailable until":          {forbidding(t, codes.Unavailable, time.Second)(nil), quick, codes.Unavailable, "Unavailable: who are you?", "wait a moment"},
		"unreadable": {
			status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)"), slow, codes.ResourceExhausted, "ResourceExhausted: ", "have the owner split the service",
		},
		"exhausted":   {status.Error(codes.ResourceExhausted, "quota"), retry, codes.ResourceExhausted, "ResourceExhausted: quota", ""},
		"larger":      {status.Error(codes.Internal, "grpc: received message larger than max"), retry, codes.Internal, "Internal: ", ""},
		"pings":       {status.Error(codes.Unavailable, `closing, debug data: "too_many_pings"`), calm, codes.Unavailable, "Unavailable: ", "nothing: this consumer doubles the interval"},
		"other pings": {status.Error(codes.Internal, `debug data: "too_many_pings"`), retry, codes.Internal, "Internal: ", ""},
		"local":       {&net.OpError{Op: "local error", Err: tls.AlertError(42)}, retry, codes.Unknown, "local error: ", ""},
		"of the sink": {errors.New("full"), retry, codes.Unknown, "full", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := classifyEnd(tc.err)
			if got.verdict != tc.verdict || got.code != tc.code || !errors.Is(got, tc.err) {
				t.Errorf("classified as %d, %v", got.verdict, got.code)
			}
			if text := got.Error(); !strings.HasPrefix(text, tc.text) {
				t.Errorf("the text is %q, want %q", text, tc.text)
			}
			if remedy := got.Remedy(); !strings.HasPrefix(remedy, tc.remedy) || tc.remedy == "" && remedy != "" {
				t.Errorf("the remedy is %q, want %q", remedy, tc.remedy)
			}
		})
	}
}

// Two codes park, and only they.
func TestParks(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		parks := code == codes.Unauthenticated || code == codes.InvalidArgument
		if e := classifyEnd(status.Error(code, "because\n")); (e.verdict == park) != parks || e.code != code || e.Error() != code.String()+`: because\n` {
			t.Errorf("%v: verdict %d, %v", code, e.verdict, e)
		}
	}
}

// An owner that asks not to be tried for a while is not, up to a bound, and those that
// are asked the same do not come back together.
func TestRetryInfo(t *testing.T) {
	for name, tc := range map[string]struct {
		code            codes.Code
		after           *durationpb.Duration
		atLeast, atMost time.Duration // until the next attempt
	}{
		"a minute":                {codes.Unavailable, durationpb.New(time.Minute), time.Minute, 75 * time.Second},
		"a minute, parked":        {codes.Unauthenticated, durationpb.New(time.Minute), time.Minute, 75 * time.Second},
		"a minute, parked also":   {codes.InvalidArgument, durationpb.New(time.Minute), time.Minute, 75 * time.Second},
		"a minute, of other code": {codes.Internal, durationpb.New(time.Minute), time.Second, 2 * time.Second},
		"an instant":              {codes.Unavailable, durationpb.New(time.Millisecond), time.Second, time.Second},
		"a year":                  {codes.Unavailable, durationpb.New(365 * 24 * time.Hour), maxSlowDelay, maxSlowDelay * 5 / 4},
		"in the past":             {codes.Unavailable, durationpb.New(-time.Hour), time.Second, 2 * time.Second},
		"out of range":            {codes.Unavailable, &durationpb.Duration{Seconds: 1 << 62}, time.Second, 2 * time.Second},
		"contradicted":            {codes.Unavailable, &durationpb.Duration{Seconds: 60, Nanos: -1}, time.Second, 2 * time.Second},
		"nothing":                 {codes.Unavailable, nil, time.Second, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			delays := make(map[time.Duration]bool)
			refused := must.Get(status.New(tc.code, "too many").WithDetails(&errdetails.RetryInfo{RetryDelay: tc.after}))(t)
			for range 100 {
				var r replica
				r.noteEnd(classifyEnd(refused.Err()))
				delay := time.Until(r.nextAttempt())
				delays[delay] = true
				if delay < tc.atLeast || delay > tc.atMost || r.final {
					t.Errorf("%s: the next attempt is after %v, want %v to %v", name, delay, tc.atLeast, tc.atMost)
				}
			}
			if len(delays) < 50 && tc.atMost > tc.atLeast {
				t.Errorf("%s: the delays are %v", name, delays)
			}
		})
	}
}

// The kind of an end tells apart what a reader of the log would, and nothing else.
func TestKind(t *testing.T) {
	certificate := func(reason x509.InvalidReason) error {
		return &connect.DialError{Handshake: true, Err: x509.CertificateInvalidError{Reason: reason}}
	}
	kinds := make(map[string]string)
	for name, err := range map[string]error{
		"closed":      io.EOF,
		"refused":     &connect.DialError{Err: &net.OpError{Err: syscall.ECONNREFUSED}},
		"unreachable": &connect.DialError{Err: &net.OpError{Err: syscall.EHOSTUNREACH}},
		"expired":     certificate(x509.Expired),
		"no CA":       certificate(x509.NotAuthorizedToSign),
		"alert 42":    alerted(42),
		"alert 80":    alerted(80),
		"unavailable": status.Error(codes.Unavailable, "down"),
		"internal":    status.Error(codes.Internal, "down"),
	} {
		kind := classifyEnd(err).logKey()
		if other, ok := kinds[kind]; ok {
			t.Errorf("%s and %s are of one kind: %s", name, other, kind)
		}
		kinds[kind] = name
	}
	for name, pair := range map[string][2]error{
		"texts of the owner": {status.Error(codes.Unavailable, "down at 1"), status.Error(codes.Unavailable, "down at 2")},
		"port numbers": {
			&connect.DialError{Err: &net.OpError{Addr: &net.TCPAddr{Port: 1}, Err: syscall.ECONNRESET}},
			&connect.DialError{Err: &net.OpError{Addr: &net.TCPAddr{Port: 2}, Err: syscall.ECONNRESET}},
		},
	} {
		if a, b := classifyEnd(pair[0]).logKey(), classifyEnd(pair[1]).logKey(); a != b {
			t.Errorf("%s make kinds: %s, %s", name, a, b)
		}
	}
}
