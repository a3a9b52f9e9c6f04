package mtls

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// The rules of an X509-SVID that a certificate can break, beside those of package
// x509svid, by the section of X509-SVID.
var (
	errSignature    = errors.New("key usage has no digitalSignature")                                        // 4.3
	errUsage        = errors.New("extended key usage does not have both serverAuth and clientAuth")          // 4.4
	errIntermediate = errors.New("an intermediate authority of another trust domain stands between the two") // see verifySVID
)

// verifySVID returns why the first certificate of chain is no X509-SVID that an authority of its
// own trust domain has signed, or nil. The text of the error is safe to show.
//
// One rule is stricter than X509-SVID: an intermediate authority that has a SPIFFE ID must be of
// the trust domain of the leaf. Otherwise two trust domains with the same root could issue the
// identities of each other.
func verifySVID(chain []*x509.Certificate, domains map[spiffeid.TrustDomain]*x509bundle.Bundle, at time.Time) error {
	leaf := chain[0]
	refused := func(err error) error {
		return fmt.Errorf("certificate for %s is no X509-SVID that may be trusted: %w", quotedNames(leaf), err)
	}
	raw, err := x509svid.IDFromCert(leaf)
	if err != nil {
		return refused(printableError(err))
	}
	if _, err = federation.ParseID(raw.String()); err != nil {
		return refused(errors.Unwrap(err)) // without the ID, which refused names
	}
	domain := raw.TrustDomain()
	switch bundle, ok := domains[domain]; {
	case !ok:
		return &RefusedError{Cause: causeAuthority, Err: refused(fmt.Errorf("there is no bundle of trust domain %s, or it is not one that is accepted", domain))}
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return refused(errSignature)
	case len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!(slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth)):
		return refused(errUsage)
	default:
		_, verified, err := x509svid.Verify(chain, bundle, x509svid.WithTime(at))
		if err != nil {
			return refused(fmt.Errorf("by the bundle of trust domain %s: %s%.0w", domain, safetext.Printable(err.Error()), err))
		}
		if !slices.ContainsFunc(verified, func(chain []*x509.Certificate) bool { return staysInDomain(domain, chain) }) {
			return refused(errIntermediate)
		}
	}
	return nil
}

// staysInDomain reports whether every intermediate authority of a chain is of the trust domain. The
// chain begins with a leaf and ends with a trust anchor.
func staysInDomain(domain spiffeid.TrustDomain, chain []*x509.Certificate) bool {
	for _, c := range chain[1:max(1, len(chain)-1)] {
		for _, uri := range c.URIs {
			if uri.Scheme == "spiffe" && uri.Host != domain.Name() {
				return false
			}
		}
	}
	return true
}
