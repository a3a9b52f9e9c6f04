package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

const (
	connectTimeout   = 10 * time.Second // for TCP, TLS and the first frame of HTTP/2
	openTimeout      = 15 * time.Second // for all that and the stream on top
	keepaliveTimeout = 20 * time.Second // for the answer to a ping
	answerTimeout    = 30 * time.Second // for room to send an acknowledgement

	maxHeaderList = 64 << 10 // bytes of response headers
)

var (
	errOpenTimeout   = status.Errorf(codes.DeadlineExceeded, "no stream within %v", openTimeout)
	errAnswerTimeout = status.Errorf(codes.DeadlineExceeded, "no acknowledgement was read within %v", answerTimeout)
)

// session holds one stream with the owner at the address, from the connection
// to its end. It tells whether a valid message came, and why the stream ended.
func (c *Consumer) session(ctx context.Context, address string) (heard bool, err error) {
	witness := &witness{address: address, dial: c.config.Dial}
	defer func() { err = witness.explain(err) }()
	conn, err := c.connect(witness)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	var reader sync.WaitGroup
	defer reader.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	stream, err := c.subscribe(ctx, cancel, conn)
	if err != nil {
		return false, err
	}
	if err := c.config.Sink.Opened(ctx); err != nil {
		return false, fmt.Errorf("open: %w", err)
	}
	inbox := newInbox()
	reader.Go(func() { inbox.fill(ctx, receiver(stream)) })
	for marked := false; ; {
		updates, err := inbox.take()
		if err != nil {
			return heard, err
		}
		if updates[0].marked && !marked {
			marked = true
			if err := c.config.Sink.Marked(ctx); err != nil {
				return heard, fmt.Errorf("marked: %w", err)
			}
		}
		if err := c.config.Sink.Apply(ctx, updates); err != nil {
			return heard, fmt.Errorf("apply: %w", err)
		}
		if err := answer(ctx, cancel, stream, updates); err != nil {
			return heard, err
		}
		for i := range updates {
			heard = c.note(address, &updates[i]) || heard
		}
	}
}

// note counts an update that is answered, and logs what is new in it. It tells
// whether it was valid.
func (c *Consumer) note(address string, update *Update) bool {
	if update.Refusal != nil {
		c.config.Observer.Refused(update.Refusal.Reason)
		c.journal.refused(address, update.Refusal)
		return false
	}
	c.config.Observer.Responded(update.Operation)
	c.journal.connected(address)
	return true
}

// connect prepares a connection that is made for one session: gRPC's own
// backoff between connections never comes to act.
func (c *Consumer) connect(witness *witness) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///owner", // the dialer knows the address
		grpc.WithContextDialer(witness.connect),
		grpc.WithTransportCredentials(witnessed{c.config.Credentials(witness.address), witness}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		// Without a ping a connection that is only half there would be waited on
		// for ever. None is sent without a stream: owners count them.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.keepalive, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.config.MaxMessage)),
		grpc.WithMaxHeaderListSize(maxHeaderList),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	)
}

// subscribe opens the stream and sends the initial request.
func (c *Consumer) subscribe(ctx context.Context, cancel context.CancelCauseFunc, conn *grpc.ClientConn) (stream, error) {
	// The context must outlive the opening, so it cannot have a deadline.
	deadline := time.AfterFunc(openTimeout, func() { cancel(errOpenTimeout) })
	stream, err := c.open(ctx, conn)
	if !deadline.Stop() {
		return nil, context.Cause(ctx)
	}
	return stream, err
}

// receiver returns what receives the next response of a stream that is new, and
// its size in bytes.
func receiver(stream stream) func() (Update, int, error) {
	first, marked := true, false
	return func() (Update, int, error) {
		update, size, err := stream.receive()
		if err != nil {
			return Update{}, 0, err
		}
		if first {
			first, marked = false, announcesEnd(stream)
		}
		update.Received, update.marked = time.Now(), marked
		if marked && update.Refusal == nil && update.Operation == federation.Alive {
			update.Operation = federation.End
		}
		return update, size, nil
	}
}

// announcesEnd tells whether the owner marks the end of its catalog. It must be
// called after a message came: the header is there then, and need not be before.
func announcesEnd(stream stream) bool {
	header, err := stream.Header()
	return err == nil && slices.Contains(header.Get(wire.CatalogEndHeader), wire.CatalogEndMarked)
}

// answer acknowledges or refuses updates. An owner that sends on and reads
// nothing is as good as gone, although it answers pings.
func answer(ctx context.Context, cancel context.CancelCauseFunc, stream stream, updates []Update) error {
	deadline := time.AfterFunc(answerTimeout, func() { cancel(errAnswerTimeout) })
	var err error
	for i := 0; i < len(updates) && err == nil; i++ {
		err = stream.answer(updates[i].nonce, updates[i].Refusal)
	}
	if !deadline.Stop() {
		return context.Cause(ctx)
	}
	return err
}
