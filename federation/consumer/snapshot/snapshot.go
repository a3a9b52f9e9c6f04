// Package snapshot keeps an owner's catalog through a restart, in a file. Its
// services are served as stale data while the owner cannot be reached.
//
// # Format
//
// A file is a sequence of parts of some hundred services. Each part is eight octets that
// mark its begin, the length of a Frame of proto/snapshot/v1, and the Frame. The checksum of
// a part is its own, and a part says all that is known of the file. So damage costs no more
// than the part in which it is: the reader goes on at the next mark. Nothing in a part is
// decoded before its checksum has been verified. A file without services has one part.
//
// The last octet of the mark is the version of the format.
//
// # Files
//
// A snapshot is replaced as a whole or not at all. Where its path is a symbolic link,
// the file that the link leads to is replaced. Only regular files are read and
// replaced: reading a FIFO or a device could block. A file that is not a snapshot of
// the owner is set aside, not overwritten.
//
// Only packages of this module import it: it is not a stable API.
package snapshot

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	snapshotpb "github.com/hamlet-federation/coredns-federation/proto/snapshot/v1"
)

const (
	format = "fedsnap" // of every version
	mark   = format + "\x02"

	// A part is complete when it has so many services, or octets of them.
	partServices = 512
	partOctets   = 128 << 10

	// What is read is handed on part by part at first, so that queries are answered soon, and then
	// up to so many services at a time: for each time a zone is published.
	maxBatch = 8192

	// leastOctets is fewer than any service has in a file.
	leastOctets = 16

	bufferSize = 256 << 10 // has room for most parts

	// maxFile is the size in bytes of the largest file that Load reads: several times
	// what an owner may publish by default.
	maxFile = 16 << 30
)

// Why a file is not used, or not all of it. Errors of Decode and Load wrap one of them,
// unless the file could not be read at all. A program can go on after any of them: the
// owner sends its catalog again.
var (
	ErrFormat  = errors.New("not a catalog snapshot; name a file that is used for nothing else")
	ErrVersion = errors.New("snapshot of another version of the format; the owner sends its catalog again")
	ErrForeign = errors.New("snapshot of another owner; give each owner a file of its own")
	ErrCorrupt = errors.New("snapshot is damaged")
	ErrStopped = errors.New("reading was stopped") // by Options.Part
)

// Snapshot is one owner's catalog at one time.
type Snapshot struct {
	Owner    string    // identifies the owner; less than 64 KiB
	LastUp   time.Time // when the stream that the services came from was last up
	Saved    time.Time // when the snapshot was made; zero if it is not known
	Services []packed.Service

	// IDs are those under which the owner sent services, where they are not the name, by that
	// name; nil: they are not known, as in a file of a version before.
	IDs map[string]string

	// Scope says of which configurations the services are all that the owner has, in the words of
	// the program that saves it; empty: not known.
	Scope string

	// Total is how many services the whole snapshot has, for one that comes in parts; less
	// where the file is too small for what it says. Encode does not write it.
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
	// that have been read and of those in the file, as far as it is known. It may be nil.
	Progress func(done, total int)

	// Service is called for each service that is not refused, packed and unpacked,
	// before Part is called with it. It must not keep s, of which the strings are in
	// the memory of p. It may be nil.
	Service func(p packed.Service, s *federation.Service)

	// Part is called with some of the services at a time, in order, beside what else
	// the snapshot says. The one that is returned has none then. When it reports
	// false, no more is read. It may be nil.
	Part func(*Snapshot) bool
}

// Encode writes the snapshot to w. It needs memory for one part at a time. It fails when
// w does.
func Encode(w io.Writer, s *Snapshot) (err error) {
	b := bufio.NewWriterSize(w, bufferSize)
	part := &snapshotpb.Part{Owner: s.Owner, LastUp: timestamppb.New(s.LastUp), Services: uint64(len(s.Services)), Identified: s.IDs != nil, Scope: s.Scope}
	if !s.Saved.IsZero() {
		part.Saved = timestamppb.New(s.Saved)
	}
	marshal := proto.MarshalOptions{Deterministic: true}
	var octets, frame []byte // of one part after the other, or a large catalog makes much garbage at once
	for done := 0; ; {
		part.Before, part.Records = uint64(done), part.GetRecords()[:0]
		part.Ids = make(map[string]string)
		for n := 0; done < len(s.Services) && n < partServices && len(part.GetRecords()) < partOctets; n++ {
			part.Records = protowire.AppendString(part.GetRecords(), s.Services[done].Octets())
			if name := s.Services[done].Name(); s.IDs[name] != "" {
				part.Ids[name] = s.IDs[name]
			}
			done++
		}
		if octets, err = marshal.MarshalAppend(octets[:0], part); err != nil {
			return err
		}
		if frame, err = marshal.MarshalAppend(frame[:0], &snapshotpb.Frame{Checksum: checksum(octets), Part: octets}); err != nil {
			return err
		}
		_, _ = b.Write(protowire.AppendVarint([]byte(mark), uint64(len(frame))))
		if _, err = b.Write(frame); err != nil || done == len(s.Services) {
			return b.Flush() // b keeps its first error
		}
	}
}

func checksum(octets []byte) uint32 {
	return crc32.Checksum(octets, crc32.MakeTable(crc32.Castagnoli)) // the table is made once
}

// Decode reads a snapshot of the wanted owner from a file of that size. Of one that is
// damaged it returns what is whole, and the error says how much is not. Whatever the file
// holds, Decode takes no more memory than a few times its size.
func Decode(file io.ReaderAt, size int64, o Options) (*Snapshot, error) {
	d := decoder{options: o, file: io.NewSectionReader(file, 0, size)}
	d.r = bufio.NewReaderSize(d.file, bufferSize)
	peeked, err := d.r.Peek(len(mark))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	start := string(peeked)
	for err = nil; err == nil; err = d.next() { //nolint:revive // the condition does it
	}
	if o.Part != nil && d.snapshot != nil && len(d.snapshot.Services) > 0 && !errors.Is(err, ErrStopped) {
		if stopped := d.hand(); stopped != nil {
			err = stopped
		}
	}
	switch ended := errors.Is(err, io.EOF); {
	case d.snapshot == nil && ended:
		return nil, unlike(start)
	case d.snapshot == nil, errors.Is(err, ErrStopped):
		return nil, err
	case d.read == d.services:
		return d.snapshot, nil
	case ended:
		err = ErrCorrupt
	}
	return d.snapshot, fmt.Errorf("%d of %d services cannot be read: %w", d.services-d.read, d.services, err)
}

// unlike returns why there is no part in a file that starts so.
func unlike(start string) error {
	switch {
	case strings.HasPrefix(mark, start): // also of a file that is empty
		return ErrCorrupt
	case strings.HasPrefix(start, format):
		return ErrVersion
	}
	return ErrFormat
}

// decoder reads one file.
type decoder struct {
	options  Options
	file     *io.SectionReader
	r        *bufio.Reader // of file
	unpacker packed.Unpacker

	snapshot *Snapshot // nil before the first part
	batch    int       // how many services are handed on at a time
	services uint64    // that the file has
	read     uint64    // of those
	ended    uint64    // how many services come up to the end of the last part
	wasted   int64     // octets that were read for parts that were none
}

// next reads the next part that is whole. It fails with io.EOF when there is none.
func (d *decoder) next() error {
	for {
		if err := d.seek(); err != nil {
			return err
		}
		if part := d.part(); part != nil {
			return d.take(part)
		}
		if d.wasted > 8*d.file.Size() { // an owner may have put marks into its services
			return ErrCorrupt
		}
	}
}

// seek goes to the end of the next mark.
func (d *decoder) seek() error {
	for {
		window, err := d.r.Peek(max(len(mark), d.r.Buffered()))
		if i := bytes.Index(window, []byte(mark)); i >= 0 {
			_, err = d.r.Discard(i + len(mark))
			return err
		}
		if err != nil {
			return err
		}
		_, _ = d.r.Discard(len(window) - len(mark) + 1) // they are there
		d.progress()
	}
}

func (d *decoder) progress() {
	if d.options.Progress != nil {
		d.options.Progress(int(d.read), int(d.services)) //nolint:gosec // see accepts
	}
}

// part returns the part that begins here, or nil, and stays here then, if it is damaged.
func (d *decoder) part() *snapshotpb.Part {
	start := d.at()
	var frame snapshotpb.Frame
	var part snapshotpb.Part
	// The length is what a damaged file only claims.
	limit := protodelim.UnmarshalOptions{MaxSize: max(d.file.Size()-start, 1)}
	if limit.UnmarshalFrom(d.r, &frame) == nil && checksum(frame.GetPart()) == frame.GetChecksum() && proto.Unmarshal(frame.GetPart(), &part) == nil {
		return &part
	}
	d.wasted += d.at() + int64(d.r.Buffered()) - start
	_, _ = d.file.Seek(start, io.SeekStart) // a position from which it was read
	d.r.Reset(d.file)
	return nil
}

// at returns the position in the file.
func (d *decoder) at() int64 {
	read, _ := d.file.Seek(0, io.SeekCurrent) // which does not fail
	return read - int64(d.r.Buffered())
}

// take takes the services of a part, unless it is not one of this snapshot. It fails when
// the part is of another owner, or nobody wants the rest.
func (d *decoder) take(part *snapshotpb.Part) error {
	if owner := part.GetOwner(); d.snapshot == nil && owner != d.options.Owner && !slices.Contains(d.options.Former, owner) {
		return fmt.Errorf("%w: %s, not %s", ErrForeign, federation.Quote(owner), federation.Quote(d.options.Owner))
	}
	s := &Snapshot{Owner: d.options.Owner, LastUp: part.GetLastUp().AsTime(), Scope: part.GetScope()}
	if part.GetSaved() != nil {
		s.Saved = part.GetSaved().AsTime()
	}
	if !d.accepts(part, s) {
		return nil
	}
	if d.snapshot == nil {
		d.services = part.GetServices()
		if d.snapshot = s; d.options.Part != nil {
			s.Total = int(min(int64(d.services), d.file.Size()/leastOctets)) //nolint:gosec // see accepts
		}
	}
	d.identify(part)
	d.ended = part.GetBefore()
	for records := part.GetRecords(); len(records) > 0 && d.ended < d.services; d.ended++ {
		octets, n := protowire.ConsumeBytes(records)
		if n < 0 {
			break
		}
		records = records[n:]
		if d.service(octets) {
			d.read++
		}
	}
	d.progress()
	if d.options.Part == nil || len(d.snapshot.Services) < d.batch && d.ended < d.services {
		return nil
	}
	d.batch = min(max(2*d.batch, 2*partServices), maxBatch)
	return d.hand()
}

// hand hands on what was read.
func (d *decoder) hand() error {
	whole := *d.snapshot
	d.snapshot.Services, d.snapshot.IDs = nil, nil
	if !d.options.Part(&whole) {
		return ErrStopped
	}
	return nil
}

// identify takes the IDs of a part.
func (d *decoder) identify(part *snapshotpb.Part) {
	if !part.GetIdentified() {
		return
	}
	if d.snapshot.IDs == nil {
		d.snapshot.IDs = make(map[string]string, len(part.GetIds()))
	}
	for name, id := range part.GetIds() {
		if federation.CheckText("resource_id", id, federation.MaxNameBytes) == nil {
			d.snapshot.IDs[name] = id
		}
	}
}

// accepts reports whether a part that says s of the file can come next.
func (d *decoder) accepts(part *snapshotpb.Part, s *Snapshot) bool {
	valid := part.GetLastUp().IsValid() && (part.GetSaved() == nil || part.GetSaved().IsValid()) &&
		part.GetServices() <= math.MaxInt32 && part.GetBefore() <= part.GetServices()
	return valid && (d.snapshot == nil || part.GetServices() == d.services && part.GetBefore() >= d.ended &&
		s.LastUp.Equal(d.snapshot.LastUp) && s.Saved.Equal(d.snapshot.Saved))
}

// service takes a record, and reports whether it is one.
func (d *decoder) service(octets []byte) bool {
	p, unpacked, err := d.options.unpack(&d.unpacker, octets)
	if invalid, ok := errors.AsType[*federation.InvalidError](err); ok {
		if d.options.Refused != nil {
			d.options.Refused(invalid)
		}
		return true
	}
	if err != nil {
		return false
	}
	d.snapshot.Services = append(d.snapshot.Services, p)
	if d.options.Service != nil {
		d.options.Service(p, unpacked)
	}
	return true
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
