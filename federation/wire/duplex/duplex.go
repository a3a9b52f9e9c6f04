// Package duplex splits one stream of v1alpha2 into its two halves, for a peer that is
// consumer and owner on it at once.
//
// A message of v1alpha2 has two parts. On the half [Requests] the other side asks, and
// this one responds: it is the half of an owner. On the half [Responses] it is the other
// way round: it is the half of a consumer. What a half says is a message with one part; of
// a message with both parts that comes, each half gets its own. A message with neither, as
// a later version may have, is ignored.
//
// # Why two peers do not wait for each other for ever
//
// A peer that stops reading because it cannot send, while the other one does so too, is
// stuck, and with it both. So nothing that this side has to read waits for what it has to
// send: what a consumer answers is queued, and sent beside the responses of the owner. The
// queue has room for as many answers as the largest window of an owner of this project,
// and is bounded in octets. A peer with more in flight that does not read fills it, and
// then is not read any more. An answer that could not be sent for 30 seconds ends the
// stream.
//
// Only packages of this module import it: it is not a stable API.
package duplex

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// MaxAnswers is how many answers may wait to be sent. An owner has no more than that in
// flight: it is owner.MaxWindow.
const MaxAnswers = 1024

const (
	// answerBytes is the part of the queue that one of them may take by itself: a larger
	// one takes that of several.
	answerBytes = 512

	// answerTimeout is how long the other side may keep an answer from being sent.
	answerTimeout = 30 * time.Second
)

var errUnread = status.Errorf(codes.DeadlineExceeded, "no answer to a response was read within %v", answerTimeout)

// Link is a whole stream, on either side of the connection. That of a client has a
// CloseSend as well, as gRPC has it.
type Link interface {
	Send(m *rdpb.BidirectionalStream) error
	Recv() (*rdpb.BidirectionalStream, error)
}

// Stream is a stream that is split. Its Read and Write have to run, each in one
// goroutine, as long as the halves are used.
type Stream struct {
	ctx  context.Context //nolint:containedctx // that of the stream, as gRPC has it
	link Link
	end  context.CancelCauseFunc

	requests  Requests
	responses Responses

	over   chan struct{} // closed at the end of the stream
	err    error         // why it ended; read-only once over is closed
	cancel context.CancelFunc

	room    *semaphore.Weighted      // of the queue, in parts
	answers chan *rdpb.StreamRequest // the queue; nil stands for the end of sending

	sending chan struct{} // has a value while a message is sent
	closed  bool          // nothing else is sent; of who sends
}

// New splits a stream, which ends when ctx does. It calls end when the stream has to end,
// although it may be blocked: for a client, end cancels its context, and for a server it
// lets its handler return.
func New(ctx context.Context, link Link, end context.CancelCauseFunc) *Stream {
	s := &Stream{
		link: link, end: end, over: make(chan struct{}), sending: make(chan struct{}, 1),
		room: semaphore.NewWeighted(MaxAnswers), answers: make(chan *rdpb.StreamRequest, MaxAnswers),
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.requests.half = newHalf[*rdpb.StreamRequest](s)
	s.responses.half = newHalf[*rdpb.StreamResponse](s)
	return s
}

// Requests returns the half on which the other side is the consumer.
func (s *Stream) Requests() *Requests { return &s.requests }

// Responses returns the half on which the other side is the owner.
func (s *Stream) Responses() *Responses { return &s.responses }

// Read hands what comes to the halves until the stream ends.
func (s *Stream) Read() {
	defer s.cancel()
	defer close(s.over)
	for {
		m, err := s.link.Recv()
		if err != nil {
			s.err = err
			return
		}
		if response := m.GetResponse(); response != nil && (!s.responses.open.Load() || !s.responses.put(response)) {
			s.queue(s.ctx, wire.Decline(response))
		}
		if request := m.GetRequest(); request != nil {
			s.requests.put(request)
		}
	}
}

// Write sends the answers of this side until the stream ends.
func (s *Stream) Write() {
	for {
		select {
		case m := <-s.answers:
			s.write(m)
			s.room.Release(parts(m))
		case <-s.over:
			return
		}
	}
}

// write sends an answer, or closes this side of the stream where it is nil.
func (s *Stream) write(m *rdpb.StreamRequest) {
	defer time.AfterFunc(answerTimeout, func() { s.end(errUnread) }).Stop()
	_ = s.send(func() error { // Read says why it fails
		if m != nil {
			return s.link.Send(&rdpb.BidirectionalStream{Request: m})
		}
		s.closed = true
		if client, ok := s.link.(interface{ CloseSend() error }); ok {
			return client.CloseSend()
		}
		return nil
	})
}

// send calls f, which sends a message, when nobody else sends. It fails where the stream
// has ended, which Read notices as well.
func (s *Stream) send(f func() error) error {
	select {
	case s.sending <- struct{}{}:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	defer func() { <-s.sending }()
	if s.closed {
		return io.EOF
	}
	return f()
}

// queue puts an answer where Write finds it. It waits for room until ctx ends, which is that
// of the stream or of a half of it.
func (s *Stream) queue(ctx context.Context, m *rdpb.StreamRequest) {
	if s.room.Acquire(ctx, parts(m)) == nil {
		s.answers <- m // for which there is room
	}
}

// parts returns how much of the queue an answer takes.
func parts(m *rdpb.StreamRequest) int64 { return int64(min(1+proto.Size(m)/answerBytes, MaxAnswers)) }

// half is what comes for one half.
type half[T any] struct {
	stream *Stream
	in     chan T
	life   context.Context //nolint:containedctx // ends with the stream, and with Close
	close  context.CancelCauseFunc
}

func newHalf[T any](s *Stream) half[T] {
	life, end := context.WithCancelCause(s.ctx)
	return half[T]{s, make(chan T), life, end}
}

// put waits until the half takes m, and reports whether it did.
func (h *half[T]) put(m T) bool {
	if h.life.Err() != nil {
		return false
	}
	select {
	case h.in <- m:
		return true
	case <-h.life.Done():
		return false
	}
}

// Close says that the half is not read any more. The other one goes on.
func (h *half[T]) Close() { h.close(net.ErrClosed) }

// recv waits for what comes. It fails at the end of the stream, with its reason, and with
// [net.ErrClosed] after Close.
func (h *half[T]) recv() (m T, err error) {
	select {
	case m = <-h.in:
		return m, nil
	case <-h.life.Done():
		if cause := context.Cause(h.life); errors.Is(cause, net.ErrClosed) {
			return m, cause
		}
		<-h.stream.over
		return m, h.stream.err
	}
}

// Over is closed when the stream has ended.
func (h *half[T]) Over() <-chan struct{} { return h.stream.over }

// Requests is the half of a stream on which the other side asks, and this one responds.
// It has to be read until Close, or the other half would wait for it. What comes after
// Close is dropped.
type Requests struct {
	half[*rdpb.StreamRequest]
}

// Recv waits for the next request. It fails at the end of the stream, with its reason, and
// with [net.ErrClosed] after Close.
func (r *Requests) Recv(context.Context) (*rdpb.StreamRequest, error) { return r.recv() }

// Send sends a response. It waits for room to send, as long as the stream lasts.
func (r *Requests) Send(m *rdpb.StreamResponse) error {
	return r.stream.send(func() error { return r.stream.link.Send(&rdpb.BidirectionalStream{Response: m}) })
}

// Responses is the half of a stream on which this side asks, and the other one responds.
// What comes before the first request, and after Close, is declined.
type Responses struct {
	half[*rdpb.StreamResponse]

	open atomic.Bool // something was sent
}

// Recv waits for the next response. It fails as that of Requests does.
func (r *Responses) Recv() (*rdpb.StreamResponse, error) { return r.recv() }

// Send sends a request soon. It waits only where too many wait already. That the stream
// has ended is no error: Recv says so.
func (r *Responses) Send(m *rdpb.StreamRequest) error {
	r.open.Store(true)
	r.stream.queue(r.life, m)
	return nil
}

// CloseSend says that nothing else is sent on either half, once the requests are sent
// that wait. It is for the side that has opened the stream.
func (r *Responses) CloseSend() error {
	r.stream.queue(r.life, nil)
	return nil
}
