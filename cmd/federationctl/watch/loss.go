package watch

import (
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// remedy returns what can be done about a failure. It reports in refused whether the peer is
// not the owner, or does not accept the certificate of this consumer: at the first attempt
// that is mostly a mistake in the flags.
func remedy(err error) (text string, refused bool) {
	if refusal, ok := mtls.RefusalOf(err); ok {
		return refusalRemedy(refusal), true
	}
	network, _ := errors.AsType[*net.OpError](err)
	switch {
	case is[tls.RecordHeaderError](err):
		return "check ADDRESS: what answers there does not speak TLS", true
	case network != nil && network.Op == "remote error": // an alert of TLS
		return "check --cert: the owner's CA file must have its authority", true
	case is[*net.DNSError](err):
		return "check the host in ADDRESS", false
	}
	switch status.Code(err) {
	case codes.Unauthenticated:
		return "check --cert, or have the owner allow it with --allow-id", false
	case codes.InvalidArgument, codes.Unimplemented:
		return "check --api: the owner may speak another version", false
	}
	return "check ADDRESS, and that the owner is up", false
}

// refusalRemedy returns what can be done about a peer whose certificate is not accepted.
func refusalRemedy(refusal *mtls.RefusedError) string {
	switch refusal.Cause {
	case mtls.Expired:
		return "have the owner renew its certificate, and compare the clocks of both machines"
	case mtls.UnknownAuthority:
		return "check --ca, or " + refusal.AddAuthority("the owner")
	case mtls.OtherIdentity:
		return "check --owner-id, and the host in ADDRESS"
	case mtls.OtherHost:
		return "check the host in ADDRESS, or name the owner with --owner-id"
	case mtls.Unfit:
	}
	return "have the owner get a certificate that keeps this rule"
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
