package owner

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// v1alpha2 serves that version of the API.
type v1alpha2 struct {
	rdpb.UnimplementedDiscoveryServiceServer

	server *Server
}

// EstablishStream is one subscription of a consumer.
func (v v1alpha2) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	return v.server.subscribe(stream, dialect{
		version: wire.V1Alpha2,
		receive: func() (wire.Request, error) {
			m, err := stream.Recv()
			if err != nil {
				return wire.Request{}, err
			}
			request, err := wire.ParseRequest(m.GetRequest())
			if err != nil {
				return wire.Request{}, status.Error(codes.InvalidArgument, err.Error())
			}
			return request, nil
		},
		send: func(u update, nonce, context string) error {
			resource, err := u.resource()
			if err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			return stream.Send(&rdpb.BidirectionalStream{Response: wire.Respond(u.Event, resource, nonce, context)})
		},
	})
}
