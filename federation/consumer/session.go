package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	stream, err := c.subscribe(ctx, cancel, conn)
	if err != nil {
		return false, err
	}
	if err := c.config.Sink.Opened(ctx); err != nil {
		return false, fmt.Errorf("open: %w", err)
	}
	for first, marked := true, false; ; first = false {
		response, err := stream.receive()
		if err != nil {
			return heard, err
		}
		if first && announcesEnd(stream) {
			marked = true
			if err := c.config.Sink.Marked(ctx); err != nil {
				return heard, fmt.Errorf("marked: %w", err)
			}
		}
		if response.none {
			continue
		}
		event, err := c.take(ctx, response, marked)
		var invalid *federation.InvalidError
		switch {
		case err == nil:
			err = answer(ctx, cancel, stream, response.nonce, nil)
			c.config.Observer.Responded(event.Operation)
			c.journal.connected(address)
			heard = true
		case errors.As(err, &invalid):
			err = answer(ctx, cancel, stream, response.nonce, invalid)
			c.config.Observer.Refused(invalid.Reason)
			c.journal.refused(address, invalid)
		}
		if err != nil {
			return heard, err
		}
	}
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

// take has the event of a response applied. The Sink hears of a response that is
// refused before it comes so far.
func (c *Consumer) take(ctx context.Context, response response, marked bool) (federation.Event, error) {
	event := response.event
	if response.refusal != nil {
		if err := c.config.Sink.Refused(ctx, response.refusal.Service); err != nil {
			return event, fmt.Errorf("refuse: %w", err)
		}
		return event, response.refusal
	}
	if marked && event.Operation == federation.Alive {
		event.Operation = federation.End
	}
	if err := c.config.Sink.Apply(ctx, event); err != nil {
		return event, fmt.Errorf("apply %v: %w", event.Operation, err)
	}
	return event, nil
}

// announcesEnd tells whether the owner marks the end of its catalog. It must be
// called after a message came: the header is there then, and need not be before.
func announcesEnd(stream stream) bool {
	header, err := stream.Header()
	return err == nil && slices.Contains(header.Get(wire.CatalogEndHeader), wire.CatalogEndMarked)
}

// answer answers a response. An owner that sends on and reads nothing is as good
// as gone, although it answers pings.
func answer(ctx context.Context, cancel context.CancelCauseFunc, stream stream, nonce string, refusal error) error {
	deadline := time.AfterFunc(answerTimeout, func() { cancel(errAnswerTimeout) })
	err := stream.answer(nonce, refusal)
	if !deadline.Stop() {
		return context.Cause(ctx)
	}
	return err
}
