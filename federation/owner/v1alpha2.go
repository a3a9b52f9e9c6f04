package owner

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// maxAnswers is how many answers to the responses of a peer wait for the writer
// of its stream. The peer is not read from while there are more.
const maxAnswers = 4

// v1alpha2 serves that version of the API.
type v1alpha2 struct {
	rdpb.UnimplementedDiscoveryServiceServer

	server *Server
}

// EstablishStream is one subscription of a consumer.
//
// A message of this version has two parts, and a peer may fill either: the
// requests are those of a consumer, the responses those of an owner, who is told
// one by one that nobody here takes them. A message with neither has a part that
// a later version may have added, and is passed over.
func (v v1alpha2) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	answers := make(chan func() error, maxAnswers)
	return v.server.subscribe(stream, dialect{
		version: wire.V1Alpha2,
		answers: answers,
		receive: func(ctx context.Context) (wire.Request, error) {
			for {
				m, err := stream.Recv()
				if err != nil {
					return wire.Request{}, err
				}
				if response := m.GetResponse(); response != nil {
					declined := &rdpb.BidirectionalStream{Request: wire.Decline(response)}
					select {
					case answers <- func() error { return stream.Send(declined) }:
					case <-ctx.Done():
						return wire.Request{}, context.Cause(ctx)
					}
				}
				if m.GetRequest() == nil {
					continue
				}
				request, err := wire.ParseRequest(m.GetRequest())
				if err != nil {
					return wire.Request{}, status.Error(codes.InvalidArgument, err.Error())
				}
				return request, nil
			}
		},
		prepare: func(u update) (message, error) {
			resource, err := u.resource()
			if err != nil {
				return message{}, err
			}
			return message{len(resource.GetValue()), func(nonce, context string) error {
				return stream.Send(&rdpb.BidirectionalStream{Response: wire.Respond(u.Event, resource, nonce, context)})
			}}, nil
		},
	})
}
