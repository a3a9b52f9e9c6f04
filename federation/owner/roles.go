package owner

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/duplex"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// Subscriber is the other role of an owner: it subscribes to what a consumer publishes
// on its stream. stream.Acceptor implements it.
type Subscriber interface {
	// Subscribe uses one half of a stream until the stream ends. When it returns before,
	// the stream ends. The consumer is the peer of ctx, and its metadata are the header
	// of the request.
	Subscribe(ctx context.Context, half *duplex.Responses) error
}

// errNotFollowed ends a stream with both roles for the sake of one of them: the consumer
// comes back, and then the other role begins anew, or not at all.
var errNotFollowed = status.Error(codes.Unavailable, "the subscription to what you publish has ended")

// subscriber returns who subscribes to what the peer publishes, or nil.
func (s *Server) subscriber(ctx context.Context) Subscriber {
	if s.config.Consume == nil {
		return nil
	}
	p, _ := peer.FromContext(ctx)
	consumer, certified := mtls.PeerOf(p.AuthInfo)
	if !certified {
		return nil // admit turns it away
	}
	return s.config.Consume(consumer.IDs())
}

// bothRoles serves a stream on which the consumer is an owner as well.
//
// The handler of gRPC has to return when the stream is to end, since nothing else ends a
// send to a peer that does not read. So what sends runs beside it, and Serve waits for it.
func (s *Server) bothRoles(stream rdpb.DiscoveryService_EstablishStreamServer, from Subscriber) error {
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	split := duplex.New(ctx, stream, end)
	var subscribed sync.WaitGroup
	d := dialectV1Alpha2(split.Requests())
	d.begin = func() {
		s.readers.Go(split.Read)
		s.readers.Go(split.Write)
		subscribed.Go(func() {
			_ = from.Subscribe(ctx, split.Responses()) // the subscriber tells of it
			select {
			case <-split.Responses().Over(): // which ends the other half as well, in its own way
			default:
				end(errNotFollowed)
			}
		})
	}
	told := make(chan error, 1)
	s.readers.Go(func() {
		err := s.subscribe(ending{stream, ctx}, d) //nolint:contextcheck // it has ctx by the stream
		split.Requests().Close()
		if err == nil {
			subscribed.Wait() // the subscriber has heard of the end before the consumer does
		}
		told <- err
		subscribed.Wait()
	})
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		if err := context.Cause(ctx); status.Code(err) != codes.Unknown {
			return err
		}
		return status.FromContextError(context.Cause(ctx)).Err()
	}
}

// ending is a stream that ends when ctx does.
type ending struct {
	rdpb.DiscoveryService_EstablishStreamServer

	ctx context.Context //nolint:containedctx // gRPC asks the stream for its context
}

func (e ending) Context() context.Context { return e.ctx }

// Announce implements stream.Publisher.
func (s *Server) Announce() metadata.MD {
	header := metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)
	s.mu.Lock()
	published := s.chooseLocked("").registry
	s.mu.Unlock()
	if published != nil {
		header.Set(wire.PathHeader, published.Path().Header())
	}
	return header
}

// Publish implements stream.Publisher: it serves the default catalog, the one under "",
// to an owner that asks for it on a stream which this side has opened. What Serve says of
// consumers holds for it: who may subscribe, the policy, the window, and the figures.
//
// An owner that may not subscribe is told nothing. While the catalog is unavailable, one
// that asks has to wait; when it becomes so, the stream ends.
func (s *Server) Publish(ctx context.Context, half *duplex.Requests) error {
	first, err := half.Recv(ctx)
	if err != nil {
		return nil // the stream has ended without anybody asking
	}
	var reader sync.WaitGroup
	defer reader.Wait()
	defer half.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	session := s.newSession(dialectV1Alpha2(&begun{half, first}), cancel, &reader)
	session.dialed = true
	if err := s.admit(ctx, session); err != nil {
		return nil // there is no way to say it, and admit has logged it
	}
	s.hold(session)
	session.subscription = session.registry.SubscribeAs(registry.Consumer{IDs: session.ids, Stop: cancel, Patient: true, Silent: true})
	defer session.finished()
	if err = session.announced(ctx); err == nil {
		err = session.run(ctx)
	}
	if errors.Is(err, net.ErrClosed) || status.Code(err) == codes.Canceled {
		err = nil // the stream has ended
	}
	s.dismiss(session, err)
	return err
}

// errOtherPath ends a stream that this side has opened: the next one tells the path of then.
var errOtherPath = status.Error(codes.Unavailable, "the services come by another way than was announced")

// announced fails where the header of the request has another path than the one of now. It
// was sent when the stream was opened, and a relay knows its path only when it has the
// services. The other side could tell no circle from the wrong one.
func (s *session) announced(ctx context.Context) error {
	header, _ := metadata.FromOutgoingContext(ctx)
	if told := header.Get(wire.PathHeader); len(told) > 0 && told[0] != s.registry.Path().Header() {
		return errOtherPath
	}
	return nil
}

// begun is a half of which the first request has been received.
type begun struct {
	*duplex.Requests

	first *rdpb.StreamRequest // nil once it was returned
}

// Recv implements requests.
func (b *begun) Recv(ctx context.Context) (*rdpb.StreamRequest, error) {
	if first := b.first; first != nil {
		b.first = nil
		return first, nil
	}
	return b.Requests.Recv(ctx)
}
