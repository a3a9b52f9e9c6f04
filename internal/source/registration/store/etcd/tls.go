package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

var (
	errPair        = errors.New("certificate and key: there must be both or none")
	errAuthorities = errors.New("holds no PEM certificate")
)

// fileCredentials are TLS credentials that read their files for each handshake.
type fileCredentials struct {
	credentials.TransportCredentials // all but the handshake

	files mtls.Files
}

// TLS returns credentials for endpoints with https. Their files may be replaced at any time,
// because they are read for each handshake, which fails where the files cannot be used. Certificate
// and key are for an etcd that asks for them. Without a CA bundle the authorities of the system may
// sign the members. The credentials of package mtls are for one peer with one name, and so cannot
// be used: each member must have a certificate for the host of its own URL.
func TLS(files mtls.Files) (credentials.TransportCredentials, error) {
	if (files.Cert == "") != (files.Key == "") {
		return nil, errPair
	}
	return fileCredentials{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), files}, nil
}

// CheckFiles returns why the files of TLS cannot be used now, or nil.
func CheckFiles(files mtls.Files) error {
	_, err := loadTLS(files)
	return err
}

// ClientHandshake is that of credentials.TransportCredentials.
func (f fileCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := loadTLS(f.files)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

// Clone is that of credentials.TransportCredentials.
func (f fileCredentials) Clone() credentials.TransportCredentials { return f }

// loadTLS reads the files.
func loadTLS(files mtls.Files) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12} // of etcd itself
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
