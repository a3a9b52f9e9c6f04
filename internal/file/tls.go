package file

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

var errAuthorities = errors.New("holds no PEM certificate")

// TLS returns the configuration of a client that the files say now, for servers that must have a
// certificate for the host of their URL. Certificate and key, which may be empty, are for servers that ask for
// them. Without a bundle of authorities those of the system may sign the servers. Package
// mtls is for one peer with one identity instead.
func TLS(certificate, key, authorities string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12} // of etcd, and of Consul
	if certificate != "" {
		cert, _, err := Read(certificate, MaxPEM)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		secret, _, err := Read(key, MaxPEM)
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		pair, err := tls.X509KeyPair(cert, secret)
		if err != nil {
			return nil, fmt.Errorf("key %s of certificate %s: %w", key, certificate, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if authorities != "" {
		bundle, _, err := Read(authorities, MaxPEM)
		if err != nil {
			return nil, fmt.Errorf("CA bundle: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("CA bundle %s: %w", authorities, errAuthorities)
		}
	}
	return config, nil
}
