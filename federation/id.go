package federation

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
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
// spiffe://example.org/owner, or a host name as [ParseFQDN] takes it. A SPIFFE ID has at most 2048 bytes,
// a trust domain of at most 255, and a path (SPIFFE-ID section 2.3, X509-SVID section 3.1).
// IP addresses, wildcards and other URIs are not identities. The error quotes s, and
// unwraps to the rule that s breaks.
func ParseID(s string) (ID, error) {
	if strings.Contains(s, "://") {
		id, err := parseSPIFFE(s)
		if err != nil {
			return ID{}, fmt.Errorf("identity %s: %w", safetext.Quote(s), err)
		}
		return id, nil
	}
	name, err := ParseFQDN(s)
	if err != nil {
		return ID{}, fmt.Errorf("identity %s: %w", safetext.Quote(s), err)
	}
	return ID{host: strings.TrimSuffix(name.String(), ".")}, nil
}

// parseSPIFFE returns the SPIFFE ID of a leaf certificate that s spells. Its errors do not
// repeat s.
func parseSPIFFE(s string) (ID, error) {
	if !strings.HasPrefix(s, "spiffe://") {
		return ID{}, errScheme
	}
	if len(s) > maxSPIFFE {
		return ID{}, errTooLong
	}
	id, err := spiffeid.FromString(s)
	switch {
	case err != nil:
		return ID{}, err
	case len(id.TrustDomain().Name()) > maxTrustDomain:
		return ID{}, errTrustDomain
	case id.Path() == "": // X509-SVID section 3.1: the SPIFFE ID of a leaf has a path
		return ID{}, errNoPath
	}
	return ID{spiffe: id}, nil
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
