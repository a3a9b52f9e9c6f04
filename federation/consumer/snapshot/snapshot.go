// Package snapshot keeps an owner's catalog through a restart, in a file. Its
// services are served as stale data while the owner cannot be reached.
//
// # Format
//
// All numbers are big-endian. A checksum is the CRC-32C of all bytes of the file
// before it, except other checksums.
//
//	magic     8 bytes
//	version   4
//	checksum  4
//	Header    length (4), message, checksum (4)
//	Record    length (4), message, checksum (4)   as many as Header.services says
//
// The messages are those of proto/snapshot/v1. Magic, version and their checksum
// are the same in all versions, which tells a file of a newer version from a
// damaged one. Because a checksum also covers everything before its message, records
// cannot be exchanged or left out. Nothing is decoded before its checksum has been
// verified. The format is our own because length-delimited protobuf messages alone have
// no checksums: damage would be noticed late, or never.
//
// # Files
//
// A snapshot is replaced as a whole or not at all. Where its path is a symbolic link,
// the file that the link leads to is replaced. Only regular files are read and
// replaced: reading a FIFO or a device could block. A file that is not a snapshot of
// the owner is set aside, not overwritten.
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
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	snapshotpb "github.com/hamlet-federation/coredns-federation/proto/snapshot/v1"
)

const (
	magic   = "fedsnap\n"
	version = 1

	// maxHeader and maxRecord bound the lengths of messages, in bytes. A service is
	// not larger than the message that it came in, and max_message allows 1 GiB.
	maxHeader = 64 << 10
	maxRecord = 1 << 30

	// maxFile is the size in bytes of the largest file that Load reads: several times
	// what an owner may publish by default.
	maxFile = 16 << 30

	// progressEvery is the number of services between two calls of
	// Options.Progress, which take some milliseconds.
	progressEvery = 10_000
)

// Why a file is not used. Errors of Decode and Load wrap one of them, unless the
// file could not be read at all. A program can go on after any of them: the owner
// sends its catalog again.
var (
	ErrFormat    = errors.New("not a catalog snapshot; name a file that is used for nothing else")
	ErrNewer     = errors.New("snapshot of a newer format")
	ErrForeign   = errors.New("snapshot of another owner; give each owner a file of its own")
	ErrTruncated = errors.New("snapshot ends early")
	ErrCorrupt   = errors.New("snapshot is damaged")
	ErrStopped   = errors.New("reading was stopped") // by Options.Part
)

// Snapshot is one owner's catalog at one time.
type Snapshot struct {
	Owner    string    // identifies the owner; less than 64 KiB
	LastUp   time.Time // when the stream that the services came from was last up
	Saved    time.Time // when the snapshot was made; zero if it is not known
	Services []packed.Service

	// Total is how many services the whole snapshot says that it has, for one that
	// comes in parts. Encode does not write it.
	Total int
}

// Options are those of Decode and Load.
type Options struct {
	// Owner identifies the owner whose catalog is wanted.
	Owner string

	// Former are what else has identified that owner when its catalog was saved.
	Former []string

	// Policy is applied to the services as if the owner had sent them now:
	// it may have changed, and the file may have been edited.
	Policy wire.Policy

	// Refused is called for each service that is left out because it is not valid
	// or breaks a rule of the policy. It may be nil.
	Refused func(*federation.InvalidError)

	// Progress is called now and then, and at the end, with the number of services
	// that have been read and of those in the file. It may be nil.
	Progress func(done, total int)

	// Service is called for each service that is not refused, packed and unpacked,
	// before Part is called with it. It must not keep s, of which the strings are in
	// the memory of p. It may be nil.
	Service func(p packed.Service, s *federation.Service)

	// Part is called with some of the services at a time, in order, beside what else
	// the snapshot says. The one that is returned has none then. When it reports
	// false, or reading fails, all parts are void: Load fails before the first part
	// when a file is damaged, but a disk may fail later. It may be nil.
	Part func(*Snapshot) bool
}

// A part is small at first, so that the first names are known soon, and then as large
// as all parts before it, up to most: others wait while a part is published.
const (
	leastPart = 1 << 9
	mostPart  = 1 << 11
)

// Encode writes the snapshot to w. It needs memory for one service at a time. It
// fails when w does, and when a message is too large for the format.
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
		e.octets(maxRecord, service.Octets())
		if e.err != nil {
			return fmt.Errorf("service %s: %w", federation.Quote(service.Name()), e.err)
		}
	}
	if e.err != nil {
		return e.err
	}
	return e.w.Flush()
}

// Decode reads a snapshot of the wanted owner from r, to its end. Whatever r
// holds, Decode takes no more memory than a few times what it has read.
func Decode(r io.Reader, o Options) (*Snapshot, error) {
	d := decoder{r: bufio.NewReaderSize(r, bufferSize)}
	return d.decode(o)
}

// verify returns the error of Decode for what is damaged or of another owner. It
// unpacks nothing, and so takes little of the time.
func verify(r io.Reader, o Options) error {
	d := decoder{r: bufio.NewReaderSize(r, bufferSize), unread: true}
	progress := o.Progress
	o.Part, o.Progress = nil, nil
	if progress != nil {
		o.Progress = func(_, total int) { progress(0, total) }
	}
	_, err := d.decode(o)
	return err
}

func (d *decoder) decode(o Options) (*Snapshot, error) {
	if err := d.preamble(); err != nil {
		return nil, err
	}
	var header snapshotpb.Header
	if err := d.message(maxHeader, &header); err != nil {
		return nil, err
	}
	saved := header.GetSaved() // nil in files of earlier versions
	switch {
	case header.GetOwner() != o.Owner && !slices.Contains(o.Former, header.GetOwner()):
		return nil, fmt.Errorf("%w: %s, not %s", ErrForeign, federation.Quote(header.GetOwner()), federation.Quote(o.Owner))
	case !header.GetLastUp().IsValid(), saved != nil && !saved.IsValid(), header.GetServices() > math.MaxInt32:
		return nil, fmt.Errorf("header: %w", ErrCorrupt)
	}
	s := &Snapshot{Owner: o.Owner, LastUp: header.GetLastUp().AsTime()}
	if saved != nil {
		s.Saved = saved.AsTime()
	}
	total := int(header.GetServices()) //nolint:gosec // checked above
	if o.Part != nil {
		s.Total = total
	}
	for i := range total {
		if o.Progress != nil && i > 0 && i%progressEvery == 0 {
			o.Progress(i, total)
		}
		if n := len(s.Services); o.Part != nil && n >= min(max(i-n, leastPart), mostPart) && !s.hand(o.Part) {
			return nil, ErrStopped
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
	if o.Part != nil && !s.hand(o.Part) {
		return nil, ErrStopped
	}
	if o.Progress != nil {
		o.Progress(total, total)
	}
	return s, nil
}

// hand gives the services away.
func (s *Snapshot) hand(part func(*Snapshot) bool) bool {
	p := *s
	s.Services = nil
	return part(&p)
}

// service reads the next record into s.
func (d *decoder) service(s *Snapshot, o Options) error {
	octets, err := d.octets(maxRecord)
	if err != nil || d.unread {
		return err
	}
	p, unpacked, err := o.unpack(&d.unpacker, octets)
	if invalid, ok := errors.AsType[*federation.InvalidError](err); ok {
		if o.Refused != nil {
			o.Refused(invalid)
		}
		return nil
	}
	if err != nil {
		return err
	}
	s.Services = append(s.Services, p)
	if o.Service != nil {
		o.Service(p, unpacked)
	}
	return nil
}

// unpack returns the service in a record, packed and unpacked. It fails with a
// *federation.InvalidError when that is not valid or breaks a rule of the policy.
func (o *Options) unpack(u *packed.Unpacker, octets []byte) (packed.Service, *federation.Service, error) {
	p, s, ok := u.Read(octets)
	if !ok {
		p, err := o.decode(octets)
		if err != nil {
			return packed.Service{}, nil, err
		}
		return p, u.Unpack(p), nil
	}
	if invalid := o.Policy.Check(s); invalid != nil {
		invalid.Service = strings.Clone(s.Name)
		return packed.Service{}, nil, invalid
	}
	return p, s, nil
}

// decode is unpack for what package packed has not written: that of a version before
// it, and whatever somebody else has written.
func (o *Options) decode(octets []byte) (packed.Service, error) {
	var record snapshotpb.Record
	if proto.Unmarshal(octets, &record) != nil {
		return packed.Service{}, ErrCorrupt
	}
	service, err := wire.DecodeService(record.GetService(), o.Policy)
	if err != nil {
		return packed.Service{}, err
	}
	for _, i := range record.GetUnnamed() {
		if uint64(i) >= uint64(len(service.Instances)) {
			return packed.Service{}, ErrCorrupt
		}
		service.Instances[i].Unnamed = true
		service.Instances[i].ID = ""
	}
	return packed.Of(service), nil
}

const (
	bufferSize   = 256 << 10
	numberSize   = 4
	checksumSize = 4
)

// add returns the checksum of the bytes that sum is the checksum of, followed by b.
func add(sum uint32, b []byte) uint32 {
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), b) // the table is made once
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

// checksum writes the sum so far. It is not added to the sum: the CRC of any bytes
// followed by their own CRC is always the same.
func (e *encoder) checksum() {
	if e.err == nil {
		_, e.err = e.w.Write(binary.BigEndian.AppendUint32(nil, e.sum))
	}
}

func (e *encoder) message(limit int, m proto.Message) {
	if e.err == nil {
		e.buf, e.err = proto.MarshalOptions{}.MarshalAppend(e.buf[:0], m)
		e.framed(limit)
	}
}

// octets writes an encoded message.
func (e *encoder) octets(limit int, octets string) {
	e.buf = append(e.buf[:0], octets...)
	e.framed(limit)
}

// framed writes the message in buf, between its length and the checksum.
func (e *encoder) framed(limit int) {
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

	unpacker packed.Unpacker
	unread   bool // services are not looked at
}

// read returns the next n bytes, which are valid until the next call.
func (d *decoder) read(n int) ([]byte, error) {
	if b, ok := d.buffered(n); ok {
		return b, nil
	}
	// A buffer of n bytes at once would take memory for a length that a damaged file
	// only claims.
	d.buf.Reset()
	if _, err := io.CopyN(&d.buf, d.r, int64(n)); errors.Is(err, io.EOF) {
		return nil, ErrTruncated
	} else if err != nil {
		return nil, err
	}
	return d.buf.Bytes(), nil
}

// buffered is read for what fits into the buffer of the reader, as most records do.
func (d *decoder) buffered(n int) ([]byte, bool) {
	if n > bufferSize {
		return nil, false
	}
	b, err := d.r.Peek(n)
	if err != nil {
		return nil, false // read finds out what is wrong
	}
	_, _ = d.r.Discard(n) // they are there
	return b, true
}

// checked returns the next n bytes, which their checksum must follow.
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

// preamble reads the part that is the same in all versions.
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
	b, err := d.octets(limit)
	if err == nil && proto.Unmarshal(b, m) != nil {
		return ErrCorrupt
	}
	return err
}

// octets returns the next message, encoded. It is valid until the next call.
func (d *decoder) octets(limit uint32) ([]byte, error) {
	b, err := d.read(numberSize)
	if err != nil {
		return nil, err
	}
	d.sum = add(d.sum, b)
	n := binary.BigEndian.Uint32(b)
	if n > limit {
		return nil, ErrCorrupt
	}
	return d.checked(int(n))
}
