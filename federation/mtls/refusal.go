package mtls

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// The causes for which this side does not accept the certificate of a peer.
const (
	causeExpired   = "expired"   // the certificate is expired or not valid yet
	causeAuthority = "authority" // no authority that this side trusts has signed the certificate
	causeIdentity  = "identity"  // the certificate has none of the IDs that the owner must have
	causeHost      = "host"      // the certificate is not for the server name
	causeRule      = "rule"      // the certificate breaks another rule
)

// RefusedError says why this side does not accept the certificate of a peer. Its text is that
// of Err, and safe to show.
type RefusedError struct {
	Cause   string          // expired, authority, identity, host, or rule for any other
	Claimed []federation.ID // in the certificate; nobody knows whether they are the peer's
	Err     error           // the rule that the certificate breaks

	ca, agent string // the origin of the authorities that this side trusts: one of the two is set
}

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Remedy returns what to do, as the end of a sentence. What the peer is called there, for example "the owner",
// is of.
func (e *RefusedError) Remedy(of string) string {
	switch {
	case e.Cause == causeExpired:
		return "have " + of + " renew its certificate, and compare the clocks of both machines"
	case e.Cause == causeIdentity:
		return "correct owner_id, or the address if another owner answers there"
	case e.Cause == causeHost:
		return "set tls_servername or owner_id to a name that the owner's certificate has, or have the owner get one for this host"
	case e.Cause != causeAuthority:
		return "have " + of + " get a certificate that keeps this rule"
	case e.agent != "":
		return "if you know it, have the SPIFFE agent at " + e.agent + " federate with the trust domain of " + of + ", and accept that domain here"
	}
	return "add the CA of " + of + " to " + safetext.Printable(cmp.Or(e.ca, "the CA file here")) + ", if you know it: until then its identities are only claimed"
}

// RefusalOf returns why this side did not accept the certificate of its peer, and reports whether err, the
// error of a handshake or of a stream that wraps it, is about that.
func RefusalOf(err error) (*RefusedError, bool) {
	refusal, ok := errors.AsType[*tls.CertificateVerificationError](err)
	if !ok {
		return nil, false
	}
	if refused, ok := errors.AsType[*RefusedError](refusal.Err); ok {
		return refused, true
	}
	refused := &RefusedError{Cause: causeRule, Err: refusal.Err}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](refusal.Err); ok && invalid.Reason == x509.Expired {
		refused.Cause = causeExpired
	} else if _, ok := errors.AsType[x509.UnknownAuthorityError](refusal.Err); ok {
		refused.Cause = causeAuthority
	}
	return refused, true
}

// explainRefusal adds to the RefusedError of a handshake which identities the peer claims, and the
// origin of the authorities that this side trusts.
func (o *followedOrigin) explainRefusal(err error) {
	if refused, ok := RefusalOf(err); ok {
		refused.ca = o.files.CA
		if o.agent != nil {
			refused.agent = o.agent.socket
		}
		refusal, _ := errors.AsType[*tls.CertificateVerificationError](err)
		if len(refusal.UnverifiedCertificates) > 0 {
			refused.Claimed = claimedIDs(refusal.UnverifiedCertificates[0])
		}
		refusal.Err = refused
	}
}
