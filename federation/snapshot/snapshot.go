// Package snapshot keeps an owner's catalog through a restart: in a file from
// which the services are served as stale data while the owner cannot be
// reached.
//
// # Format
//
// All numbers are big-endian, all checksums are CRC-32C of every byte of the
// file before them but for other checksums.
//
//	magic     8 bytes
//	version   4
//	checksum  4
//	Header    length (4), message, checksum (4)
//	Record    length (4), message, checksum (4)   as many as Header.services says
//
// The messages are those of proto/snapshot/v1. Magic, version and their checksum
// stay the same in all versions, so that a file of a newer one is told from a
// damaged one. Each checksum covers what came before the message as well, so
// that records can be neither exchanged nor left out; and nothing is decoded
// before its checksum was found right.
//
// # Files
//
// A snapshot is replaced as a whole or not at all, and in the place that a
// symbolic link leads to. Only regular files are read and replaced, so that neither
// a FIFO nor a device is ever waited for. What is no snapshot of the owner is set
// aside, not written over.
package snapshot

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	snapshotpb "github.com/hamlet-federation/coredns-federation/proto/snapshot/v1"
)

const (
	magic   = "fedsnap\n"
	version = 1

	// maxHeader and maxRecord bound the lengths of messages. No service is
	// larger than a message of the owner may be, and max_message allows 1 GiB.
	maxHeader = 64 << 10
	maxRecord = 1 << 30

	// MaxFile is the largest file that Load reads: several times what any owner
	// may publish by default, and an end to what is no snapshot at all.
	MaxFile = 16 << 30

	// progressEvery is how many services there are between two calls of
	// Options.Progress: some milliseconds.
	progressEvery = 10_000
)

// Why a file is not used. Errors of Decode and Load wrap one of them, unless the
// file could not be read at all. They are no reason to stop: the owner sends its
// catalog again.
var (
	ErrFormat    = errors.New("not a catalog snapshot; name a file that is used for nothing else")
	ErrNewer     = errors.New("snapshot of a newer format")
	ErrForeign   = errors.New("snapshot of another owner; give each owner a file of its own")
	ErrTruncated = errors.New("snapshot ends early")
	ErrCorrupt   = errors.New("snapshot is damaged")
)

// Snapshot is one owner's catalog at one time.
type Snapshot struct {
	Owner    string    // what makes the owner the same one; less than 64 KiB
	LastUp   time.Time // when a stream that vouches for the services was last up
	Saved    time.Time // when the snapshot was made; zero: not known
	Services []*federation.Service
}

// Options is what Decode and Load go by.
type Options struct {
	// Owner is the one whose catalog is wanted.
	Owner string

	// Policy is applied to the services as if the owner had sent them now.
	// It may have changed, and the file may have been edited.
	Policy wire.Policy

	// Refused is told of each service that is left out, as it breaks a rule
	// of the policy or of package wire. It may be nil.
	Refused func(*federation.InvalidError)

	// Progress is told now and then, and at the end, how many services of how
	// many have been read. It may be nil.
	Progress func(done, total int)
}

// Encode writes the snapshot to w. It needs no more memory than one service
// takes. It fails when w does, and when a message is too large for the format.
func Encode(w io.Writer, s *Snapshot) error {
	e := encoder{w: bufio.NewWriterSize(w, bufferSize)}
	e.write([]byte(magic))
	e.number(version)
	e.checksum()
	header := &snapshotpb.Header{
		Owner:    s.Owner,
		LastUp:   timestamppb.New(s.LastUp),
		Services: uint64(len(s.Services)),
	}
	if !s.Saved.IsZero() {
		header.Saved = timestamppb.New(s.Saved)
	}
	e.message(maxHeader, header)
	for _, service := range s.Services {
		e.message(maxRecord, record(service))
		if e.err != nil {
			return fmt.Errorf("service %s: %w", federation.Quote(service.Name), e.err)
		}
	}
	if e.err != nil {
		return e.err
	}
	return e.w.Flush()
}

// record returns the message for a service.
func record(s *federation.Service) *snapshotpb.Record {
	r := &snapshotpb.Record{}
	instances := s.Instances
	for i := range instances {
		if !instances[i].Unnamed {
			continue
		}
		if r.Unnamed == nil {
			instances = slices.Clone(instances) // services are never written
		}
		r.Unnamed = append(r.Unnamed, uint32(i))
		instances[i].ID = instances[i].Protocol.String() // required on the wire
	}
	if r.Unnamed != nil {
		named := *s
		named.Instances = instances
		s = &named
	}
	r.Service = wire.EncodeService(s)
	return r
}

// Decode reads a snapshot of the wanted owner from r, to its end. Whatever r
// holds, it takes no more memory than a few times what it has read.
func Decode(r io.Reader, o Options) (*Snapshot, error) {
	d := decoder{r: bufio.NewReaderSize(r, bufferSize)}
	if err := d.preamble(); err != nil {
		return nil, err
	}
	var header snapshotpb.Header
	if err := d.message(maxHeader, &header); err != nil {
		return nil, err
	}
	saved := header.GetSaved() // nil in files of earlier versions
	switch {
	case header.GetOwner() != o.Owner:
		return nil, fmt.Errorf("%w: %s, not %s", ErrForeign, federation.Quote(header.GetOwner()), federation.Quote(o.Owner))
	case !header.GetLastUp().IsValid(), saved != nil && !saved.IsValid(), header.GetServices() > math.MaxInt32:
		return nil, fmt.Errorf("header: %w", ErrCorrupt)
	}
	s := &Snapshot{Owner: o.Owner, LastUp: header.GetLastUp().AsTime()}
	if saved != nil {
		s.Saved = saved.AsTime()
	}
	total := int(header.GetServices()) //nolint:gosec // checked above
	for i := range total {
		if o.Progress != nil && i > 0 && i%progressEvery == 0 {
			o.Progress(i, total)
		}
		if err := d.service(s, o); err != nil {
			return nil, fmt.Errorf("service %d of %d: %w", i+1, total, err)
		}
	}
	switch _, err := d.r.ReadByte(); {
	case err == nil:
		return nil, fmt.Errorf("%w: something follows its end", ErrCorrupt)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	if o.Progress != nil {
		o.Progress(total, total)
	}
	return s, nil
}

// service reads the next record into s.
func (d *decoder) service(s *Snapshot, o Options) error {
	var record snapshotpb.Record
	if err := d.message(maxRecord, &record); err != nil {
		return err
	}
	service, err := wire.DecodeService(record.GetService(), o.Policy)
	if err != nil {
		if invalid, ok := errors.AsType[*federation.InvalidError](err); ok && o.Refused != nil {
			o.Refused(invalid)
		}
		return nil
	}
	for _, i := range record.GetUnnamed() {
		if uint64(i) >= uint64(len(service.Instances)) {
			return ErrCorrupt
		}
		service.Instances[i].Unnamed = true
		service.Instances[i].ID = ""
	}
	s.Services = append(s.Services, service)
	return nil
}

const (
	bufferSize   = 256 << 10
	numberSize   = 4
	checksumSize = 4
)

// add returns the checksum of what sum is of, with b behind it.
func add(sum uint32, b []byte) uint32 {
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), b) // which makes its table once
}

// encoder writes the parts of a file. After an error it writes nothing.
type encoder struct {
	w   *bufio.Writer
	sum uint32
	buf []byte
	err error
}

func (e *encoder) write(b []byte) {
	if e.err == nil {
		e.sum = add(e.sum, b)
		_, e.err = e.w.Write(b)
	}
}

func (e *encoder) number(n uint32) {
	e.write(binary.BigEndian.AppendUint32(nil, n))
}

// checksum writes the sum so far, which it leaves as it is: the sum of anything
// with its own sum behind it is always the same.
func (e *encoder) checksum() {
	if e.err == nil {
		_, e.err = e.w.Write(binary.BigEndian.AppendUint32(nil, e.sum))
	}
}

func (e *encoder) message(limit int, m proto.Message) {
	if e.err != nil {
		return
	}
	e.buf, e.err = proto.MarshalOptions{}.MarshalAppend(e.buf[:0], m)
	if e.err == nil && len(e.buf) > limit {
		e.err = fmt.Errorf("message of %d bytes is larger than a snapshot takes (%d)", len(e.buf), limit)
	}
	e.number(uint32(len(e.buf))) //nolint:gosec // within the limit, or not written
	e.write(e.buf)
	e.checksum()
}

// decoder reads the parts of a file.
type decoder struct {
	r   *bufio.Reader
	sum uint32
	buf bytes.Buffer
}

// read returns the next n bytes, which are good until the next call.
func (d *decoder) read(n int) ([]byte, error) {
	// Not one buffer of n bytes: what is not there must not be paid for.
	d.buf.Reset()
	if _, err := io.CopyN(&d.buf, d.r, int64(n)); errors.Is(err, io.EOF) {
		return nil, ErrTruncated
	} else if err != nil {
		return nil, err
	}
	return d.buf.Bytes(), nil
}

// checked returns the next n bytes, behind which their checksum must stand.
func (d *decoder) checked(n int) ([]byte, error) {
	b, err := d.read(n + checksumSize)
	if err != nil {
		return nil, err
	}
	b, sum := b[:n], binary.BigEndian.Uint32(b[n:])
	d.sum = add(d.sum, b)
	if d.sum != sum {
		return nil, ErrCorrupt
	}
	return b, nil
}

// preamble reads what is the same in all versions.
func (d *decoder) preamble() error {
	start, err := d.r.Peek(len(magic))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case !strings.HasPrefix(magic, string(start)):
		return ErrFormat
	}
	b, err := d.checked(len(magic) + numberSize)
	if err != nil {
		return err
	}
	switch v := binary.BigEndian.Uint32(b[len(magic):]); {
	case v > version:
		return fmt.Errorf("%w: its version is %d, the newest known is %d", ErrNewer, v, version)
	case v < version:
		return fmt.Errorf("%w: there is no version %d", ErrCorrupt, v)
	}
	return nil
}

func (d *decoder) message(limit uint32, m proto.Message) error {
	b, err := d.read(numberSize)
	if err != nil {
		return err
	}
	d.sum = add(d.sum, b)
	n := binary.BigEndian.Uint32(b)
	if n > limit {
		return ErrCorrupt
	}
	if b, err = d.checked(int(n)); err != nil {
		return err
	}
	if proto.Unmarshal(b, m) != nil {
		return ErrCorrupt
	}
	return nil
}
