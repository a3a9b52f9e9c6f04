package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

var errPair = errors.New("certificate and key: there must be both or none")

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

// ClientHandshake is that of credentials.TransportCredentials.
func (f fileCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := file.TLS(f.files.Cert, f.files.Key, f.files.CA)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

// Clone is that of credentials.TransportCredentials.
func (f fileCredentials) Clone() credentials.TransportCredentials { return f }
