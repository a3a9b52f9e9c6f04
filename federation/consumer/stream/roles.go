package stream

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/duplex"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// Publisher is the other role of a consumer: it answers the requests of the owner, which
// may be a consumer on the same stream. owner.Server implements it.
type Publisher interface {
	// Announce returns what an owner has in the header of a stream. It is sent in the
	// header of the request.
	Announce() metadata.MD

	// Publish answers the requests on one half of a stream until the stream ends. An
	// error ends the stream, and nil does not. The owner is the peer of ctx, as gRPC
	// has it.
	Publish(ctx context.Context, half *duplex.Requests) error
}

// openBothRoles opens a stream of v1alpha2 for both roles, and subscribes.
func (c *Consumer) openBothRoles(ctx context.Context, cancel context.CancelCauseFunc, conn *grpc.ClientConn) (stream, error) {
	header, _ := metadata.FromOutgoingContext(ctx)
	ctx = metadata.NewOutgoingContext(ctx, metadata.Join(header, c.config.Publisher.Announce()))
	client, err := rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx)
	if err != nil {
		return nil, err
	}
	split := duplex.New(ctx, client, cancel)
	publish := func() { //nolint:contextcheck // the context of the stream says who the owner is
		if header, err := client.Header(); err != nil || header == nil {
			return // the stream has ended, and had no such context before the header
		}
		err := c.config.Publisher.Publish(client.Context(), split.Requests())
		select {
		case <-split.Requests().Over():
		default:
			if err != nil {
				// Its code is for the owner: here it says nothing about the subscription.
				cancel(errors.New("publish: " + err.Error()))
			}
		}
	}
	return subscribeV1Alpha2(dialed{split.Responses(), client}, c.config.Policy, split.Read, split.Write, publish)
}

// dialed is the half of a stream that the consumer has opened.
type dialed struct {
	*duplex.Responses

	client rdpb.DiscoveryService_EstablishStreamClient
}

func (d dialed) Header() (metadata.MD, error) { return d.client.Header() }

// Acceptor gives a Consumer the streams that owners open, as consumers of their own. A
// Consumer uses one of them at a time: the others wait, so that one of them can take the
// place of a stream that is lost. The same Acceptor may be in the Config of one Consumer
// after another.
type Acceptor struct {
	offers chan *offer
}

// offer is a stream that an owner has opened.
type offer struct {
	ctx   context.Context //nolint:containedctx // that of the stream
	half  *duplex.Responses
	ended chan error
}

// NewAcceptor returns an Acceptor, on which no stream waits.
func NewAcceptor() *Acceptor { return &Acceptor{make(chan *offer)} }

// successorTimeout is how long another stream is waited for after one that the owner has closed:
// it has opened the other one before, to take the place, but both come by ways of their own.
const successorTimeout = time.Second

// successor returns a stream that takes the place of one that the owner has closed, or nil.
func (a *Acceptor) successor(ctx context.Context) *offer {
	limit := time.NewTimer(successorTimeout)
	defer limit.Stop()
	select {
	case o := <-a.offers:
		return o
	case <-limit.C:
	case <-ctx.Done():
	}
	return nil
}

var errLeft = errors.New("the subscription has ended")

// Subscribe lets the Consumer use one half of a stream, and returns why it does not any
// more: because the stream has ended, with its reason, or because the subscription has,
// and then the stream must end too. The half is closed then. Its ctx is that of the
// stream on the server, with the metadata of the request.
func (a *Acceptor) Subscribe(ctx context.Context, half *duplex.Responses) error {
	defer half.Close()
	o := &offer{ctx, half, make(chan error, 1)}
	select {
	case a.offers <- o:
		return <-o.ended // soon after ctx has ended
	case <-half.Over():
		return io.EOF
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errRefetch ends a stream for the sake of another one.
var errRefetch = errors.New("the catalog is fetched once more")

// attend subscribes on one stream after the other that owners have opened, until ctx ends.
func (c *Consumer) attend(ctx context.Context) error {
	var next *offer
	for {
		o := next
		if o == nil {
			select {
			case o = <-c.config.Accept.offers:
			case <-ctx.Done():
				return nil
			}
		}
		c.config.Observer.Attempted()
		address, err := c.accepted(ctx, o)
		if ctx.Err() != nil {
			o.ended <- errLeft
			return nil //nolint:nilerr // ctx has ended, and so the session
		}
		next = nil
		if errors.Is(err, io.EOF) && c.config.Sink.Complete() { // the place of a part of a catalog is not taken
			next = c.config.Accept.successor(ctx)
		}
		if next == nil {
			ending := classify(err)
			c.config.Observer.Ended(ending.code)
			c.connectionLog.ended(address, ending, false)
			c.config.Sink.Lost(ctx, ending, false)
		}
		o.ended <- err
	}
}

// accepted is session for a stream that the owner has opened.
//
//nolint:contextcheck // the stream has a context of its own, which ends with ctx
func (c *Consumer) accepted(ctx context.Context, o *offer) (address string, err error) {
	if p, ok := peer.FromContext(o.ctx); ok {
		address = p.Addr.String()
	}
	streamCtx, cancel := context.WithCancelCause(o.ctx)
	defer cancel(nil)
	context.AfterFunc(streamCtx, o.half.Close) // which ends the reader
	defer context.AfterFunc(ctx, func() { cancel(ctx.Err()) })()

	stream, err := subscribeV1Alpha2(opened{o.half, o.ctx}, c.config.Policy)
	if err != nil {
		return address, err
	}
	with := c.listen(streamCtx, cancel, stream, address, forever, nil) // there is no other replica to try
	defer with.end()
	defer c.inbox.Store(nil)
	with.beside.Go(func() {
		select {
		case <-c.refetch: // which is a loss, as nobody knows whether the owner comes back
			cancel(errRefetch)
		case <-streamCtx.Done():
		}
	})
	_, err = c.converse(ctx, with)
	return address, err
}

// opened is the half of a stream that the owner has opened.
type opened struct {
	*duplex.Responses

	ctx context.Context //nolint:containedctx // gRPC keeps the header of the request in it
}

// Header returns what the owner has announced when it opened the stream. What else is in
// the header of its request concerns its other role.
func (o opened) Header() (metadata.MD, error) {
	header := make(metadata.MD)
	for _, key := range []string{wire.CatalogEndHeader, wire.PathHeader} {
		header.Append(key, metadata.ValueFromIncomingContext(o.ctx, key)...)
	}
	return header, nil
}

// CloseSend does nothing: it is for the owner to end the stream.
func (opened) CloseSend() error { return nil }
