package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Client returns the credentials of a consumer for one owner. Each handshake uses the
// newest material and succeeds only when the owner's certificate is signed, at this time
// and for a server, by an authority of the CA bundle and carries one of ids exactly. Where
// ids is empty it must be valid for serverName, a host name or an IP address; otherwise
// serverName is only sent to the owner (RFC 6066 section 3) and may be anything.
//
// With a certificate of a SPIFFE agent, that of the owner must be an X509-SVID that an
// authority of its own trust domain has signed, and one of ids must be its SPIFFE ID:
// without ids no handshake succeeds.
//
// A connection ends when the CA bundle is replaced by one that has no authority of the
// owner's certificate, and when the certificate that the owner has shown has expired for
// longer than a minute. The AuthInfo is a [Peer].
//
// The error of a handshake in which the owner's certificate was refused is a
// *tls.CertificateVerificationError, with a text that is safe to show; see RefusalOf.
func (s *Source) Client(serverName string, ids []federation.ID) credentials.TransportCredentials {
	ids = slices.Clone(ids)
	config := func(m *tlsMaterial) *tls.Config { return s.clientConfig(m, serverName, ids) }
	return guardedCredentials{credentials.NewTLS(&tls.Config{ServerName: serverName}), s, x509.ExtKeyUsageServerAuth, config}
}

func (s *Source) clientConfig(m *tlsMaterial, serverName string, ids []federation.ID) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		// The certificate is sent whatever authorities the owner names, so that
		// an owner that does not accept it says why.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &m.certificate, nil
		},
		// The verification of crypto/tls insists on the host name, which a SPIFFE
		// ID replaces. VerifyConnection does all of it instead: chain, time, usage
		// and identity. Unlike VerifyPeerCertificate it runs on resumed sessions
		// too, of which there are none as there is no ClientSessionCache.
		InsecureSkipVerify: true, //nolint:gosec // see above: nothing is skipped
		VerifyConnection: func(state tls.ConnectionState) error {
			return verificationError(state, s.verifyOwner(m, state.PeerCertificates, serverName, ids))
		},
	}
}

// verificationError returns the error of a handshake in which a certificate was refused for a
// reason, or nil without a reason.
func verificationError(state tls.ConnectionState, reason error) error {
	if reason == nil {
		return nil
	}
	return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: reason}
}

// verifyOwner returns why the first certificate of chain does not identify the owner, or nil.
func (s *Source) verifyOwner(m *tlsMaterial, chain []*x509.Certificate, serverName string, ids []federation.ID) error {
	if len(chain) == 0 {
		return errors.New("owner has no certificate")
	}
	if err := m.trust.verifyChain(chain, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
		return err
	}
	leaf := chain[0]
	switch {
	case len(ids) > 0:
		if !slices.ContainsFunc(m.identitiesOf(leaf), func(id federation.ID) bool { return slices.Contains(ids, id) }) {
			return &RefusedError{Cause: causeIdentity, Err: fmt.Errorf("certificate is for %s, not for %v", quotedNames(leaf), ids)}
		}
	case m.agent != nil:
		return &RefusedError{Cause: causeIdentity, Err: fmt.Errorf("certificate is for %s, and no SPIFFE ID is named that the owner must have", quotedNames(leaf))}
	case leaf.VerifyHostname(serverName) != nil:
		return &RefusedError{Cause: causeHost, Err: fmt.Errorf("certificate is for %s, not for %q", quotedNames(leaf), serverName)}
	}
	return nil
}

// quotedNames returns the subject alternative names of a certificate, quoted.
func quotedNames(c *x509.Certificate) string {
	return safetext.Quote(strings.Join(subjectNames(c), " "))
}

// subjectNames returns the subject alternative names of a certificate.
func subjectNames(c *x509.Certificate) []string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	for _, uri := range c.URIs {
		all = append(all, uri.String())
	}
	return all
}

// Server returns the credentials of an owner. Each handshake uses the newest material and
// succeeds only when the consumer has a certificate that an authority of the CA bundle
// signed for a client; with a certificate of a SPIFFE agent, an X509-SVID that an
// authority of its own trust domain has signed. Whether that consumer may subscribe, by
// the IDs of its [Peer], which is the AuthInfo, is for the owner to decide. A connection
// ends as those of Client do.
func (s *Source) Server() credentials.TransportCredentials {
	return guardedCredentials{credentials.NewTLS(&tls.Config{}), s, x509.ExtKeyUsageClientAuth, s.serverConfig}
}

// ServerConfig returns the configuration of a TLS server that is no owner, such as one of
// HTTPS. Each handshake uses the newest material, and succeeds as those of Server do. It
// does not end connections: they are to be short.
func (s *Source) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m := s.material.Load() // once, so that a handshake sees one generation
			if !m.hasCertificate() {
				return nil, m.whyMissing()
			}
			return s.serverConfig(m), nil
		},
	}
}

func (s *Source) serverConfig(m *tlsMaterial) *tls.Config {
	config := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    m.trust.roots,
		// A resumed session would not be verified by the current authorities, and
		// one long stream gains nothing from it.
		SessionTicketsDisabled: true,
	}
	if m.agent != nil {
		// crypto/tls knows one pool for all peers, and not one for each trust domain.
		config.ClientAuth, config.ClientCAs = tls.RequireAnyClientCert, nil
		config.VerifyConnection = func(state tls.ConnectionState) error {
			return verificationError(state, m.trust.verifyChain(state.PeerCertificates, x509.ExtKeyUsageClientAuth, time.Now()))
		}
	}
	return config
}
