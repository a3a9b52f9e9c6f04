package mtls

import (
	"crypto/x509"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Peer is the other side of a connection, as its certificate says. It is the AuthInfo of
// connections that are made with the credentials of a Source.
type Peer struct {
	credentials.TLSInfo // of the handshake

	connection *guardedConn // nil where the credentials are not those of a Source
}

// PeerOf returns the peer that the AuthInfo of a connection describes: a Peer, or the
// TLSInfo of other credentials. It reports whether that peer has shown a certificate.
func PeerOf(info credentials.AuthInfo) (Peer, bool) {
	p, ok := info.(Peer)
	if !ok {
		p.TLSInfo, _ = info.(credentials.TLSInfo)
	}
	return p, len(p.State.PeerCertificates) > 0
}

// IDs returns the identities of the peer, which its certificate names and an authority vouches for: its
// SPIFFE ID and, unless this side has its certificate from a SPIFFE agent, its DNS names without wildcards.
func (p Peer) IDs() []federation.ID {
	switch {
	case len(p.State.PeerCertificates) == 0:
		return nil
	case p.connection != nil:
		return p.connection.source.material.Load().identitiesOf(p.State.PeerCertificates[0])
	}
	return claimedIDs(p.State.PeerCertificates[0])
}

// Expiry returns when the first of the two certificates expires that were shown in the handshake.
// The side to which that certificate was shown ends the connection a minute later. Expiry is zero
// where the credentials are not those of a Source.
func (p Peer) Expiry() time.Time {
	if p.connection == nil {
		return time.Time{}
	}
	return p.connection.expiry
}

// Shown is the certificate that this side has shown in a handshake. The zero value is none.
type Shown struct {
	Renew  string    // what to renew, for a sentence: the file, or the issuer
	Expiry time.Time // of the first certificate of its chain to expire
}

func (o *followedOrigin) shownCertificate(m *tlsMaterial) Shown {
	if o.agent != nil {
		return Shown{"the certificate of the SPIFFE agent at " + o.agent.socket, m.expiry}
	}
	return Shown{safetext.Printable(o.files.Cert), m.expiry}
}

// Own returns the certificate that this side has shown in the handshake. It is zero where the
// credentials are not those of a Source.
func (p Peer) Own() Shown {
	if p.connection == nil {
		return Shown{}
	}
	return p.connection.own
}

// claimedIDs returns the identities in a certificate: its SPIFFE ID and its DNS names without
// wildcards. [Peer.IDs] has those of a verified peer.
func claimedIDs(certificate *x509.Certificate) []federation.ID {
	ids := spiffeIDs(certificate)
	for _, name := range certificate.DNSNames {
		if id, err := federation.ParseID(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// spiffeIDs returns the SPIFFE ID in a certificate, if there is one.
func spiffeIDs(certificate *x509.Certificate) []federation.ID {
	// X509-SVID section 2: a certificate with more than one URI SAN must be refused.
	if len(certificate.URIs) == 1 {
		if id, err := federation.ParseID(certificate.URIs[0].String()); err == nil && id.IsSPIFFE() {
			return []federation.ID{id}
		}
	}
	return nil
}
