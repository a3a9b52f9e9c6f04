package mtls

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// ID is who a certificate says its holder is: a SPIFFE ID, carried as a URI
// SAN, or a host name, carried as a DNS SAN. IDs are comparable with ==. The
// zero value is nobody.
type ID struct{ text string }

const (
	spiffeScheme = "spiffe://"

	// SPIFFE-ID section 2.3.
	maxSPIFFE      = 2048
	maxTrustDomain = 255
)

// The rules that an identity can break, beside those of a host name. Errors of
// ParseID wrap one of them, or one of package federation.
var (
	errScheme      = errors.New("only the scheme spiffe:// is an identity")
	errTooLong     = errors.New("is longer than 2048 bytes")
	errTrustDomain = errors.New("trust domain is not 1 to 255 of a-z, 0-9, '.', '-' and '_'")
	errNoPath      = errors.New("names a trust domain and no workload in it: the path is missing")
	errPath        = errors.New("path is not made of non-empty segments of letters, digits, '.', '-' and '_'")
)

// ParseID returns the identity that s spells: a SPIFFE ID such as
// spiffe://example.org/owner, in its one normal form, or a host name as
// federation.ParseFQDN takes it. IP addresses, wildcards and other URIs are no
// identities.
func ParseID(s string) (ID, error) {
	if strings.Contains(s, "://") {
		if err := checkSPIFFE(s); err != nil {
			return ID{}, fmt.Errorf("identity %s: %w", federation.Quote(s), err)
		}
		return ID{s}, nil
	}
	name, err := federation.ParseFQDN(s)
	if err != nil {
		return ID{}, fmt.Errorf("identity %s: %w", federation.Quote(s), err)
	}
	return ID{strings.TrimSuffix(name.String(), ".")}, nil
}

// String returns the identity as a certificate carries it, or "" for nobody.
func (id ID) String() string { return id.text }

// checkSPIFFE checks s against SPIFFE-ID section 2. User information, port,
// query, fragment and percent-encoding need characters that are not allowed
// anywhere, so they need no rule of their own.
func checkSPIFFE(s string) error {
	rest, ok := strings.CutPrefix(s, spiffeScheme)
	if !ok {
		return errScheme
	}
	if len(s) > maxSPIFFE {
		return errTooLong
	}
	domain, path, hasPath := strings.Cut(rest, "/")
	if domain == "" || len(domain) > maxTrustDomain || strings.ContainsFunc(domain, notTrustDomain) {
		return errTrustDomain
	}
	// X509-SVID section 2: the SPIFFE ID of a leaf has a path.
	if !hasPath {
		return errNoPath
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsFunc(segment, notPath) {
			return errPath
		}
	}
	return nil
}

func notTrustDomain(r rune) bool { return notPath(r) || 'A' <= r && r <= 'Z' }

func notPath(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-', r == '_':
		return false
	}
	return true
}

// PeerIDs returns the identities that a certificate carries: its SPIFFE ID and
// its DNS names, wildcards left out. The certificate must have been verified.
func PeerIDs(certificate *x509.Certificate) []ID {
	var ids []ID
	// X509-SVID section 2: one with more than one URI SAN is not to be trusted.
	if len(certificate.URIs) == 1 {
		if uri := certificate.URIs[0].String(); checkSPIFFE(uri) == nil {
			ids = append(ids, ID{uri})
		}
	}
	for _, name := range certificate.DNSNames {
		if id, err := ParseID(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
