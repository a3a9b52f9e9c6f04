package owner

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// maxAnswers is how many answers to the responses of a consumer can wait for the writer of its
// stream. Beyond that the stream is not read.
const maxAnswers = 4

// serverV1Alpha2 serves version v1alpha2 of the API.
type serverV1Alpha2 struct {
	rdpb.UnimplementedDiscoveryServiceServer

	server *Server
}

// EstablishStream serves one subscription of a consumer.
//
// A message of this version has two parts, and a peer may fill either: it sends
// requests as a consumer, and responses as an owner. Each response is declined. A message with
// neither part, as a later version may have, is ignored.
func (v serverV1Alpha2) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	answers := make(chan func() error, maxAnswers)
	return v.server.serveSubscription(stream, apiDialect{
		version: wire.V1Alpha2,
		answers: answers,
		receive: func(ctx context.Context) (wire.Request, error) {
			for {
				m, err := stream.Recv()
				if err != nil {
					return wire.Request{}, err
				}
				if response := m.GetResponse(); response != nil {
					declined := &rdpb.BidirectionalStream{Request: wire.DeclineResponse(response)}
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
		prepare: func(u registry.Update) (encodedUpdate, error) {
			resource, err := u.Resource()
			if err != nil {
				return encodedUpdate{}, err
			}
			response := wire.NewResponse(u.Event, resource, "", "")
			return encodedUpdate{len(resource.GetValue()), func(nonce, context string) error {
				response.Nonce, response.Context = nonce, context
				return stream.Send(&rdpb.BidirectionalStream{Response: response})
			}}, nil
		},
	})
}
