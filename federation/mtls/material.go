package mtls

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// tlsMaterial is the certificate of a party and the authorities that it trusts, at one time. It is
// immutable: newer material replaces it whole, so that a handshake never sees parts of two.
type tlsMaterial struct {
	certificate tls.Certificate // empty until the files, or a SPIFFE agent, have given one
	expiry      time.Time       // of the first certificate of the chain to expire
	trust       trustAnchors
	sum         [sha256.Size]byte
	agent       *spiffeAgent  // the agent that issues the certificate; nil: the certificate is from files
	trouble     error         // why the current files are not used, or nil
	replaced    chan struct{} // closed when newer material is in use
}

// identitiesOf returns those identities of a certificate that count. With an agent these are SPIFFE
// IDs alone, because in a federation of trust domains an authority could write any DNS name.
func (m *tlsMaterial) identitiesOf(certificate *x509.Certificate) []federation.ID {
	if m.agent != nil {
		return spiffeIDs(certificate)
	}
	return claimedIDs(certificate)
}

// hasCertificate reports whether there is a certificate.
func (m *tlsMaterial) hasCertificate() bool { return len(m.certificate.Certificate) > 0 }

// errNone is why there is no certificate where no better reason is known.
var errNone = errors.New("there is no certificate")

// whyMissing returns why there is no certificate. It is never nil, because a handshake without an
// error has a connection.
func (m *tlsMaterial) whyMissing() error {
	if m.agent != nil {
		return m.agent.whyNothing()
	}
	return cmp.Or(m.trouble, errNone)
}

// firstExpiry returns when the first of some certificates expires.
func firstExpiry(chain []*x509.Certificate) time.Time {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}

// trustAnchors are the authorities that must have signed the certificates of peers. It is
// immutable. The zero value trusts nobody.
type trustAnchors struct {
	// One of the two is set.
	authorities []*x509.Certificate                         // for all peers
	domains     map[spiffeid.TrustDomain]*x509bundle.Bundle // for the peers of each trust domain

	roots *x509.CertPool // authorities
}

// trustFiles returns trust in authorities that sign any peer.
func trustFiles(authorities []*x509.Certificate) trustAnchors {
	t := trustAnchors{authorities: authorities, roots: x509.NewCertPool()}
	for _, c := range authorities {
		t.roots.AddCert(c)
	}
	return t
}

// allAuthorities returns the authorities, in no order.
func (t *trustAnchors) allAuthorities() []*x509.Certificate {
	all := t.authorities
	for _, bundle := range t.domains {
		all = append(all, bundle.X509Authorities()...)
	}
	return all
}

func (t *trustAnchors) equal(other *trustAnchors) bool {
	return slices.EqualFunc(t.authorities, other.authorities, (*x509.Certificate).Equal) &&
		maps.EqualFunc(t.domains, other.domains, (*x509bundle.Bundle).Equal)
}

// withoutValidity returns trust in the same authorities at any time, because only the name and the
// key of a trust anchor count (RFC 5280 section 6.1.1 (d)). An authority whose certificate was
// renewed for the same key becomes valid after the handshakes of connections that it still vouches
// for.
func (t *trustAnchors) withoutValidity() *trustAnchors {
	if t.domains == nil {
		stretched := trustFiles(extendValidity(t.authorities))
		return &stretched
	}
	stretched := trustAnchors{domains: make(map[spiffeid.TrustDomain]*x509bundle.Bundle, len(t.domains))}
	for domain, bundle := range t.domains {
		stretched.domains[domain] = x509bundle.FromX509Authorities(domain, extendValidity(bundle.X509Authorities()))
	}
	return &stretched
}

// extendValidity returns the certificates of authorities as valid at any time.
func extendValidity(authorities []*x509.Certificate) []*x509.Certificate {
	stretched := make([]*x509.Certificate, 0, len(authorities))
	for _, authority := range authorities {
		anchor := *authority
		anchor.NotBefore, anchor.NotAfter = time.Time{}, time.Unix(1<<40, 0)
		stretched = append(stretched, &anchor)
	}
	return stretched
}

// verifyChain returns why the first certificate of chain, which is not empty, cannot be trusted for
// that usage and time, or nil. The text of the error is safe to show.
func (t *trustAnchors) verifyChain(chain []*x509.Certificate, usage x509.ExtKeyUsage, at time.Time) error {
	if t.domains != nil {
		return verifySVID(chain, t.domains, at)
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: t.roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: at,
	})
	if err != nil {
		return fmt.Errorf("%s%.0w", safetext.Printable(err.Error()), err) // escaped, as it may hold names from the certificate
	}
	return nil
}

// authorityExpiry returns when the next of the authorities that are still valid
// expires, or when the last one has expired if none is valid.
func (m *tlsMaterial) authorityExpiry(now time.Time) time.Time {
	var next, last time.Time
	for _, c := range m.trust.allAuthorities() {
		if last.Before(c.NotAfter) {
			last = c.NotAfter
		}
		if now.Before(c.NotAfter) {
			next = moment.Earlier(next, c.NotAfter)
		}
	}
	return cmp.Or(next, last)
}
