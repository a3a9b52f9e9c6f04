package mtls

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// ID is an identity that a certificate can carry: a SPIFFE ID, in a URI SAN, or a
// host name, in a DNS SAN. IDs are comparable with ==. The zero value is nobody.
type ID struct {
	// One of the two at most is set.
	spiffe spiffeid.ID
	host   string // without a final dot
}

// The limits of a SPIFFE ID in bytes (SPIFFE-ID section 2.3), which package
// spiffeid leaves to its caller.
const (
	maxSPIFFE      = 2048
	maxTrustDomain = 255
)

// The rules that an identity can break, beside those of packages spiffeid and
// federation. An error of ParseID wraps one of all these.
var (
	errScheme      = errors.New("only the scheme spiffe:// is an identity")
	errTooLong     = errors.New("is longer than 2048 bytes")
	errTrustDomain = errors.New("trust domain is longer than 255 bytes")
	errNoPath      = errors.New("names a trust domain and no workload in it: the path is missing")
)

// ParseID returns the identity that s spells: a SPIFFE ID such as
// spiffe://example.org/owner, or a host name as [federation.ParseFQDN] takes it.
// IP addresses, wildcards and other URIs are not identities.
func ParseID(s string) (ID, error) {
	var id ID
	var err error
	if strings.Contains(s, "://") {
		id.spiffe, err = parseSPIFFE(s)
	} else {
		var name federation.FQDN
		name, err = federation.ParseFQDN(s)
		id.host = strings.TrimSuffix(name.String(), ".")
	}
	if err != nil {
		return ID{}, fmt.Errorf("identity %s: %w", federation.Quote(s), err)
	}
	return id, nil
}

// parseSPIFFE returns the SPIFFE ID of a leaf certificate that s spells.
func parseSPIFFE(s string) (spiffeid.ID, error) {
	if !strings.HasPrefix(s, "spiffe://") {
		return spiffeid.ID{}, errScheme
	}
	if len(s) > maxSPIFFE {
		return spiffeid.ID{}, errTooLong
	}
	id, err := spiffeid.FromString(s)
	switch {
	case err != nil:
		return spiffeid.ID{}, err
	case len(id.TrustDomain().Name()) > maxTrustDomain:
		return spiffeid.ID{}, errTrustDomain
	case id.Path() == "": // X509-SVID section 3.1: the SPIFFE ID of a leaf has a path
		return spiffeid.ID{}, errNoPath
	}
	return id, nil
}

// String returns the identity as a certificate carries it, or "" for nobody.
func (id ID) String() string {
	if id.spiffe.IsZero() {
		return id.host
	}
	return id.spiffe.String()
}

// IsSPIFFE reports whether the identity is a SPIFFE ID.
func (id ID) IsSPIFFE() bool { return !id.spiffe.IsZero() }

// PeerIDs returns the identities that a certificate carries: its SPIFFE ID and its DNS
// names without the wildcards. Those of a peer that was verified are for [Peer.IDs] to say.
func PeerIDs(certificate *x509.Certificate) []ID {
	ids := spiffeIDs(certificate)
	for _, name := range certificate.DNSNames {
		if id, err := ParseID(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// spiffeIDs returns the SPIFFE ID that a certificate carries, if it does.
func spiffeIDs(certificate *x509.Certificate) []ID {
	// X509-SVID section 2: a certificate with more than one URI SAN must be refused.
	if len(certificate.URIs) == 1 {
		if id, err := parseSPIFFE(certificate.URIs[0].String()); err == nil {
			return []ID{{spiffe: id}}
		}
	}
	return nil
}
