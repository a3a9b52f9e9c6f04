// Package snapshot keeps an owner's catalog through a restart: [Save] writes a [Snapshot] to a file, and
// [Load] reads it. Its services are served as stale data while the owner cannot be reached.
//
// # Format
//
// A file has eight octets that name the format and its version; then, each behind its length
// as a varint, a Head of proto/snapshot/v1 and for every service its Record; and last the CRC-32C
// of all that, four octets with the lowest first.
// Nothing is decoded before the checksum of the whole file has been verified, so a file that is
// damaged anywhere counts as none: the owner sends its catalog again.
//
// # Files
//
// A snapshot is replaced as a whole or not at all. Where its path is a symbolic link,
// the file that the link leads to is replaced. Only regular files are read and
// replaced: reading a FIFO or a device could block. A file that is damaged, or is not a
// snapshot of the owner, is set aside, not overwritten.
package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	snapshotpb "github.com/hamlet-federation/coredns-federation/proto/snapshot/v1"
)

const (
	format = "fedsnap" // of every version
	mark   = format + "\x04"

	// Services are passed on in batches of so many: few at first, so that queries
	// are answered soon, and then twice as many each time, because a zone is published for each.
	firstBatch = 512
	maxBatch   = 8192

	// leastOctets is fewer than any service has in a file.
	leastOctets = 16

	bufferSize = 256 << 10 // has room for most services

	// maxFile is the size in bytes of the largest file that Load reads: several times
	// what an owner may publish by default.
	maxFile = 16 << 30
)

// The reasons for which a file is not used. Errors of Decode and Load wrap one of them, unless the file could
// not be read. A program can go on after any of them: the owner sends its catalog again.
var (
	ErrFormat  = errors.New("not a catalog snapshot; name a file that is used for nothing else")
	ErrVersion = errors.New("snapshot of another version of the format; the owner sends its catalog again")
	ErrForeign = errors.New("snapshot of another owner; give each owner a file of its own")
	ErrCorrupt = errors.New("snapshot is damaged; the owner sends its catalog again")
	ErrStopped = errors.New("reading was stopped") // by ReadOptions.Part
)

// Snapshot is one owner's catalog at one time.
type Snapshot struct {
	Owner    string    // identifies the owner; less than 64 KiB
	LastUp   time.Time // when the stream that the services came from was last up
	Saved    time.Time // when the snapshot was made
	Services []packed.Service

	// Admits is catalog.Rules.Admits if the owner has more services than these, because the rules
	// did not admit them. It is empty if these are all that the owner has.
	Admits string
}

// ReadOptions are the options of Decode and Load.
type ReadOptions struct {
	// Owner identifies the owner whose catalog is wanted.
	Owner string

	// Progress is called now and then, and at the end, with the number of services that have been
	// read and the number in the file, as far as that is known. It may be nil.
	Progress func(done, total int)

	// Part is called with some of the services at a time, in order, and with the other fields of
	// the snapshot. The snapshot that Decode returns has no services then. When Part returns false,
	// no more is read. It may be nil.
	Part func(*Snapshot) bool
}

// Encode writes the snapshot to w. It needs memory for one service at a time, and fails when w
// does.
func Encode(w io.Writer, s *Snapshot) error {
	octets, err := proto.Marshal(&snapshotpb.Head{
		Owner: s.Owner, LastUp: timestamppb.New(s.LastUp), Saved: timestamppb.New(s.Saved), Services: uint64(len(s.Services)), Admits: s.Admits,
	})
	if err != nil {
		return err
	}
	b, sum := bufio.NewWriterSize(w, bufferSize), crc32.New(crcTable())
	checked := io.MultiWriter(b, sum)
	_, err = checked.Write(protowire.AppendBytes([]byte(mark), octets))
	for i := 0; i < len(s.Services) && err == nil; i++ {
		octets = protowire.AppendString(octets[:0], s.Services[i].Octets())
		_, err = checked.Write(octets)
	}
	_, _ = b.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return b.Flush() // b keeps its first error
}

func crcTable() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // which is made once

// Decode returns the snapshot of the wanted owner from a file of that size. It takes no more memory
// than a few times the size of the file, whatever the file contains. It fails after calls of
// ReadOptions.Part only where the file changes while it is read, or has a right checksum and a
// wrong content.
func Decode(file io.ReaderAt, size int64, o ReadOptions) (*Snapshot, error) {
	if err := checkFormat(file); err != nil {
		return nil, err
	}
	content := io.NewSectionReader(file, int64(len(mark)), max(size-int64(len(mark))-crc32.Size, 0))
	if err := verifyChecksum(file, content, o); err != nil {
		return nil, err
	}
	_, _ = content.Seek(0, io.SeekStart)
	d := contentDecoder{options: o, size: uint64(content.Size()), r: bufio.NewReaderSize(content, bufferSize)} //nolint:gosec // not below 0
	if err := d.readHead(); err != nil {
		return nil, err
	}
	if err := d.readServices(); err != nil {
		return nil, err
	}
	return d.snapshot, nil
}

// checkFormat returns why a file cannot be a snapshot of this version, or nil.
func checkFormat(file io.ReaderAt) error {
	octets := make([]byte, len(mark))
	n, err := file.ReadAt(octets, 0)
	switch start := string(octets[:n]); {
	case start == mark:
		return nil
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case strings.HasPrefix(mark, start): // also of a file that is empty
		return ErrCorrupt
	case strings.HasPrefix(start, format):
		return ErrVersion
	}
	return ErrFormat
}

// verifyChecksum returns an error unless the content has the checksum that follows it.
func verifyChecksum(file io.ReaderAt, content *io.SectionReader, o ReadOptions) error {
	sum, buffer := crc32.New(crcTable()), make([]byte, bufferSize)
	_, _ = io.WriteString(sum, mark)
	for {
		n, err := content.Read(buffer)
		_, _ = sum.Write(buffer[:n])
		o.reportProgress(0, 0)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	want := make([]byte, crc32.Size)
	if _, err := file.ReadAt(want, int64(len(mark))+content.Size()); err != nil {
		return readError(err)
	}
	if binary.LittleEndian.Uint32(want) != sum.Sum32() {
		return ErrCorrupt
	}
	return nil
}

// readError returns why octets that should be in the file cannot be read: the error of the disk, or
// ErrCorrupt if they are missing. Err may be nil.
func readError(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrCorrupt
	}
	return err
}

func (o *ReadOptions) reportProgress(done, total int) {
	if o.Progress != nil {
		o.Progress(done, total)
	}
}

// contentDecoder reads the content of one verified file, from the beginning to the end. It holds
// one batch of services at a time.
type contentDecoder struct {
	options  ReadOptions
	size     uint64 // of the content
	r        *bufio.Reader
	long     []byte // for services that are larger than the buffer of r
	unpacker packed.Unpacker

	snapshot *Snapshot
	services int // in the file
	read     int // services that were read
}

// nextOctets returns the next octets with a length before them. They are valid until the next call.
func (d *contentDecoder) nextOctets() (octets []byte, err error) {
	peeked, err := d.r.Peek(binary.MaxVarintLen64)
	length, n := binary.Uvarint(peeked)
	if n <= 0 || length > d.size {
		return nil, readError(err)
	}
	_, _ = d.r.Discard(n) // they are there
	if length > bufferSize {
		d.long = slices.Grow(d.long[:0], int(length))[:length] //nolint:gosec // no more than the file has
		if _, err := io.ReadFull(d.r, d.long); err != nil {
			return nil, readError(err)
		}
		return d.long, nil
	}
	if octets, err = d.r.Peek(int(length)); err != nil {
		return nil, readError(err)
	}
	_, _ = d.r.Discard(len(octets))
	return octets, nil
}

// readHead reads the head before the services. It fails for another owner's file.
func (d *contentDecoder) readHead() error {
	octets, err := d.nextOctets()
	if err != nil {
		return err
	}
	var head snapshotpb.Head
	if proto.Unmarshal(octets, &head) != nil || !head.GetLastUp().IsValid() || !head.GetSaved().IsValid() ||
		head.GetServices() > d.size/leastOctets {
		return ErrCorrupt
	}
	if owner := head.GetOwner(); owner != d.options.Owner {
		return fmt.Errorf("%w: %s, not %s", ErrForeign, safetext.Quote(owner), safetext.Quote(d.options.Owner))
	}
	d.services = int(head.GetServices()) //nolint:gosec // no more than the file has octets
	d.snapshot = &Snapshot{
		Owner: d.options.Owner, LastUp: head.GetLastUp().AsTime(), Saved: head.GetSaved().AsTime(), Admits: head.GetAdmits(),
	}
	return nil
}

// readServices reads all services, and passes them on in batches.
func (d *contentDecoder) readServices() error {
	for batch := firstBatch; d.read < d.services; d.read++ {
		if d.options.Part != nil && len(d.snapshot.Services) == batch {
			if err := d.passPart(); err != nil {
				return err
			}
			batch = min(2*batch, maxBatch)
		}
		if err := d.readService(); err != nil {
			return err
		}
	}
	if _, err := d.r.ReadByte(); err == nil {
		return ErrCorrupt // more than it says
	}
	if d.options.reportProgress(d.read, d.services); d.options.Part != nil && len(d.snapshot.Services) > 0 {
		return d.passPart()
	}
	return nil
}

// passPart passes on the services that were read.
func (d *contentDecoder) passPart() error {
	d.options.reportProgress(d.read, d.services)
	part := *d.snapshot
	d.snapshot.Services = nil
	if !d.options.Part(&part) {
		return ErrStopped
	}
	return nil
}

// readService reads one service. The catalog judges whether the owner may publish it, because the
// rules may have changed since.
func (d *contentDecoder) readService() error {
	octets, err := d.nextOctets()
	if err != nil {
		return err
	}
	p, ok := d.unpacker.Read(octets)
	if !ok {
		return ErrCorrupt
	}
	d.snapshot.Services = append(d.snapshot.Services, p)
	return nil
}
