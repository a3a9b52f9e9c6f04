package watch

import (
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// remedy returns what can be done about a failure. It reports in refused whether the peer is
// not the owner, or does not accept the certificate of this consumer: at the first attempt
// that is mostly a mistake in the flags.
func remedy(err error) (text string, refused bool) {
	network, _ := errors.AsType[*net.OpError](err)
	switch {
	case is[*tls.CertificateVerificationError](err):
		return "check --ca and --owner-id, or the host in ADDRESS", true
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

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// lossKind returns the same text for losses that are the same to a reader. It leaves
// out what changes from one attempt to the next, such as a port.
func lossKind(err error) string {
	if network, ok := errors.AsType[*net.OpError](err); ok {
		err = network.Err
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return lookup.Err
	}
	return err.Error()
}
