package mtls

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Peer is the other side of a connection, as its certificate says. It is the AuthInfo of
// connections that are made with the credentials of a Source.
type Peer struct {
	credentials.TLSInfo // of the handshake

	connection *connection // nil where the credentials are not those of a Source
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

// IDs returns the identities of the peer: of a Source that SPIFFE has issued its SPIFFE
// ID, otherwise that and the DNS names of its certificate, without the wildcards.
func (p Peer) IDs() []federation.ID {
	switch {
	case len(p.State.PeerCertificates) == 0:
		return nil
	case p.connection != nil:
		return p.connection.source.ids(p.State.PeerCertificates[0])
	}
	return PeerIDs(p.State.PeerCertificates[0])
}

// Until returns when the certificate expires that the peer has shown last, in its
// handshake or one by which it was renewed. The connection ends the grace of the Source
// later.
func (p Peer) Until() time.Time {
	if by := p.proof(); by != nil {
		return by.until()
	}
	if chain := p.State.PeerCertificates; len(chain) > 0 {
		return chain[0].NotAfter
	}
	return time.Time{}
}

// OwnUntil returns when the certificate expires that this side has shown last. The peer
// may end the connection then. It is zero where the credentials are not those of a
// Source.
func (p Peer) OwnUntil() time.Time {
	if by := p.proof(); by != nil {
		return by.own
	}
	return time.Time{}
}

// proof returns what vouches for the connection, or nil if it is closed or none of a
// Source.
func (p Peer) proof() *proof {
	if p.connection == nil {
		return nil
	}
	s := &p.connection.source.connections
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[p.connection]
}

// The reasons why a peer cannot be renewed by another one.
var (
	errOtherSource   = errors.New("the connections are not those of one source in one role")
	errOtherIdentity = errors.New("the later handshake has other identities")
)

// Renew lets a later handshake of the same peer vouch for the connection from now on:
// its certificates and its time are those by which the connection is judged. It fails
// when the identities are not the same, when by is not of the same Source and role,
// when no authority of by is trusted any more, and when the connection is closed. What
// vouched for it before does so still then. A handshake that is not later changes
// nothing, and its certificates are not verified again.
//
// by may be closed before or after.
func (p Peer) Renew(by Peer) error {
	c, other := p.connection, by.connection
	if c == nil || other == nil || c.source != other.source || c.usage != other.usage {
		return errOtherSource
	}
	if !p.same(by) {
		return fmt.Errorf("%w: %s, not %s", errOtherIdentity, names(by.State.PeerCertificates[0]), names(p.State.PeerCertificates[0]))
	}
	s := &c.source.connections
	newer := other.handshake
	if s.keeps(c, newer) {
		return nil
	}
	return s.vouch(newer, nil, c.usage, func() error {
		held, ok := s.open[c]
		switch {
		case !ok:
			return fmt.Errorf("the connection to be renewed: %w", net.ErrClosed)
		case newer.at.Before(held.at):
			return nil
		}
		s.open[c] = newer
		c.timer.Reset(time.Until(newer.until().Add(s.grace)))
		return nil
	})
}

// same reports whether two peers have the same identities. Where they have none, such as
// an owner that is known by its address, their names must be the same.
func (p Peer) same(other Peer) bool {
	a, b := p.IDs(), other.IDs()
	if len(a) == 0 && len(b) == 0 {
		first, second := p.State.PeerCertificates[0], other.State.PeerCertificates[0]
		return bytes.Equal(first.RawSubject, second.RawSubject) && slices.Equal(sans(first), sans(second))
	}
	return maps.Equal(setOf(a), setOf(b))
}

// setOf returns the identities as a set: a certificate has room for tens of thousands.
func setOf(ids []federation.ID) map[federation.ID]bool {
	set := make(map[federation.ID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// AddressOf returns what counts as one address: an IPv4 address, or the /64 of an
// IPv6 address, since a site has at least a /64 (RFC 6177 section 2). Peers without
// an IP address count as one.
func AddressOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits)
	return prefix
}

// PeerIDs returns the identities that a certificate carries: its SPIFFE ID and its DNS
// names without the wildcards. Those of a peer that was verified are for [Peer.IDs] to say.
func PeerIDs(certificate *x509.Certificate) []federation.ID {
	ids := spiffeIDs(certificate)
	for _, name := range certificate.DNSNames {
		if id, err := federation.ParseID(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// spiffeIDs returns the SPIFFE ID that a certificate carries, if it does.
func spiffeIDs(certificate *x509.Certificate) []federation.ID {
	// X509-SVID section 2: a certificate with more than one URI SAN must be refused.
	if len(certificate.URIs) == 1 {
		if id, err := federation.ParseSPIFFE(certificate.URIs[0].String()); err == nil {
			return []federation.ID{id}
		}
	}
	return nil
}
