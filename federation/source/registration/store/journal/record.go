package journal

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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

// reader reads the records of a file, and passes over what is none.
type reader struct {
	b      *bufio.Reader
	marker marker
	offset int64 // of what b returns next
	whole  int64 // where the last whole record ends

	skips   bool // whether what is before offset is no record
	damaged bool // whether there is a whole record behind something that is none
}

var errHeader = errors.New("the file does not begin as a journal does")

// newReader reads the header of a file. Where it is damaged, the marker of the first
// record is taken.
func newReader(file io.Reader) (*reader, error) {
	r := &reader{b: bufio.NewReaderSize(file, 2*(frameBytes+mostPayload))}
	header, err := r.b.Peek(headerBytes + markerBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(header) < headerBytes {
		return nil, errHeader
	}
	first := header[headerBytes:]
	sum := binary.LittleEndian.Uint32(header[headerBytes-4:])
	switch header = header[:headerBytes-4]; {
	case checksum(header) != sum:
		copy(r.marker[:], first)
		r.skips = true
	case !bytes.HasPrefix(header, []byte(magic)):
		return nil, fmt.Errorf("%w: %q", errHeader, header[:len(magic)])
	default:
		copy(r.marker[:], header[len(magic):])
	}
	if err := r.skip(headerBytes); err != nil {
		return nil, err
	}
	r.whole = r.offset
	if r.skips {
		if _, ok, err := r.record(); err != nil || !ok {
			return nil, errors.Join(errHeader, err)
		}
	}
	return r, nil
}

// skip passes over bytes that are there.
func (r *reader) skip(count int) error {
	skipped, err := r.b.Discard(count)
	r.offset += int64(skipped)
	return err
}

// next returns the payload of the next whole record, which stays until the next call, or
// io.EOF. Any other error is that of the file.
func (r *reader) next() ([]byte, error) {
	for {
		payload, ok, err := r.record()
		switch {
		case err != nil:
			return nil, err
		case ok:
			r.damaged = r.damaged || r.skips
			r.skips = false
			err = r.skip(frameBytes + len(payload))
			r.whole = r.offset
			return payload, err
		}
		r.skips = true
		if err := r.seek(); err != nil {
			return nil, err
		}
	}
}

// record returns the payload of the record that is next, and whether there is a whole
// one, or io.EOF at the end.
func (r *reader) record() (payload []byte, ok bool, err error) {
	frame, err := r.b.Peek(frameBytes)
	if len(frame) < frameBytes {
		if len(frame) > 0 && errors.Is(err, io.EOF) {
			return nil, false, nil
		}
		return nil, false, err
	}
	length := binary.LittleEndian.Uint32(frame[markerBytes:])
	if !bytes.HasPrefix(frame, r.marker[:]) || length < leastPayload || length > mostPayload {
		return nil, false, nil
	}
	whole, err := r.b.Peek(frameBytes + int(length))
	switch {
	case errors.Is(err, io.EOF):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	sum := binary.LittleEndian.Uint32(whole[markerBytes+4:])
	payload = whole[frameBytes:]
	return payload, checksum(whole[markerBytes:][:4], payload) == sum, nil
}

// seek passes over one byte, and then over all before the next marker.
func (r *reader) seek() error {
	if err := r.skip(1); err != nil {
		return err
	}
	for {
		window, err := r.b.Peek(r.b.Size())
		if at := bytes.Index(window, r.marker[:]); at >= 0 {
			return r.skip(at)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = r.skip(len(window))
			}
			return err
		}
		if err := r.skip(len(window) - markerBytes + 1); err != nil {
			return err
		}
	}
}
