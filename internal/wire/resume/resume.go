// Package resume finds out in which buckets two copies of a catalog differ, so that a
// consumer that comes back is sent the services in these buckets, and not the whole catalog.
//
// Both sides distribute the services over [Leaves] buckets by their names, and take a
// digest of each bucket. A consumer sends its digests with the request for a stream. The
// owner compares them with those of what the consumer may be told, and answers which
// buckets differ: it sends these whole, and the others are what the consumer holds. So
// neither side remembers anything of the other, and it does not matter which replica the
// consumer comes back to, whether that was started anew meanwhile, and what either of
// them has missed.
//
// A consumer with few services folds the digests to fewer buckets, which makes the header
// short. The package is pure.
package resume

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

const (
	// Leaves is the number of buckets over which services are distributed, and the
	// largest number of digests in a header.
	Leaves = 512

	// size is the size of a digest in bytes. Nobody can find services with the digest
	// of others (2^64 attempts for a pair of one's own making), so that a service
	// which is different is never taken for one that a consumer holds.
	size = 16

	// perBucket is how many services a bucket has on average, up to as many buckets as
	// there can be: what is sent again for one that has changed.
	perBucket = 32
)

// Digests are the digests of a catalog, one for each bucket. Their number is a power of two,
// up to Leaves.
type Digests []Digest

// Digest is the digest of one service, or of a bucket.
type Digest [size]byte

// DigestOf returns the digest of a service. Resource is the value of the resource in the message of
// the service, and includes the name of the service.
func DigestOf(resource []byte) Digest {
	hash := sha256.Sum256(resource)
	return Digest(hash[:size])
}

// CatalogSum computes the digests of a catalog from its services. It keeps a digest of each
// service, and neither names nor messages, so it takes 16 bytes for a service. Services are only
// added: a catalog that has changed needs a new CatalogSum. One goroutine uses it at a time. The
// zero value is ready to use.
type CatalogSum struct {
	services int
	leaves   [Leaves][]Digest
}

// Add adds the service with the name, of which resource is the value in its message, as in
// [DigestOf]. Each name is added once. Add keeps neither the name nor resource.
func (s *CatalogSum) Add(name string, resource []byte) {
	leaf := LeafOf(name)
	s.leaves[leaf] = append(s.leaves[leaf], DigestOf(resource))
	s.services++
}

// Len returns how many services were added.
func (s *CatalogSum) Len() int { return s.services }

// Digests returns the digests of all leaves, also of those without services.
func (s *CatalogSum) Digests() Digests {
	digests := make(Digests, Leaves)
	for i, members := range s.leaves {
		digests[i] = Digests(members).LeafDigest()
	}
	return digests
}

// LeafDigest returns the digest of the leaf whose services have the digests d. It sorts d, and
// hashes the digests in that order, so that the names of the services need not be known.
func (d Digests) LeafDigest() Digest {
	slices.SortFunc(d, func(a, b Digest) int { return bytes.Compare(a[:], b[:]) })
	return DigestOf(d.joinOctets())
}

// LeafOf returns the leaf of a name, from 0 to Leaves-1: the first nine bits of the SHA-256 of the
// name.
func LeafOf(name string) int {
	hash := sha256.Sum256([]byte(name))
	return int(binary.BigEndian.Uint16(hash[:])) * Leaves >> 16
}

// BucketCount returns how many digests a consumer sends when it holds so many services.
func BucketCount(services int) int {
	wanted := max(1, services/perBucket)
	return min(Leaves, 1<<(bits.Len(uint(wanted))-1))
}

// FoldTo returns the digests of so many buckets. The digest of each is computed from an equal
// number of neighbouring digests of d. The number of buckets must be a power of two, and not larger
// than the length of d.
func (d Digests) FoldTo(buckets int) Digests {
	each := len(d) / buckets
	if each == 1 {
		return d
	}
	folded := make(Digests, buckets)
	octets := d.joinOctets()
	for i := range folded {
		folded[i] = DigestOf(octets[i*each*size : (i+1)*each*size])
	}
	return folded
}

// joinOctets returns the bytes of all digests, one digest behind the other.
func (d Digests) joinOctets() []byte {
	octets := make([]byte, 0, len(d)*size)
	for i := range d {
		octets = append(octets, d[i][:]...)
	}
	return octets
}

// Header returns the value of the request header: the digests in base64 without padding
// (RFC 4648 section 4).
func (d Digests) Header() string {
	return base64.RawStdEncoding.EncodeToString(d.joinOctets())
}

// ParseDigests returns the digests in the value of a request header, or why the value is malformed.
func ParseDigests(header string) (Digests, error) {
	if len(header) > base64.RawStdEncoding.EncodedLen(Leaves*size) {
		return nil, fmt.Errorf("there are more than %d digests", Leaves)
	}
	octets, err := decodeStrict(header)
	if err != nil {
		return nil, fmt.Errorf("digests: %w", err)
	}
	n := len(octets) / size
	if n*size != len(octets) || bits.OnesCount(uint(n)) != 1 {
		return nil, fmt.Errorf("%d bytes are not digests of %d bytes each, as many as a power of two", len(octets), size)
	}
	d := make(Digests, n)
	for i := range d {
		copy(d[i][:], octets[i*size:])
	}
	return d, nil
}

// errLines is the error for line ends, which package base64 passes over.
var errLines = errors.New("there are line ends")

// decodeStrict returns the bytes that text stands for in base64. It refuses line ends and unused
// bits that are set, so that no two texts stand for the same bytes.
func decodeStrict(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, errLines
	}
	return base64.RawStdEncoding.Strict().DecodeString(text)
}

// BucketSelection says which buckets of a catalog are selected. The zero value selects no bucket of
// any catalog. Copies share the bits, so a bucket that is added to one is added to all.
type BucketSelection struct {
	buckets int // a power of two
	bits    []byte
}

// DifferingBuckets returns the buckets in which d differs from the digests of a consumer. The
// consumer sends as many digests as d has, or fewer; DifferingBuckets folds d to their number.
func (d Digests) DifferingBuckets(theirs Digests) BucketSelection {
	s := BucketSelection{buckets: len(theirs), bits: make([]byte, (len(theirs)+7)/8)}
	for i, digest := range d.FoldTo(len(theirs)) {
		if digest != theirs[i] {
			s.addBucket(i)
		}
	}
	return s
}

// AddLeaf selects the bucket of a leaf.
func (s BucketSelection) AddLeaf(leaf int) { s.addBucket(leaf * s.buckets / Leaves) }

func (s BucketSelection) addBucket(bucket int) { s.bits[bucket/8] |= 0x80 >> (bucket % 8) }

// HasName reports whether the bucket of the name is selected.
func (s BucketSelection) HasName(name string) bool {
	return s.buckets > 0 && s.HasLeaf(LeafOf(name))
}

// HasLeaf reports whether the bucket of a leaf is selected.
func (s BucketSelection) HasLeaf(leaf int) bool {
	if s.buckets == 0 {
		return false
	}
	bucket := leaf * s.buckets / Leaves
	return s.bits[bucket/8]&(0x80>>(bucket%8)) != 0
}

// Len returns how many buckets are selected.
func (s BucketSelection) Len() int {
	n := 0
	for _, b := range s.bits {
		n += bits.OnesCount8(b)
	}
	return n
}

// TotalBuckets returns how many buckets the catalog has, selected or not.
func (s BucketSelection) TotalBuckets() int { return s.buckets }

// accepted begins the value of the response header.
const accepted = "accepted"

// IsAccepted reports whether the value of a response header says that the owner sends the selected
// buckets only. The rest of the value may be malformed: see [ParseSelection].
func IsAccepted(header string) bool { return strings.HasPrefix(header, accepted) }

// Header returns the value of the response header of an owner that sends the selected buckets only:
// "accepted", a space, the number of buckets, a slash, and a bit for each bucket in base64 without
// padding, from the highest bit of the first byte on.
func (s BucketSelection) Header() string {
	return fmt.Sprintf("%s %d/%s", accepted, s.buckets, base64.RawStdEncoding.EncodeToString(s.bits))
}

// ParseSelection returns the selection in the value of a response header, or why the value is
// malformed. Buckets is how many digests the consumer has sent.
func ParseSelection(header string, buckets int) (BucketSelection, error) {
	rest, ok := strings.CutPrefix(header, fmt.Sprintf("%s %d/", accepted, buckets))
	if !ok || len(rest) > Leaves {
		return BucketSelection{}, fmt.Errorf("it does not say that %d digests are accepted", buckets)
	}
	octets, err := decodeStrict(rest)
	if err != nil {
		return BucketSelection{}, fmt.Errorf("buckets: %w", err)
	}
	if len(octets) != (buckets+7)/8 || buckets < 8 && octets[0]<<buckets != 0 {
		return BucketSelection{}, fmt.Errorf("%d bytes do not have a bit for each of %d buckets", len(octets), buckets)
	}
	return BucketSelection{buckets, octets}, nil
}
