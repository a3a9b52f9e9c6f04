package mtls

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Cause is why this side does not accept the certificate of a peer.
type Cause string

// The causes.
const (
	Expired          Cause = "expired"   // or it is not valid yet
	UnknownAuthority Cause = "authority" // none that this side trusts has signed it
	OtherIdentity    Cause = "identity"  // it has none of the IDs that the owner must have
	OtherHost        Cause = "host"      // it is not for the server name
	Unfit            Cause = "rule"      // it breaks another rule
)

// RefusedError says why this side does not accept the certificate of a peer. Its text is that
// of Err.
type RefusedError struct {
	Cause  Cause
	Wanted []federation.ID // of which the owner must have one, for OtherIdentity
	Err    error

	ca, agent string // from where the authorities are that this side trusts: one of the two is set
}

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Remedy says what to do about a peer, which of names.
func (e *RefusedError) Remedy(of string) string {
	switch {
	case e.Cause == Expired:
		return "have " + of + " renew its certificate, and compare the clocks of both machines"
	case e.Cause == OtherIdentity:
		return "correct owner_id, or the address if another owner answers there"
	case e.Cause == OtherHost:
		return "set tls_servername or owner_id to a name that the owner's certificate has, or have the owner get one for this host"
	case e.Cause != UnknownAuthority:
		return "have " + of + " get a certificate that keeps this rule"
	case e.agent != "":
		return "if you know it, have the SPIFFE agent at " + e.agent + " federate with the trust domain of " + of + ", and accept that domain here"
	}
	return "add the CA of " + of + " to " + safetext.Printable(cmp.Or(e.ca, "the CA file here")) + ", if you know it: until then its identities are only claimed"
}

// RefusalOf returns why a handshake failed in which this side did not accept the certificate
// of its peer, and reports whether it failed for that.
func RefusalOf(err error) (*RefusedError, bool) {
	refusal, ok := errors.AsType[*tls.CertificateVerificationError](err)
	if !ok {
		return nil, false
	}
	if refused, ok := errors.AsType[*RefusedError](refusal.Err); ok {
		return refused, true
	}
	refused := &RefusedError{Cause: Unfit, Err: refusal.Err}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](refusal.Err); ok && invalid.Reason == x509.Expired {
		refused.Cause = Expired
	} else if _, ok := errors.AsType[x509.UnknownAuthorityError](refusal.Err); ok {
		refused.Cause = UnknownAuthority
	}
	return refused, true
}

// explainRefusal has the error of a handshake say what RefusalOf returns, with where the authorities
// are from that this side trusts.
func (o *followedOrigin) explainRefusal(err error) {
	if refused, ok := RefusalOf(err); ok {
		refused.ca = o.files.CA
		if o.agent != nil {
			refused.agent = o.agent.socket
		}
		refusal, _ := errors.AsType[*tls.CertificateVerificationError](err)
		refusal.Err = refused
	}
}
