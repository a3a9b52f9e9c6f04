package watch

import (
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusedHandshake reports whether the peer is not the owner, or does not accept
// the certificate of this consumer. At the first attempt that is mostly a mistake in
// the flags.
func refusedHandshake(err error) bool {
	_, identity := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	network, ok := errors.AsType[*net.OpError](err)
	return identity || plain || ok && network.Op == "remote error" // an alert of TLS
}

// remedy returns what can be done about a failure.
func remedy(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "check --ca and --owner-id, or the host in ADDRESS"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "check ADDRESS: what answers there does not speak TLS"
	}
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "remote error" { // an alert of TLS
		return "check --cert: the owner's CA file must have its authority"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "check the host in ADDRESS"
	}
	code := status.Code(err)
	if code == codes.Unauthenticated {
		return "check --cert, or have the owner allow it with --allow-id"
	}
	if code == codes.InvalidArgument || code == codes.Unimplemented {
		return "check --api: the owner may speak another version"
	}
	return "check ADDRESS, and that the owner is up"
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
