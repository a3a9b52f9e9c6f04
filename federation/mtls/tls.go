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
)

// Client returns the credentials of a consumer for one owner. Each handshake
// uses the newest material and succeeds only when the owner's certificate is
// signed, at this time and for a server, by an authority of the CA bundle and
// carries one of ids exactly. Where ids is empty it must be valid for
// serverName, a host name or an IP address; otherwise serverName is only sent
// to the owner (RFC 6066 section 3) and may be anything.
//
// A connection ends when the CA bundle is replaced by one that has no authority
// of the owner's certificate.
//
// The error of a handshake in which the owner's certificate was refused is a
// *tls.CertificateVerificationError, with a text that is safe to show.
func (s *Source) Client(serverName string, ids []ID) credentials.TransportCredentials {
	return distrustable{credentials.NewTLS(s.clientConfig(serverName, slices.Clone(ids))), s, x509.ExtKeyUsageServerAuth}
}

func (s *Source) clientConfig(serverName string, ids []ID) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		// The certificate is sent whatever authorities the owner names, so that
		// an owner that does not accept it says why.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &s.material.Load().certificate, nil
		},
		// The verification of crypto/tls insists on the host name, which a SPIFFE
		// ID replaces, and on the authorities that were known when this value was
		// made. VerifyConnection does all of it instead: chain, time, usage and
		// identity. Unlike VerifyPeerCertificate it runs on resumed sessions too,
		// of which there are none as there is no ClientSessionCache.
		InsecureSkipVerify: true, //nolint:gosec // see above: nothing is skipped
		VerifyConnection: func(state tls.ConnectionState) error {
			if err := verify(state.PeerCertificates, s.material.Load().roots, serverName, ids); err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
			}
			return nil
		},
	}
}

// verify returns why the first certificate of chain does not identify the owner, or
// nil if it does.
func verify(chain []*x509.Certificate, roots *x509.CertPool, serverName string, ids []ID) error {
	if len(chain) == 0 {
		return errors.New("owner has no certificate")
	}
	if err := verifyChain(chain, roots, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
		// Quoted, as it may hold names from the certificate.
		return fmt.Errorf("%s%.0w", federation.Quote(err.Error()), err)
	}
	leaf := chain[0]
	if len(ids) == 0 {
		if leaf.VerifyHostname(serverName) != nil {
			return fmt.Errorf("certificate is for %s, not for %q", names(leaf), serverName)
		}
		return nil
	}
	if !slices.ContainsFunc(PeerIDs(leaf), func(id ID) bool { return slices.Contains(ids, id) }) {
		return fmt.Errorf("certificate is for %s, not for %v", names(leaf), ids)
	}
	return nil
}

// verifyChain returns why the first certificate of chain, which is not empty, was not
// signed by one of the roots for that usage and time, or nil if it was.
func verifyChain(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, at time.Time) error {
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: at,
	})
	return err
}

// names returns the subject alternative names of a certificate, quoted.
func names(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	for _, uri := range c.URIs {
		all = append(all, uri.String())
	}
	return federation.Quote(strings.Join(all, " "))
}

// Server returns the credentials of an owner. Each handshake uses the newest
// material and succeeds only when the consumer has a certificate that an authority of
// the CA bundle signed for a client. Whether that consumer may subscribe, by the
// PeerIDs of its certificate, is for the owner to decide. A connection ends when the CA
// bundle is replaced by one that has no authority of the consumer's certificate.
func (s *Source) Server() credentials.TransportCredentials {
	config := &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: s.configForClient}
	return distrustable{credentials.NewTLS(config), s, x509.ExtKeyUsageClientAuth}
}

func (s *Source) configForClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	m := s.material.Load() // once, so that a handshake sees one generation
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    m.roots,
		// A resumed session would not be verified by the authorities of today, and
		// one long stream gains nothing from it.
		SessionTicketsDisabled: true,
	}, nil
}
