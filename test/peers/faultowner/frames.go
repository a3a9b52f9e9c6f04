package faultowner

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// entrance is the listener of the gRPC server. It keeps the connections for itself
// whose session gets a whole connection, and passes on the others.
type entrance struct {
	net.Listener

	owner *Owner
	ctx   context.Context //nolint:containedctx // of Serve, which returns when all of it has ended
}

// Accept implements net.Listener.
func (e *entrance) Accept() (net.Conn, error) {
	for {
		raw, err := e.Listener.Accept()
		if err != nil {
			return nil, err
		}
		e.owner.mu.Lock()
		whole := e.owner.upcoming().below()
		e.owner.mu.Unlock()
		if !whole {
			return raw, nil
		}
		// Here, and not in the goroutine: the next connection gets the next session.
		ctx, cancel := context.WithCancel(e.ctx)
		t, session := e.owner.talk(ctx)
		t.conn = e.owner.track(raw)
		e.owner.running.Go(func() {
			defer cancel()
			defer context.AfterFunc(ctx, func() { _ = t.conn.Close() })()
			_ = t.ended(t.follow(session))
			_ = t.conn.Close()
		})
	}
}

// below carries out a step that is below gRPC. It reports whether the session is
// over.
func (t *talk) below(step Step) (done bool, err error) {
	switch step.Verb {
	case "mute":
		return false, nil
	case "plain":
		// A load balancer does this, without reading the TLS handshake.
		_, err := io.WriteString(t.conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		return true, err
	case "tls", "frames":
		conn, _, err := t.owner.config.Credentials.ServerHandshake(t.conn)
		if err != nil {
			return true, err
		}
		if step.Verb == "tls" {
			_, err = io.Copy(io.Discard, conn)
			return true, err
		}
		f := newFrames(t.ctx, conn)
		t.ctx, t.stream = f.ctx, f
		t.owner.running.Go(f.read)
		return false, f.write(func() error { return f.framer.WriteSettings() })
	}
	f, ok := t.stream.(*frames)
	if !ok {
		return true, fmt.Errorf("%s: the session does not begin with frames", step.Verb)
	}
	return t.framed(f, step)
}

// framed carries out a step that needs frames. It reports whether the session is
// over.
func (t *talk) framed(f *frames, step Step) (done bool, err error) {
	repeat := func(frame func() error) error {
		for err == nil {
			for i := 0; i < step.N && err == nil; i++ {
				err = f.write(frame)
			}
			if err == nil {
				err = t.wait(step.Wait)
			}
		}
		return err
	}
	switch step.Verb {
	case "stream":
		select {
		case f.id = <-f.opened:
		case <-t.ctx.Done():
			return true, t.ctx.Err()
		}
		t.began()
		return false, t.subscribed()
	case "drip":
		f.pause = func() error { return t.wait(step.Wait) }
		err = t.exchange(t.upsert(step.Name, step.FQDN, step.Address))
		f.pause = nil
		return false, err
	case "pings":
		return true, repeat(func() error { return f.framer.WritePing(false, [8]byte{}) })
	case "settings":
		return true, repeat(func() error { return f.framer.WriteSettings() })
	case "goaway":
		return false, f.write(func() error { return f.framer.WriteGoAway(uint32(step.N), http2.ErrCodeNo, nil) })
	case "rst":
		t.over(codes.Internal)
		return false, f.write(func() error { return f.framer.WriteRSTStream(f.id, http2.ErrCodeInternal) })
	case "http":
		t.over(codes.Unavailable)
		return false, f.headers(true, metadata.Pairs(":status", strconv.Itoa(step.N), "content-type", "text/plain"))
	}
	return true, fmt.Errorf("%s: no such step", step.Verb)
}

// frames is an HTTP/2 connection with one stream of gRPC on it (RFC 9113; 'gRPC
// over HTTP2'), as far as a script needs that.
type frames struct {
	conn   net.Conn // above TLS
	framer *http2.Framer
	ctx    context.Context //nolint:containedctx // ends with the connection
	end    context.CancelFunc

	opened   chan uint32                    // the ID of the consumer's stream
	messages chan *rdpb.BidirectionalStream // what the consumer sent

	// Owned by the session.
	id     uint32
	header metadata.MD
	begun  bool         // the header is sent
	pause  func() error // between the octets of messages; nil sends them whole

	// writing is a lock: it holds an element while a frame is written. It is not a
	// mutex, as testing/synctest takes a goroutine that waits for a mutex for one that
	// is about to run, and would not advance the time.
	writing chan struct{}
}

func newFrames(ctx context.Context, conn net.Conn) *frames {
	f := &frames{
		conn: conn, framer: http2.NewFramer(conn, conn), writing: make(chan struct{}, 1),
		opened: make(chan uint32, 1), messages: make(chan *rdpb.BidirectionalStream, 64),
	}
	f.ctx, f.end = context.WithCancel(ctx)
	return f
}

// write writes a frame, one at a time.
func (f *frames) write(frame func() error) error {
	f.writing <- struct{}{}
	defer func() { <-f.writing }()
	return frame()
}

// read reads frames of the consumer until the connection ends, and sends the answers
// that HTTP/2 requires.
func (f *frames) read() {
	defer f.end()
	if _, err := io.CopyN(io.Discard, f.conn, int64(len(http2.ClientPreface))); err != nil {
		return
	}
	var body bytes.Buffer
	for {
		frame, err := f.framer.ReadFrame()
		if err == nil {
			err = f.take(frame, &body)
		}
		if err != nil {
			return
		}
	}
}

// take handles one frame of the consumer. body collects its DATA frames.
func (f *frames) take(frame http2.Frame, body *bytes.Buffer) error {
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return f.write(f.framer.WriteSettingsAck)
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			return f.write(func() error { return f.framer.WritePing(true, frame.Data) })
		}
	case *http2.HeadersFrame:
		select {
		case f.opened <- frame.StreamID:
		default:
			return errors.New("a second stream")
		}
	case *http2.DataFrame:
		n := uint32(len(frame.Data()))
		body.Write(frame.Data())
		if err := f.messagesOf(body); err != nil || n == 0 {
			return err
		}
		return f.write(func() error {
			return errors.Join(f.framer.WriteWindowUpdate(0, n), f.framer.WriteWindowUpdate(frame.StreamID, n))
		})
	case *http2.RSTStreamFrame:
		return errors.New("the consumer has ended the stream")
	}
	return nil
}

const prefix = 5 // octets before a message: a flag (compressed or not) and its length

// messagesOf takes the complete messages out of body and passes them to Recv.
func (f *frames) messagesOf(body *bytes.Buffer) error {
	for body.Len() >= prefix {
		size := int(binary.BigEndian.Uint32(body.Bytes()[1:]))
		if body.Len() < prefix+size {
			return nil
		}
		message := new(rdpb.BidirectionalStream)
		if err := proto.Unmarshal(body.Next(prefix + size)[prefix:], message); err != nil {
			return err
		}
		select {
		case f.messages <- message:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
	return nil
}

// Recv implements stream.
func (f *frames) Recv() (*rdpb.BidirectionalStream, error) {
	select {
	case message := <-f.messages:
		return message, nil
	case <-f.ctx.Done():
		return nil, f.ctx.Err()
	}
}

// Send implements stream.
func (f *frames) Send(message *rdpb.BidirectionalStream) error {
	value, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	if err := f.SendHeader(nil); err != nil {
		return err
	}
	data := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(value))), value...)
	step := len(data)
	if f.pause != nil {
		step = 1
	}
	for ; len(data) > 0; data = data[step:] {
		if err := f.write(func() error { return f.framer.WriteData(f.id, false, data[:step]) }); err != nil {
			return err
		}
		if f.pause != nil {
			if err := f.pause(); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetHeader implements stream.
func (f *frames) SetHeader(header metadata.MD) error {
	f.header = metadata.Join(f.header, header)
	return nil
}

// SendHeader implements stream. A second call does nothing.
func (f *frames) SendHeader(header metadata.MD) error {
	if f.begun {
		return nil
	}
	f.begun = true
	return f.headers(false, metadata.Join(
		metadata.Pairs(":status", strconv.Itoa(http.StatusOK), "content-type", "application/grpc"), f.header, header))
}

// headers sends a HEADERS frame, pseudo-headers first (RFC 9113 section 8.3).
func (f *frames) headers(last bool, header metadata.MD) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSizeLimit(0) // each block by itself
	for _, pseudo := range []bool{true, false} {
		for name, values := range header {
			for _, value := range values {
				if strings.HasPrefix(name, ":") == pseudo {
					_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) // to memory
				}
			}
		}
	}
	return f.write(func() error {
		return f.framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: f.id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: last,
		})
	})
}

// finish ends the stream with the status of err.
func (f *frames) finish(err error) error {
	trailer := metadata.Pairs("grpc-status", strconv.Itoa(int(status.Code(err))), "grpc-message", status.Convert(err).Message())
	if !f.begun {
		trailer = metadata.Join(trailer, metadata.Pairs(":status", strconv.Itoa(http.StatusOK), "content-type", "application/grpc"))
	}
	return f.headers(true, trailer)
}
