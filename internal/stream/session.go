package stream

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/connect"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
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

	// errRenewed ends a stream that another one is to replace at once.
	errRenewed = errors.New("this side opens another stream, because its credentials or rules have changed or a certificate is about to expire")

	// errSilent ends a stream on which nothing arrives, where another replica can be
	// tried.
	errSilent = errors.New("the owner sends nothing, so another replica is tried")
)

// sessionOutcome says how a session has ended.
type sessionOutcome struct {
	err   error
	heard bool          // a valid message came
	lost  time.Duration // for how long the origin of the services has been lost, as the owner says; 0: the owner does not say
}

// runSession runs one stream with the owner at the address, and returns how it ended: it dials,
// opens the stream with the digests of what is held, receives, and ends the stream. Patience is how
// long the owner may send nothing.
func (c *Consumer) runSession(ctx context.Context, address string, patience time.Duration) sessionOutcome {
	select {
	case <-c.renew: // a stream that is opened now is new enough
	default:
	}
	changed := c.config.Identity.Changed() // before the handshake, so that a change during it counts
	conn, err := c.prepareConn(address)
	if err != nil {
		return sessionOutcome{err: err}
	}
	defer conn.Close()
	// The stream outlives ctx until the owner knows of its end, see leaveGracefully.
	streamCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, func() { cancel(nil) }) })()
	asked := c.digestsFor(ctx, address)
	stream, err := c.openInTime(ctx, streamCtx, cancel, conn.ClientConn, address, asked)
	if err != nil {
		return sessionOutcome{err: conn.Explain(err)}
	}
	with := c.startReading(streamCtx, cancel, stream, address, patience, asked)
	err = c.followStream(ctx, with, c.newRenewalSchedule(conn, changed))
	if ctx.Err() != nil || errors.Is(err, errRenewed) {
		with.leaveGracefully()
	}
	with.endNow()
	return sessionOutcome{conn.Explain(err), with.heard, wire.ParseLost(stream.Trailer())}
}

// conversation is one open stream with the owner. Its reader waits for the header and then fills
// the inbox; the goroutine of Run applies, answers and ends. It is bounded by its inbox, and keeps
// nothing that the next stream could use: that is for the Sink.
type conversation struct {
	stream  *ownerStream
	inbox   *inbox
	cancel  context.CancelCauseFunc // ends the stream at once
	address string
	silence *time.Timer    // ends a silent stream; stopped by the first response
	reader  sync.WaitGroup // of the stream
	asked   resume.Digests // the digests that the owner was sent, so that it sends only what differs

	known     chan struct{} // closed when the header has come, or when the stream has ended without one
	announced streamHeader  // what the header says; read-only once known is closed

	heard bool // a valid message came
}

// startReading returns a conversation whose reader reads the stream. Ctx is the context of the
// stream.
func (c *Consumer) startReading(
	ctx context.Context, cancel context.CancelCauseFunc, stream *ownerStream, address string, patience time.Duration, asked resume.Digests,
) *conversation {
	with := &conversation{
		stream: stream, inbox: newInbox(), cancel: cancel, address: address,
		silence: time.AfterFunc(patience, func() { cancel(errSilent) }), asked: asked, known: make(chan struct{}),
	}
	with.reader.Go(func() {
		// RFC 9113 section 8.1: the header comes before the first message.
		with.announced = awaitHeader(stream, asked)
		close(with.known)
		with.inbox.fillFrom(ctx, func() (Update, int, error) { return c.receiveUpdate(with) })
	})
	return with
}

// endNow ends the stream at once, and waits for its reader.
func (v *conversation) endNow() {
	v.silence.Stop()
	v.cancel(nil)
	v.reader.Wait()
}

// followStream passes updates to the Sink and answers them, until the stream or ctx ends, or the
// renewal is due. It returns why it has ended.
func (c *Consumer) followStream(ctx context.Context, with *conversation, renewal *renewalSchedule) error {
	defer renewal.timer.Stop()
	c.inbox.Store(with.inbox)
	defer c.inbox.Store(nil)
	c.config.Sink.StreamOpened()
	if err := c.passHeader(ctx, with); err != nil {
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
			if err := c.applyUpdates(ctx, with, with.inbox.takeWaiting(update)); err != nil {
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
		if renewal.isDue(c.config.Sink) {
			return errRenewed
		}
	}
}

// applyUpdates passes updates to the Sink and answers them.
func (c *Consumer) applyUpdates(ctx context.Context, with *conversation, updates []Update) error {
	c.config.Sink.ApplyUpdates(updates)
	c.config.Await(ctx, with.inbox.ended)
	with.inbox.markApplied()
	if err := answerUpdates(with.stream, with.cancel, updates); err != nil {
		return err
	}
	for i := range updates {
		if invalid := updates[i].Invalid; invalid != nil {
			c.connectionLog.logRefusal(with.address, invalid)
			continue
		}
		with.heard = true
		c.connectionLog.logConnected(with.address)
	}
	c.config.Sink.UpdatesAnswered(updates)
	return nil
}

// leaveGracefully ends the stream on purpose. The owner sees that nothing else comes and ends the
// stream on its side, whereas a cancellation would look like a fault. To the owner it makes no
// difference why this side leaves: because of its configuration, because the process ends, or for
// another stream.
func (v *conversation) leaveGracefully() {
	defer time.AfterFunc(leaveTimeout, func() { v.cancel(nil) }).Stop()
	if v.stream.CloseSend() == nil {
		v.inbox.drain()
	}
}

// loggedConn is a connection to the owner, for one stream.
type loggedConn struct {
	*grpc.ClientConn
	*connect.Attempt
}

// prepareConn returns a connection for one stream.
func (c *Consumer) prepareConn(address string) (*loggedConn, error) {
	attempt := &connect.Attempt{Address: address, Dial: c.config.Dial}
	conn, err := attempt.NewClient(c.config.Identity.Credentials(address), connectTimeout, maxHeaderList,
		// Without pings a dead connection would never be noticed. None is sent
		// without a stream, as owners count them.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.keepalive, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRead)),
		// A size of our own: gRPC would find one with a ping for nearly every message.
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
	)
	return &loggedConn{conn, attempt}, err
}

// openInTime returns the opened stream, on which it has sent the initial request. The context of
// the stream must outlive openInTime, so that context has no deadline.
func (c *Consumer) openInTime(
	ctx, streamCtx context.Context, cancel context.CancelCauseFunc, conn *grpc.ClientConn, address string, asked resume.Digests,
) (*ownerStream, error) {
	defer context.AfterFunc(ctx, func() { cancel(ctx.Err()) })()
	deadline := time.AfterFunc(openTimeout, func() { cancel(errOpenTimeout) })
	if !c.otherDue(address) { // another replica may have the whole catalog
		streamCtx = metadata.AppendToOutgoingContext(streamCtx, wire.CatalogEndHeader, wire.CatalogEndAwaited)
	}
	streamCtx = metadata.AppendToOutgoingContext(streamCtx, wire.WindowHeader, strconv.Itoa(wire.MaxWindow))
	if len(asked) > 0 {
		streamCtx = metadata.AppendToOutgoingContext(streamCtx, wire.ResumeHeader, asked.Header())
	}
	stream, err := c.openStream(streamCtx, conn)
	if !deadline.Stop() {
		return nil, errOpenTimeout
	}
	return stream, err
}

// otherDue reports whether a replica other than the one at the address can be tried now.
func (c *Consumer) otherDue(address string) bool {
	return slices.ContainsFunc(c.replicas, func(r *replica) bool { return r.address != address && !r.final && time.Until(r.nextAttempt()) <= 0 })
}

// receiveUpdate returns the next response of the stream, and its size in bytes.
func (c *Consumer) receiveUpdate(with *conversation) (Update, int, error) {
	update, size, err := with.stream.receive()
	if err != nil {
		return Update{}, 0, err
	}
	with.silence.Stop()
	if with.announced.Marked && update.Operation == wire.Alive {
		update.Operation = wire.End
	}
	return update, size, nil
}

// answerUpdates acknowledges or refuses updates. It treats an owner that goes on sending but reads
// nothing as gone, although the owner answers pings.
func answerUpdates(stream *ownerStream, cancel context.CancelCauseFunc, updates []Update) error {
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
