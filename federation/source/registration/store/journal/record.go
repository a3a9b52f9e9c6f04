package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
)

// A file is the magic and records, of which the first one is a stamp:
//
//	record:  length of the payload, its checksum, payload
//	payload: kind, version, and what the kind has
//
// Numbers are in little endian, checksums CRC-32C. Nothing is read behind a record that is not
// whole: what may be missing then the providers say again, before anything is published.
const (
	magic        = "federation-journal 2\n" // with the version of the format
	frameBytes   = 4 + 4                    // before a payload
	leastPayload = 1 + 8
	mostPayload  = 32 << 10
)

// kind says what a record has.
type kind byte

const (
	put   kind = 'P' // when the provider was heard, and a node, which is stored with the version
	gone  kind = 'D' // the key of a node, which is deleted with the version
	stamp kind = 'S' // a mark
)

// entry is a node of the file.
type entry struct {
	node    *node.Node
	version int64
	bytes   int64 // of its record
	heard   int64 // when its provider was last there, in Unix time; 0: it is, or was since the start
}

func (e entry) append(b []byte) []byte {
	heard := binary.LittleEndian.AppendUint64(nil, uint64(e.heard)) //nolint:gosec // read back in the same way
	return appendRecord(b, put, e.version, e.node.Append(heard))
}

// mark says that an owner was there. The file has many of them, and the lock one.
type mark struct {
	File    string    `json:"file"` // random: what tells this file from others
	At      time.Time `json:"at,omitzero"`
	Boot    string    `json:"boot,omitempty"`    // of the machine
	Partial bool      `json:"partial,omitempty"` // nodes may be missing
	Ended   bool      `json:"ended,omitempty"`   // the owner has ended, and synced the file
}

func (m mark) append(b []byte, version int64) []byte {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err) // a time of another era
	}
	return appendRecord(b, stamp, version, data)
}

// boot returns what tells the boots of machines apart, where the system says it: "" is
// none. What one boot has written, it still has, whether it was synced or not.
func boot() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(id))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli) //nolint:gochecknoglobals // a constant

func appendRecord(b []byte, k kind, version int64, data []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, frameBytes)...)
	b = append(b, byte(k))
	b = binary.LittleEndian.AppendUint64(b, uint64(version)) //nolint:gosec // read back in the same way
	b = append(b, data...)
	payload := b[start+frameBytes:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(payload))) //nolint:gosec // mostPayload
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(payload, castagnoli))
	return b
}

var (
	errNotWhole = errors.New("it is not whole")
	errShort    = errors.New("it is too short")
)

// record returns the payload of the record that data begins with.
func record(data []byte) ([]byte, error) {
	if len(data) < frameBytes {
		return nil, errNotWhole
	}
	size, sum, payload := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:]), data[frameBytes:]
	if size < leastPayload || size > mostPayload || int(size) > len(payload) || crc32.Checksum(payload[:size], castagnoli) != sum {
		return nil, errNotWhole
	}
	return payload[:size], nil
}

// contents is what is in a file.
type contents struct {
	entries map[node.Key]entry
	version int64
	last    mark
	damaged bool   // whether some of it cannot be read
	lost    string // why something may be missing; "": nothing is
}

// read reads a file as far as that is possible.
func (c *contents) read(data []byte) {
	c.entries = make(map[node.Key]entry)
	at := len(magic)
	if !bytes.HasPrefix(data, []byte(magic)) {
		c.damaged, c.lost = true, fmt.Sprintf("the file does not begin as a journal does: %q", data[:min(len(data), at)])
		return
	}
	for at < len(data) {
		payload, err := record(data[at:])
		if err == nil {
			err = c.add(payload)
		}
		if err != nil {
			c.damaged, c.lost = true, fmt.Sprintf("it is damaged: record at byte %d: %v", at, err)
			return
		}
		at += frameBytes + len(payload)
	}
}

// add adds what a record says.
func (c *contents) add(payload []byte) error {
	version, data := int64(binary.LittleEndian.Uint64(payload[1:])), payload[leastPayload:] //nolint:gosec // written in the same way
	switch kind(payload[0]) {
	case put:
		if len(data) < 8 {
			return errShort
		}
		n, err := node.Parse(data[8:])
		if err != nil {
			return err
		}
		heard := int64(binary.LittleEndian.Uint64(data)) //nolint:gosec // written in the same way
		c.entries[n.Key] = entry{n, version, int64(frameBytes + len(payload)), heard}
	case gone:
		key, err := node.ParseKey(string(data))
		if err != nil {
			return err
		}
		delete(c.entries, key)
	case stamp:
		var m mark
		if err := json.Unmarshal(data, &m); err != nil {
			return err
		}
		c.last = m
	default:
		return fmt.Errorf("kind %q", payload[0])
	}
	c.version = max(c.version, version)
	return nil
}
