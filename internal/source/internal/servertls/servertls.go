// Package servertls has the TLS of a source towards the servers that it asks: by files of its own,
// which may be replaced at any time, and not by the identity of the owner. Each server must have a
// certificate for the host of its own URL, so this is not package mtls, which is for one peer with one name.
package servertls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

var errAuthorities = errors.New("holds no PEM certificate")

// Load returns the configuration that the files say now. Certificate and key are for a server that
// asks for them. Without a CA bundle the authorities of the system may sign the servers.
func Load(files mtls.Files) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12} // of etcd, and of Consul
	if files.Cert != "" {
		cert, _, err := file.Read(files.Cert, file.MaxPEM)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		key, _, err := file.Read(files.Key, file.MaxPEM)
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("key %s of certificate %s: %w", files.Key, files.Cert, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if files.CA != "" {
		bundle, _, err := file.Read(files.CA, file.MaxPEM)
		if err != nil {
			return nil, fmt.Errorf("CA bundle: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("CA bundle %s: %w", files.CA, errAuthorities)
		}
	}
	return config, nil
}
