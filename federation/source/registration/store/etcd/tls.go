package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
)

// The rules of Files.
var (
	errPair        = errors.New("certificate and key: there must be both or none")
	errAuthorities = errors.New("holds no PEM certificate")
)

// TLS returns the configuration of TLS that files say, and reads them again for each
// handshake, so that they may be replaced at any time. Certificate and key are
// for an etcd that asks for them. Without a CA bundle the authorities of the system may
// sign the members. It is not a Source of package mtls, which has one name for one peer: each
// member must have a certificate for the host of its own URL.
func TLS(files mtls.Files) (*tls.Config, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errPair
	}
	if _, err := certificate(files); err != nil {
		return nil, err
	}
	if _, err := authorities(files); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, // of etcd itself
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate(files)
		},
		// The authorities of a tls.Config cannot be replaced. VerifyConnection does all
		// that is skipped, with those of the file as it is now.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(state tls.ConnectionState) error {
			roots, err := authorities(files)
			if err != nil {
				return err
			}
			return verify(state, roots)
		},
	}, nil
}

// verify returns why the certificate of a member does not belong to it, or nil.
func verify(state tls.ConnectionState, roots *x509.CertPool) error {
	options := x509.VerifyOptions{Roots: roots, DNSName: state.ServerName, Intermediates: x509.NewCertPool()}
	if state.ServerName == "" || len(state.PeerCertificates) == 0 {
		return errors.New("the member has no name or no certificate")
	}
	for _, c := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := state.PeerCertificates[0].Verify(options); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}

// certificate reads the client's certificate; it is empty where there is none.
func certificate(files mtls.Files) (*tls.Certificate, error) {
	if files.Cert == "" {
		return new(tls.Certificate), nil
	}
	cert, _, err := regularfile.Read(files.Cert, mtls.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	key, _, err := regularfile.Read(files.Key, mtls.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("key %s of certificate %s: %w", files.Key, files.Cert, err)
	}
	return &pair, nil
}

// authorities reads the CA bundle; nil stands for the system's.
func authorities(files mtls.Files) (*x509.CertPool, error) {
	if files.CA == "" {
		return nil, nil //nolint:nilnil // what x509 takes for the system's
	}
	bundle, _, err := regularfile.Read(files.CA, mtls.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("CA bundle: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("CA bundle %s: %w", files.CA, errAuthorities)
	}
	return pool, nil
}
