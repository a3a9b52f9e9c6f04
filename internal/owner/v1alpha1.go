package owner

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
)

// serverV1Alpha1 serves version v1alpha1 of the API.
type serverV1Alpha1 struct {
	rdpb1.UnimplementedDiscoveryServiceServer

	server *Server
}

// EstablishStream serves one subscription of a consumer.
func (v serverV1Alpha1) EstablishStream(stream rdpb1.DiscoveryService_EstablishStreamServer) error {
	return v.server.serveSubscription(stream, apiDialect{
		version: wire.V1Alpha1,
		receive: func(context.Context) (wire.Request, error) {
			m, err := stream.Recv()
			if err != nil {
				return wire.Request{}, err
			}
			request, err := wire.ParseRequestV1Alpha1(m)
			if err != nil {
				return wire.Request{}, status.Error(codes.InvalidArgument, err.Error())
			}
			return request, nil
		},
		prepare: func(u registry.Update) (encodedUpdate, error) {
			response, err := wire.EncodeV1Alpha1(u.DecodedEvent(), "", u.Told)
			if err != nil {
				return encodedUpdate{}, err
			}
			return encodedUpdate{len(response.GetResource().GetValue()), func(nonce, _ string) error {
				response.Nonce = nonce
				return stream.Send(response)
			}}, nil
		},
	})
}
