package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
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
)

var (
	errOpenTimeout   = status.Errorf(codes.DeadlineExceeded, "no stream within %v", openTimeout)
	errAnswerTimeout = status.Errorf(codes.DeadlineExceeded, "no acknowledgement was read within %v", answerTimeout)

	// errSilent ends a stream on which nothing arrives, where another replica can be
	// tried.
	errSilent = errors.New("the owner says nothing, and there is another replica to try")
)

// session holds one stream with the owner at the address, from the connection
// to its end. It reports whether a valid message came, and why the stream ended.
// Patience is how long the owner may say nothing.
func (c *Consumer) session(ctx context.Context, address string, patience time.Duration) (heard bool, err error) {
	dialLog := &dialLog{address: address, dial: c.config.Dial}
	defer func() { err = dialLog.explain(err) }()
	conn, err := c.connect(dialLog)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer c.pending.Store(0) // once the reader has ended
	var beside sync.WaitGroup
	defer beside.Wait()
	// The stream outlives ctx until the owner knows of its end, see leave.
	streamCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)

	asked := c.holds(ctx, address)
	stream, err := c.subscribe(ctx, streamCtx, cancel, conn, asked)
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, func() { cancel(nil) }) })()
	silence := time.AfterFunc(patience, func() { cancel(errSilent) })
	defer silence.Stop()
	inbox, announced, tokens := newInbox(&c.pending), make(chan announced, 1), make(chan string, 1)
	for _, other := range stream.beside() {
		beside.Go(other)
	}
	beside.Go(func() {
		// RFC 9113 section 8.1: the header comes before the first message.
		a := announcement(stream, asked)
		announced <- a
		tokens <- tokenOf(stream)
		inbox.fill(streamCtx, c.receiver(stream, a.Marked, silence))
	})
	if renewal := c.newRenewal(dialLog, tokens); renewal != nil {
		beside.Go(func() { renewal.run(streamCtx) })
	}
	heard, err = c.converse(ctx, conversation{stream, inbox, announced, cancel, address, len(asked) > 0})
	if ctx.Err() != nil {
		leave(stream, inbox)
	}
	return heard, err
}

// conversation is what converse works with.
type conversation struct {
	stream    stream
	inbox     *inbox
	announced <-chan announced        // receives what the owner says in the header
	cancel    context.CancelCauseFunc // ends the stream at once
	address   string
	asked     bool // to send only what differs
}

// converse passes what the owner says to the Sink, and answers it, until the stream
// or ctx ends.
func (c *Consumer) converse(ctx context.Context, with conversation) (heard bool, err error) {
	if err := c.config.Sink.Opened(ctx); err != nil {
		return false, fmt.Errorf("open: %w", err)
	}
	select {
	case a := <-with.announced:
		if err := c.meet(ctx, with, a); err != nil {
			return false, err
		}
	case <-ctx.Done():
		return false, ctx.Err()
	}
	for {
		updates, err := with.inbox.take(ctx)
		if err != nil {
			return heard, err
		}
		traced, span := c.traced(ctx, with.address, updates)
		refusals, err := c.config.Sink.Apply(traced, updates)
		with.inbox.applied()
		if err != nil {
			err = fmt.Errorf("apply: %w", err)
			span.fail(err)
			return heard, err
		}
		span.describe(updates, refusals)
		err = answer(with.stream, with.cancel, updates, refusals)
		span.answered(traced, err)
		if err != nil {
			return heard, err
		}
		for i := range updates {
			heard = c.note(with.address, &updates[i].Event, refusal(updates, refusals, i)) || heard
		}
		c.config.Sink.Answered(ctx)
	}
}

// leave ends the stream on purpose. The owner sees that nothing else comes and ends
// the stream on its side, where a cancellation would look like a fault. Whether it was
// removed from the configuration or the process ends makes no difference to the owner,
// which keeps nothing of a consumer. The context of the stream ends a moment later,
// which bounds the wait.
func leave(stream stream, inbox *inbox) {
	if stream.CloseSend() == nil {
		inbox.drain()
	}
}

// refusal returns why the update at index i is refused, or nil.
func refusal(updates []Update, refusals []*federation.InvalidError, i int) *federation.InvalidError {
	if updates[i].Invalid != nil || refusals == nil {
		return updates[i].Invalid
	}
	return refusals[i]
}

// note counts an update that was answered, and logs what is new in it. It reports
// whether it was accepted.
func (c *Consumer) note(address string, ev *federation.Event, refusal *federation.InvalidError) bool {
	if refusal != nil {
		c.config.Observer.Refused(refusal)
		c.connectionLog.refused(address, refusal)
		return false
	}
	c.config.Observer.Responded(ev.Operation, ev.Name)
	c.connectionLog.connected(address)
	return true
}

// connect prepares a connection for one session, so gRPC's own backoff between
// connections never applies.
func (c *Consumer) connect(dialLog *dialLog) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///owner", // the dialer knows the address
		grpc.WithContextDialer(dialLog.connect),
		grpc.WithTransportCredentials(loggedCredentials{c.config.Identity.Credentials(dialLog.address), dialLog}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		// Without pings a dead connection would never be noticed. None is sent
		// without a stream, as owners count them.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.keepalive, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(readFactor*min(c.config.MaxMessage, math.MaxInt/readFactor))),
		grpc.WithMaxHeaderListSize(maxHeaderList),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	)
}

// subscribe opens the stream and sends the initial request. The context of the
// stream must outlive that, so it has no deadline.
func (c *Consumer) subscribe(
	ctx, streamCtx context.Context, cancel context.CancelCauseFunc, conn *grpc.ClientConn, asked resume.Digests,
) (stream, error) {
	defer context.AfterFunc(ctx, func() { cancel(ctx.Err()) })()
	deadline := time.AfterFunc(openTimeout, func() { cancel(errOpenTimeout) })
	if len(asked) > 0 {
		streamCtx = metadata.AppendToOutgoingContext(streamCtx, wire.ResumeHeader, asked.Header())
	}
	stream, err := c.open(streamCtx, cancel, conn)
	if !deadline.Stop() {
		return nil, errOpenTimeout
	}
	return stream, err
}

// receiver returns a function that receives the next response of a stream, and its
// size in bytes. Marked says that the owner marks the end of its catalog. The timer
// silence is stopped by the first response.
func (c *Consumer) receiver(stream stream, marked bool, silence *time.Timer) func() (Update, int, error) {
	return func() (Update, int, error) {
		update, size, err := stream.receive()
		if err != nil {
			return Update{}, 0, err
		}
		silence.Stop()
		if c.config.Tracer() != nil {
			update.decoded = time.Now()
		}
		if marked && update.Invalid == nil && update.Operation == federation.Alive {
			update.Operation = federation.End
		}
		return update, size, nil
	}
}

// answer acknowledges or refuses updates. An owner that goes on sending but reads
// nothing is treated as gone, although it answers pings.
func answer(stream stream, cancel context.CancelCauseFunc, updates []Update, refusals []*federation.InvalidError) error {
	deadline := time.AfterFunc(answerTimeout, func() { cancel(errAnswerTimeout) })
	var err error
	for i := 0; i < len(updates) && err == nil; i++ {
		err = stream.answer(updates[i].nonce, refusal(updates, refusals, i))
	}
	if !deadline.Stop() {
		return errAnswerTimeout
	}
	return err
}
