package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// Field numbers of BidirectionalStream, StreamRequest, StreamResponse and Any.
const (
	requestField       = 1
	responseField      = 2
	requestURLField    = 1
	requestNonceField  = 2
	responseNonceField = 1
	resourceIDField    = 3
	resourceField      = 4
	operationField     = 5
	anyValueField      = 2
)

const (
	// streamWindow is how many bytes an owner may send ahead, and readBytes how many
	// are read at a time.
	streamWindow = 256 << 10
	readBytes    = 4 << 10

	handshakePatience = 10 * time.Second // as that of the consumer of this project
	firstBackoff      = time.Second
	lastBackoff       = 30 * time.Second
	settingsBytes     = 64 << 10 // the window of HTTP/2 before any settings
	lengthBytes       = 5        // before each message of gRPC
)

// consumer subscribes to the owner, acknowledges each response, and comes back when its
// stream has ended. It speaks HTTP/2 by itself: a client of gRPC would cost several
// times as much as what is measured.
type consumer struct {
	crowd *crowd
	tls   *tls.Config
	local net.IP // from which it connects

	received atomic.Int64 // bytes from the wire, TLS included
	complete atomic.Bool  // the end marker of the stream has come
	resumed  atomic.Bool  // the owner has accepted the digests for the stream that is open

	services atomic.Int64  // that are held
	print    atomic.Uint64 // of what is held: equal for consumers that hold the same

	held []uint16 // by index of the service: its version, of crowd.book; 0 for none; owned by run, and by others while complete
}

// counted counts what is read from the wire.
type counted struct {
	net.Conn

	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// run keeps a stream until ctx ends.
func (c *consumer) run(ctx context.Context) {
	for backoff := firstBackoff; ctx.Err() == nil; {
		err := c.subscribe(ctx)
		if c.complete.Swap(false) {
			backoff = firstBackoff
		}
		if ctx.Err() != nil {
			return
		}
		delay := time.Duration(float64(backoff) * (0.5 + rand.Float64()))
		ended, ok := errors.AsType[*statusError](err)
		if ok && ended.retry > 0 {
			delay = ended.retry
		}
		c.crowd.failed(err)
		backoff = min(2*backoff, lastBackoff)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
}

// statusError is the status with which the owner has ended a stream.
type statusError struct {
	code  codes.Code
	text  string
	retry time.Duration // what its RetryInfo says
}

func (e *statusError) Error() string { return fmt.Sprintf("%v: %s", e.code, e.text) }

// stream is one stream on a connection of its own.
type stream struct {
	consumer *consumer
	conn     *tls.Conn
	framer   *http2.Framer
	headers  bytes.Buffer
	encoder  *hpack.Encoder

	answers []byte // DATA that is not sent yet

	// How many bytes may be sent, on the connection and the stream, and how many of those
	// that were received the owner has not been told of.
	connRoom, streamRoom, unreported int
	initial                          int // window of a stream, as the owner's settings say

	partial []byte // of a message that goes on in the next frame

	asked    int // digests that were sent
	selected resume.Selection
	swept    []bool // by index: not announced yet by this stream; nil when all is
}

func (c *consumer) subscribe(ctx context.Context) error {
	c.crowd.shaking <- struct{}{}
	shaken := sync.OnceFunc(func() { <-c.crowd.shaking })
	defer shaken()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: c.local}, Timeout: handshakePatience}
	raw, err := dialer.DialContext(ctx, "tcp", c.crowd.owner)
	if err != nil {
		return err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	conn := tls.Client(counted{raw, &c.received}, c.tls)
	handshake, cancel := context.WithTimeout(ctx, handshakePatience)
	err = conn.HandshakeContext(handshake)
	cancel()
	shaken()
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	s := &stream{consumer: c, conn: conn, connRoom: settingsBytes, streamRoom: settingsBytes, initial: settingsBytes}
	s.encoder = hpack.NewEncoder(&s.headers)
	s.framer = http2.NewFramer(conn, bufio.NewReaderSize(conn, readBytes))
	s.framer.SetReuseFrames()
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	if err := s.open(); err != nil {
		return err
	}
	for {
		if err := s.read(); err != nil {
			return err
		}
	}
}

// open sends the request for the stream, in one write.
func (s *stream) open() error {
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow})
	_ = framer.WriteWindowUpdate(0, streamWindow-settingsBytes)
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: rdpb.DiscoveryService_EstablishStream_FullMethodName},
		{Name: ":authority", Value: "owner"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
	if digests := s.consumer.digests(); digests != nil {
		s.asked = len(digests)
		fields = append(fields, hpack.HeaderField{Name: wire.ResumeHeader, Value: digests.Header(), Sensitive: true})
	}
	for _, f := range fields {
		_ = s.encoder.WriteField(f)
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.headers.Bytes(), EndHeaders: true})
	request := protowire.AppendString(protowire.AppendTag(nil, requestURLField, protowire.BytesType), wire.ResourceURL)
	s.send(request)
	_ = framer.WriteData(1, false, s.answers)
	s.connRoom -= len(s.answers)
	s.streamRoom -= len(s.answers)
	s.answers = s.answers[:0]
	_, err := s.conn.Write(out.Bytes())
	return err
}

// send adds the message of a request to what is to be sent.
func (s *stream) send(request []byte) {
	size := protowire.SizeTag(requestField) + protowire.SizeBytes(len(request))
	s.answers = append(s.answers, 0)
	s.answers = binary.BigEndian.AppendUint32(s.answers, uint32(size))
	s.answers = protowire.AppendTag(s.answers, requestField, protowire.BytesType)
	s.answers = protowire.AppendBytes(s.answers, request)
}

// flush sends as many of the answers as there is room for.
func (s *stream) flush() error {
	n := min(len(s.answers), s.connRoom, s.streamRoom, 16<<10)
	if n <= 0 {
		return nil
	}
	if err := s.framer.WriteData(1, false, s.answers[:n]); err != nil {
		return err
	}
	s.connRoom -= n
	s.streamRoom -= n
	s.answers = slices.Delete(s.answers, 0, n)
	if len(s.answers) == 0 {
		s.answers = nil
	}
	return nil
}

// read takes one frame.
func (s *stream) read() error {
	frame, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			s.streamRoom += int(v) - s.initial
			s.initial = int(v)
		}
		if err := s.framer.WriteSettingsAck(); err != nil {
			return err
		}
		return s.flush()
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return s.framer.WritePing(true, f.Data)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			s.connRoom += int(f.Increment)
		} else {
			s.streamRoom += int(f.Increment)
		}
		return s.flush()
	case *http2.MetaHeadersFrame:
		return s.header(f)
	case *http2.DataFrame:
		if err := s.data(f.Data()); err != nil {
			return err
		}
		s.unreported += int(f.Length)
		if s.unreported >= streamWindow/2 {
			_ = s.framer.WriteWindowUpdate(0, uint32(s.unreported))
			if err := s.framer.WriteWindowUpdate(1, uint32(s.unreported)); err != nil {
				return err
			}
			s.unreported = 0
		}
		return s.flush()
	case *http2.GoAwayFrame:
		return nil // the stream goes on until its end
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the owner has reset the stream: %v", f.ErrCode)
	}
	return nil
}

// header takes the header or the trailer of the stream.
func (s *stream) header(f *http2.MetaHeadersFrame) error {
	ended, has := &statusError{code: codes.Unknown}, false
	for _, field := range f.RegularFields() {
		switch field.Name {
		case "grpc-status":
			n, _ := strconv.Atoi(field.Value)
			ended.code, has = codes.Code(n), true
		case "grpc-message":
			ended.text = field.Value
		case "grpc-status-details-bin":
			ended.retry = retryOf(field.Value)
		case wire.ResumeHeader:
			selected, err := resume.ParseSelection(field.Value, s.asked)
			if err != nil {
				return err
			}
			s.selected = selected
		}
	}
	if f.StreamEnded() || has {
		return ended
	}
	s.consumer.resumed.Store(s.selected.Of() > 0)
	s.swept = s.consumer.crowd.book.swept(s.selected, len(s.consumer.held))
	return nil
}

// retryOf returns the delay of the RetryInfo in the details of a status, or 0.
func retryOf(details string) time.Duration {
	octets, err := base64.RawStdEncoding.DecodeString(details)
	if err != nil {
		return 0
	}
	var status statuspb.Status
	if proto.Unmarshal(octets, &status) != nil {
		return 0
	}
	for _, detail := range status.GetDetails() {
		var info errdetails.RetryInfo
		if detail.UnmarshalTo(&info) == nil {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// data takes a part of the messages of the stream.
func (s *stream) data(p []byte) error {
	if len(s.partial) > 0 {
		p = append(s.partial, p...)
	}
	for len(p) >= lengthBytes {
		size := lengthBytes + int(binary.BigEndian.Uint32(p[1:]))
		if len(p) < size {
			break
		}
		if err := s.message(p[lengthBytes:size]); err != nil {
			return err
		}
		p = p[size:]
	}
	s.partial = nil
	if len(p) > 0 {
		s.partial = bytes.Clone(p)
	}
	return nil
}

// message takes a message and acknowledges it.
func (s *stream) message(m []byte) error {
	var nonce, id, value []byte
	var operation uint64
	err := fields(m, func(number protowire.Number, response []byte, _ uint64) {
		if number != responseField {
			return
		}
		_ = fields(response, func(number protowire.Number, v []byte, n uint64) {
			switch number {
			case responseNonceField:
				nonce = v
			case resourceIDField:
				id = v
			case resourceField:
				_ = fields(v, func(number protowire.Number, v []byte, _ uint64) {
					if number == anyValueField {
						value = v
					}
				})
			case operationField:
				operation = n
			}
		})
	})
	if err != nil {
		return err
	}
	switch {
	case operation == uint64(rdpb.StreamResponse_UPSERT):
		index, version := s.consumer.crowd.book.note(id, value)
		s.hold(index, version)
	case operation == uint64(rdpb.StreamResponse_DELETE):
		if index, ok := s.consumer.crowd.book.index(string(id)); ok {
			s.hold(index, 0)
		}
	default:
		for i, gone := range s.swept {
			if gone {
				s.consumer.set(i, 0)
			}
		}
		s.swept = nil
		s.consumer.crowd.completed(s.consumer) // before anybody sees that it is
		s.consumer.complete.Store(true)
	}
	s.send(protowire.AppendBytes(protowire.AppendTag(nil, requestNonceField, protowire.BytesType), nonce))
	return nil
}

// hold notes the version of a service.
func (s *stream) hold(index int, version uint16) {
	if index < len(s.swept) {
		s.swept[index] = false
	}
	s.consumer.set(index, version)
	if s.consumer.complete.Load() {
		s.consumer.crowd.seen()
	}
}

func (c *consumer) set(index int, version uint16) {
	for len(c.held) <= index {
		c.held = append(c.held, 0)
	}
	old := c.held[index]
	c.held[index] = version
	c.print.Add(mark(index, version) - mark(index, old))
	switch {
	case old == 0 && version != 0:
		c.services.Add(1)
	case old != 0 && version == 0:
		c.services.Add(-1)
	}
}

// mark is what a version of a service adds to the print.
func mark(index int, version uint16) uint64 {
	if version == 0 {
		return 0
	}
	x := uint64(index)<<16 | uint64(version)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return (x ^ x>>27) * 0x94d049bb133111eb
}

// digests returns those of what the consumer holds, or nil if it holds nothing.
func (c *consumer) digests() resume.Digests {
	if !c.crowd.resume.Load() {
		for i := range c.held {
			c.set(i, 0)
		}
		return nil
	}
	if c.held == nil {
		for i, version := range c.crowd.primed() {
			c.set(i, version)
		}
	}
	return c.crowd.book.digests(c.held)
}

// fields calls each with every field of a message: the bytes, or the number.
func fields(m []byte, each func(number protowire.Number, v []byte, n uint64)) error {
	for len(m) > 0 {
		number, kind, size := protowire.ConsumeTag(m)
		if size < 0 {
			return protowire.ParseError(size)
		}
		m = m[size:]
		var v []byte
		var n uint64
		switch kind {
		case protowire.BytesType:
			v, size = protowire.ConsumeBytes(m)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(m)
		default:
			size = protowire.ConsumeFieldValue(number, kind, m)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		each(number, v, n)
		m = m[size:]
	}
	return nil
}
