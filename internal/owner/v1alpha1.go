package owner

import (
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
		receive: func(func()) (wire.Request, error) {
			m, err := stream.Recv()
			if err != nil {
				return wire.Request{}, err
			}
			return wire.ParseRequestV1Alpha1(m)
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
