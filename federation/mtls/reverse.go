package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// reverseProtocol is the ALPN protocol (RFC 7301) of connections that an owner dials. The
// side that accepts such a connection is the client of HTTP/2 on it: it speaks first.
const reverseProtocol = "federation-reverse"

// Reversed is a connection that an owner has dialed, on either side, after its TLS
// handshake. Nothing has been sent on it yet.
type Reversed struct {
	net.Conn

	// Peer is the other side. On the side that dialed, its State.ServerName is to be set to
	// that of the catalog which the other side gets.
	Peer Peer
}

// Dialed makes the connection raw, which this side has dialed, one on which the other side is
// the consumer. It verifies the other side as [Source.Client] verifies an owner, and ends the
// connection as that does.
func (s *Source) Dialed(ctx context.Context, raw net.Conn, serverName string, ids []federation.ID) (*Reversed, error) {
	g := guarded{nil, s, x509.ExtKeyUsageServerAuth, func(m *material) *tls.Config {
		config := s.clientConfig(m, serverName, ids)
		config.NextProtos = []string{reverseProtocol}
		return config
	}}
	conn, info, err := g.shake(raw, func(c net.Conn, config *tls.Config) (net.Conn, credentials.AuthInfo, error) {
		client := tls.Client(c, config)
		if err := client.HandshakeContext(ctx); err != nil {
			c.Close()
			return nil, nil, err
		}
		state := client.ConnectionState()
		if state.NegotiatedProtocol != reverseProtocol {
			c.Close()
			return nil, nil, fmt.Errorf("the other side does not know owners that dial: it has no %s", reverseProtocol)
		}
		return client, credentials.TLSInfo{State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	})
	if err != nil {
		return nil, err
	}
	return &Reversed{conn, info.(Peer)}, nil //nolint:forcetypeassert // as shake returns it
}

// ServerFor returns credentials as [Source.Server] does, with which owners can dial as well:
// their connections are none of the server, but go to take. May returns why the owner with
// these identities, which has asked for this server name, may not dial, or nil.
func (s *Source) ServerFor(
	may func(serverName string, ids []federation.ID) error, take func(conn *Reversed),
) credentials.TransportCredentials {
	return accepting{guarded{credentials.NewTLS(&tls.Config{}), s, x509.ExtKeyUsageClientAuth, func(m *material) *tls.Config {
		config := s.serverConfig(m)
		config.NextProtos = []string{reverseProtocol}
		verify := config.VerifyConnection
		config.VerifyConnection = func(state tls.ConnectionState) error {
			if verify != nil {
				if err := verify(state); err != nil {
					return err
				}
			}
			if state.NegotiatedProtocol != reverseProtocol {
				return nil
			}
			return refusal(state, may(state.ServerName, m.ids(state.PeerCertificates[0])))
		}
		return config
	}}, take}
}

// accepting are the credentials of a server that owners can dial.
type accepting struct {
	guarded

	take func(conn *Reversed)
}

// ServerHandshake implements credentials.TransportCredentials.
func (a accepting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := a.guarded.ServerHandshake(raw)
	peer, ok := info.(Peer)
	if err != nil || !ok || peer.State.NegotiatedProtocol != reverseProtocol {
		return conn, info, err
	}
	a.take(&Reversed{conn, peer})
	return nil, nil, credentials.ErrConnDispatched
}

// Clone implements credentials.TransportCredentials.
func (a accepting) Clone() credentials.TransportCredentials { return a }
