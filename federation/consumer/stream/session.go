package stream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

const (
	connectTimeout   = 10 * time.Second // for TCP, TLS and the first frame of HTTP/2
	openTimeout      = 15 * time.Second // for all that and the stream on top
	keepaliveTimeout = 20 * time.Second // for the answer to a ping
	answerTimeout    = 30 * time.Second // for room to send an acknowledgement
	leaveTimeout     = time.Second      // for the owner to end a stream that is over

	maxHeaderList = 64 << 10 // bytes of response headers

	// window is how many bytes an owner may send ahead of what is read. It is enough for 80 Mbit/s
	// at a round trip of 100 ms, and a message that is larger gets more.
	window = 1 << 20
)

var (
	errOpenTimeout   = status.Errorf(codes.DeadlineExceeded, "no stream within %v", openTimeout)
	errAnswerTimeout = status.Errorf(codes.DeadlineExceeded, "no acknowledgement was read within %v", answerTimeout)

	// errRenewed ends a stream of which another one is to take the place at once.
	errRenewed = errors.New("this side opens another stream: its credentials or rules have changed, or a certificate is about to expire")

	// errSilent ends a stream on which nothing arrives, where another replica can be
	// tried.
	errSilent = errors.New("the owner says nothing, and there is another replica to try")
)

// outcome is how a session has ended.
type outcome struct {
	err   error
	heard bool          // a valid message came
	lost  time.Duration // for how long the origin of the services has been lost, as the owner says; 0: it says nothing
}

// session holds one stream with the owner at the address: it dials, opens the stream with what is
// held, receives, and ends it. Patience is how long the owner may say nothing.
func (c *Consumer) session(ctx context.Context, address string, patience time.Duration) outcome {
	select {
	case <-c.renew: // a stream that is opened now is new enough
	default:
	}
	changed := c.config.Identity.Changed() // before the handshake, so that a change during it counts
	conn, err := c.connect(address)
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close()
	// The stream outlives ctx until the owner knows of its end, see leave.
	streamCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, func() { cancel(nil) }) })()
	asked := c.holds(ctx, address)
	stream, err := c.subscribe(ctx, streamCtx, cancel, conn.ClientConn, address, asked)
	if err != nil {
		return outcome{err: conn.explain(err)}
	}
	with := c.listen(streamCtx, cancel, stream, address, patience, asked)
	err = c.converse(ctx, with, c.newRenewal(conn, changed))
	if ctx.Err() != nil || errors.Is(err, errRenewed) {
		with.leave()
	}
	with.end()
	return outcome{conn.explain(err), with.heard, wire.ParseLost(stream.Trailer())}
}

// conversation is one stream with the owner.
type conversation struct {
	stream  stream
	inbox   *inbox
	cancel  context.CancelCauseFunc // ends the stream at once
	address string
	silence *time.Timer    // is stopped by the first response
	reader  sync.WaitGroup // of the stream
	asked   resume.Digests // of the owner, to send only what differs

	known     chan struct{} // closed when the header has come, or there is none
	announced announced     // what it says; read-only once known is closed

	heard bool // a valid message came
}

// listen begins to read a stream, whose context is ctx.
func (c *Consumer) listen(
	ctx context.Context, cancel context.CancelCauseFunc, stream stream, address string, patience time.Duration, asked resume.Digests,
) *conversation {
	with := &conversation{
		stream: stream, inbox: newInbox(), cancel: cancel, address: address,
		silence: time.AfterFunc(patience, func() { cancel(errSilent) }), asked: asked, known: make(chan struct{}),
	}
	with.reader.Go(func() {
		// RFC 9113 section 8.1: the header comes before the first message.
		with.announced = announcement(stream, asked)
		close(with.known)
		with.inbox.fill(ctx, func() (Update, int, error) { return c.receive(with) })
	})
	return with
}

// end ends the stream at once, and waits for what belongs to it.
func (v *conversation) end() {
	v.silence.Stop()
	v.cancel(nil)
	v.reader.Wait()
}

// converse passes what the owner says to the Sink, and answers it, until the stream or ctx ends,
// or the renewal is due.
func (c *Consumer) converse(ctx context.Context, with *conversation, renewal *renewal) error {
	defer renewal.stop()
	c.inbox.Store(with.inbox)
	defer c.inbox.Store(nil)
	c.config.Sink.Opened()
	if err := c.meet(ctx, with); err != nil {
		return err
	}
	if !with.announced.Marked {
		renewal.changed = nil // a foreign owner does not resume: it would send its whole catalog again
	}
	for {
		select {
		case update, ok := <-with.inbox.updates:
			if !ok {
				return with.inbox.err
			}
			if err := c.apply(with, with.inbox.take(update)); err != nil {
				return err
			}
		case <-c.renew:
			renewal.wanted = true
		case <-renewal.changed:
			renewal.wanted, renewal.changed = true, nil
		case <-renewal.timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if renewal.due(c.config.Sink) {
			return errRenewed
		}
	}
}

// apply passes updates to the Sink, and answers them.
func (c *Consumer) apply(with *conversation, updates []Update) error {
	c.config.Sink.Apply(updates)
	with.inbox.applied()
	if err := answer(with.stream, with.cancel, updates); err != nil {
		return err
	}
	for i := range updates {
		if invalid := updates[i].Invalid; invalid != nil {
			c.connectionLog.refused(with.address, invalid)
			continue
		}
		with.heard = true
		c.connectionLog.connected(with.address)
	}
	c.config.Sink.Answered(updates)
	return nil
}

// leave ends the stream on purpose. The owner sees that nothing else comes and ends
// the stream on its side, where a cancellation would look like a fault. Whether it was
// removed from the configuration, the process ends, or another stream takes its place
// makes no difference to the owner.
func (v *conversation) leave() {
	defer time.AfterFunc(leaveTimeout, func() { v.cancel(nil) }).Stop()
	if v.stream.CloseSend() == nil {
		v.inbox.drain()
	}
}

// connection is a connection to the owner, for one stream.
type connection struct {
	*grpc.ClientConn
	*dialLog
}

// connect prepares a connection for one stream, so gRPC's own backoff between
// connections never applies.
func (c *Consumer) connect(address string) (*connection, error) {
	l := &dialLog{address: address, dial: c.config.Dial}
	conn, err := grpc.NewClient("passthrough:///owner", // the dialer knows the address
		grpc.WithContextDialer(l.connect),
		grpc.WithTransportCredentials(loggedCredentials{c.config.Identity.Credentials(address), l}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		// Without pings a dead connection would never be noticed. None is sent
		// without a stream, as owners count them.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.keepalive, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRead)),
		grpc.WithMaxHeaderListSize(maxHeaderList),
		// A size of our own: gRPC would find one with a ping for nearly every message.
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	)
	return &connection{conn, l}, err
}

// subscribe opens the stream and sends the initial request. The context of the
// stream must outlive that, so it has no deadline.
func (c *Consumer) subscribe(
	ctx, streamCtx context.Context, cancel context.CancelCauseFunc, conn *grpc.ClientConn, address string, asked resume.Digests,
) (stream, error) {
	defer context.AfterFunc(ctx, func() { cancel(ctx.Err()) })()
	deadline := time.AfterFunc(openTimeout, func() { cancel(errOpenTimeout) })
	if !c.otherDue(address) { // another replica may have the whole catalog
		streamCtx = metadata.AppendToOutgoingContext(streamCtx, wire.CatalogEndHeader, wire.CatalogEndAwaited)
	}
	if len(asked) > 0 {
		streamCtx = metadata.AppendToOutgoingContext(streamCtx, wire.ResumeHeader, asked.Header())
	}
	stream, err := c.open(streamCtx, conn)
	if !deadline.Stop() {
		return nil, errOpenTimeout
	}
	return stream, err
}

// otherDue reports whether another replica than the one at the address can be tried now.
func (c *Consumer) otherDue(address string) bool {
	return slices.ContainsFunc(c.replicas, func(r *replica) bool { return r.address != address && !r.final && time.Until(r.next()) <= 0 })
}

// receive receives the next response of a stream, and its size in bytes.
func (c *Consumer) receive(with *conversation) (Update, int, error) {
	update, size, err := with.stream.receive()
	if err != nil {
		return Update{}, 0, err
	}
	with.silence.Stop()
	if with.announced.Marked && update.Invalid == nil && update.Operation == federation.Alive {
		update.Operation = federation.End
	}
	return update, size, nil
}

// answer acknowledges or refuses updates. An owner that goes on sending but reads
// nothing is treated as gone, although it answers pings.
func answer(stream stream, cancel context.CancelCauseFunc, updates []Update) error {
	deadline := time.AfterFunc(answerTimeout, func() { cancel(errAnswerTimeout) })
	var err error
	for i := 0; i < len(updates) && err == nil; i++ {
		err = stream.answer(updates[i].nonce, updates[i].Invalid)
	}
	if !deadline.Stop() {
		return errAnswerTimeout
	}
	return err
}
