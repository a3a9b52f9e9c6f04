package owner

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// maxAnswers is how many answers to the responses of a consumer can wait for the
// writer of its stream. While there are more, the stream is not read.
const maxAnswers = 4

// v1alpha2 serves version v1alpha2 of the API.
type v1alpha2 struct {
	rdpb.UnimplementedDiscoveryServiceServer

	server *Server
}

// EstablishStream serves one subscription of a consumer.
//
// A message of this version has two parts, and a peer may fill either: it sends
// requests as a consumer, and responses as an owner. Each response is declined. A message with
// neither part, as a later version may have, is ignored.
func (v v1alpha2) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	answers := make(chan func() error, maxAnswers)
	d := dialectV1Alpha2(oneRole{stream, answers})
	d.answers = answers
	return v.server.subscribe(stream, d)
}

// dialectV1Alpha2 returns what v1alpha2 is on the half.
func dialectV1Alpha2(half oneRole) dialect {
	return dialect{
		version: wire.V1Alpha2,
		receive: func(ctx context.Context) (wire.Request, error) {
			m, err := half.Recv(ctx)
			if err != nil {
				return wire.Request{}, err
			}
			request, err := wire.ParseRequest(m)
			if err != nil {
				return wire.Request{}, status.Error(codes.InvalidArgument, err.Error())
			}
			return request, nil
		},
		prepare: func(u registry.Update) (message, error) {
			resource, err := u.Resource()
			if err != nil {
				return message{}, err
			}
			response := wire.Respond(u.Event, resource, "", "")
			return message{len(resource.GetValue()), func(nonce, context string) error {
				response.Nonce, response.Context = nonce, context
				return half.Send(response)
			}}, nil
		},
	}
}

// oneRole is the half of a stream whose other half this owner does not take part in: what
// the consumer publishes there is declined.
type oneRole struct {
	stream  rdpb.DiscoveryService_EstablishStreamServer
	answers chan<- func() error
}

// Recv returns the next request, and has responses declined until then.
func (l oneRole) Recv(ctx context.Context) (*rdpb.StreamRequest, error) {
	for {
		m, err := l.stream.Recv()
		if err != nil {
			return nil, err
		}
		if response := m.GetResponse(); response != nil {
			declined := &rdpb.BidirectionalStream{Request: wire.Decline(response)}
			select {
			case l.answers <- func() error { return l.stream.Send(declined) }:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if request := m.GetRequest(); request != nil {
			return request, nil
		}
	}
}

// Send sends a response.
func (l oneRole) Send(response *rdpb.StreamResponse) error {
	return l.stream.Send(&rdpb.BidirectionalStream{Response: response})
}
