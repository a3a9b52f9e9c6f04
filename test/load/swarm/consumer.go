package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

const (
	bufferBytes = 4 << 10 // of a connection, for what is read and for what is written

	firstBackoff = time.Second
	lastBackoff  = 30 * time.Second
)

// consumer subscribes to the owner, acknowledges each response, and comes back when its
// stream has ended. It holds no services, only which version of each it was sent: that of this
// project would cost several times as much as what is measured.
type consumer struct {
	crowd       *crowd
	credentials credentials.TransportCredentials
	local       net.IP // from which it connects

	received atomic.Int64 // bytes from the wire, TLS included
	complete atomic.Bool  // the end marker of the stream has come
	resumed  atomic.Bool  // the owner has accepted the digests for the stream that is open

	services atomic.Int64  // that are held
	print    atomic.Uint64 // of what is held: equal for consumers that hold the same

	held []uint16 // by index of the service: its version, of crowd.book; 0 for none; owned by run
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
	for backoff := firstBackoff; ctx.Err() == nil; backoff = min(2*backoff, lastBackoff) {
		err := c.subscribe(ctx)
		if c.complete.Swap(false) {
			backoff = firstBackoff
		}
		if ctx.Err() != nil {
			return
		}
		delay := time.Duration(float64(backoff) * (0.5 + rand.Float64()))
		if retry := retryOf(err); retry > 0 {
			delay = retry
		}
		c.crowd.failed(err)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
}

// retryOf returns the delay of the RetryInfo in a status, or 0.
func retryOf(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// dial connects from the address of the consumer.
func (c *consumer) dial(ctx context.Context, owner string) (net.Conn, error) {
	raw, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: c.local}}).DialContext(ctx, "tcp", owner)
	return counted{raw, &c.received}, err
}

// subscribe takes one stream to its end.
func (c *consumer) subscribe(ctx context.Context) error {
	c.crowd.shaking <- struct{}{}
	shaken := sync.OnceFunc(func() { <-c.crowd.shaking })
	defer shaken()
	conn, err := grpc.NewClient("passthrough:///"+c.crowd.owner, grpc.WithTransportCredentials(c.credentials), grpc.WithContextDialer(c.dial),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, wire.WindowHeader, strconv.Itoa(wire.MaxWindow))
	digests := c.digests()
	if digests != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, wire.ResumeHeader, digests.Header())
	}
	stream, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return err
	}
	shaken()
	if err := stream.Send(&rdpb.BidirectionalStream{Request: &rdpb.StreamRequest{ResourceUrl: wire.ResourceURL}}); err != nil {
		return err
	}
	header, err := stream.Header()
	if err != nil {
		return err
	}
	var selected resume.BucketSelection
	if accepted := header.Get(wire.ResumeHeader); len(accepted) > 0 {
		if selected, err = resume.ParseSelection(accepted[0], len(digests)); err != nil {
			return err
		}
	}
	c.resumed.Store(selected.TotalBuckets() > 0)
	swept := c.crowd.book.swept(selected, len(c.held)) // by index: not announced yet by this stream
	for {
		message, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("the stream has ended: %w", err)
		}
		swept = c.take(message.GetResponse(), swept)
		answer := &rdpb.StreamRequest{ResponseNonce: message.GetResponse().GetNonce(), Status: &statuspb.Status{}}
		if err := stream.Send(&rdpb.BidirectionalStream{Request: answer}); err != nil {
			return err
		}
	}
}

// take takes a response. It returns what is left of swept, which is nil after the end of the
// catalog.
func (c *consumer) take(response *rdpb.StreamResponse, swept []bool) []bool {
	var index int
	var version uint16
	switch response.GetOperation() {
	case rdpb.StreamResponse_UPSERT:
		index, version = c.crowd.book.note(response.GetResourceId(), response.GetResource().GetValue())
	case rdpb.StreamResponse_DELETE:
		index = c.crowd.book.index(response.GetResourceId())
	default:
		for i, gone := range swept {
			if gone {
				c.set(i, 0)
			}
		}
		c.crowd.completed(c) // before anybody sees that it is
		c.complete.Store(true)
		return nil
	}
	if index < len(swept) {
		swept[index] = false
	}
	c.set(index, version)
	if c.complete.Load() {
		c.crowd.seen()
	}
	return swept
}

// set notes the version of a service.
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
	return c.crowd.book.digests(c.held, c.print.Load())
}
