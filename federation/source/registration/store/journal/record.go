package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
)

// A file is a header and records:
//
//	header: magic, marker, checksum of both
//	record: marker, length of the payload, checksum of length and payload, payload
//	payload: kind, version, and what the kind has
//
// Numbers are in little endian, checksums CRC-32C. The marker is random, and no provider
// knows it: where a record is damaged, it is how the next one is found, and nothing that
// a provider has sent is taken for a record.
const (
	magic        = "federation-journal 1\n" // with the version of the format
	markerBytes  = 8
	headerBytes  = len(magic) + markerBytes + 4
	frameBytes   = markerBytes + 4 + 4 // before a payload
	leastPayload = 1 + 8
	mostPayload  = 32 << 10
)

type marker [markerBytes]byte

// kind says what a record has.
type kind byte

const (
	put   kind = 'P' // a node, which is stored with the version
	gone  kind = 'D' // the key of a node, which is deleted with the version
	stamp kind = 'S' // when an owner was there, see Store.stampOf
	end   kind = 'E' // as stamp: the owner has ended, and synced the file
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli) //nolint:gochecknoglobals // a constant

func checksum(parts ...[]byte) (sum uint32) {
	for _, part := range parts {
		sum = crc32.Update(sum, castagnoli, part)
	}
	return sum
}

// appendHeader appends the header of a file.
func (m marker) appendHeader(b []byte) []byte {
	start := len(b)
	b = append(append(b, magic...), m[:]...)
	return binary.LittleEndian.AppendUint32(b, checksum(b[start:]))
}

// append appends a record with what data appends.
func (m marker) append(b []byte, k kind, version int64, data func(b []byte) []byte) []byte {
	start := len(b)
	b = append(b, m[:]...)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // length and checksum
	b = append(b, byte(k))
	b = binary.LittleEndian.AppendUint64(b, uint64(version)) //nolint:gosec // read back in the same way
	b = data(b)
	length, sum, payload := b[start+markerBytes:][:4], b[start+markerBytes+4:][:4], b[start+frameBytes:]
	binary.LittleEndian.PutUint32(length, uint32(len(payload))) //nolint:gosec // mostPayload
	binary.LittleEndian.PutUint32(sum, checksum(length, payload))
	return b
}

// appendKey appends a key as parseKey takes it.
func appendKey(b []byte, key node.Key) []byte {
	return append(b, key.Service.String()+" "+key.URI.String()...)
}

func parseKey(data []byte) (node.Key, error) {
	service, uri, _ := strings.Cut(string(data), " ")
	name, err := federation.ParseFQDN(service)
	if err != nil {
		return node.Key{}, err
	}
	at, err := node.ParseURI(uri, netip.Addr{})
	return node.Key{Service: name, URI: at}, err
}

// boot returns what tells the boots of machines apart, where the system says it: "" is
// none. What one boot has written, it still has, whether it was synced or not.
func boot() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(id))
}

var errHeader = errors.New("the file does not begin as a journal does")

// readHeader returns the marker of a file, and whether its header is sound. Where it is
// damaged, the marker of the first record is taken.
func readHeader(data []byte) (m marker, sound bool, err error) {
	if len(data) < headerBytes {
		return m, false, errHeader
	}
	header, records := data[:headerBytes-4], data[headerBytes:]
	if checksum(header) != binary.LittleEndian.Uint32(data[len(header):]) {
		copy(m[:], records)
		if m.record(records) == nil {
			err = errHeader
		}
		return m, false, err
	}
	if !bytes.HasPrefix(header, []byte(magic)) {
		return m, false, fmt.Errorf("%w: %q", errHeader, header[:len(magic)])
	}
	copy(m[:], header[len(magic):])
	return m, true, nil
}

// record returns the payload of the record that data begins with, or nil where there is no
// whole one.
func (m marker) record(data []byte) []byte {
	if len(data) < frameBytes || !bytes.HasPrefix(data, m[:]) {
		return nil
	}
	length, sum, payload := data[markerBytes:][:4], data[markerBytes+4:][:4], data[frameBytes:]
	size := int(binary.LittleEndian.Uint32(length))
	if size < leastPayload || size > mostPayload || size > len(payload) || checksum(length, payload[:size]) != binary.LittleEndian.Uint32(sum) {
		return nil
	}
	return payload[:size]
}
