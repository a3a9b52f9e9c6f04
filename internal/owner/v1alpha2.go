package owner

import (
	"sync"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

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
	// The writer of the stream sends updates, and its reader answers: one message at a time.
	var sending sync.Mutex
	send := func(m *rdpb.BidirectionalStream) error {
		sending.Lock()
		defer sending.Unlock()
		return stream.Send(m)
	}
	return v.server.serveSubscription(stream, apiDialect{
		version: wire.V1Alpha2,
		receive: func(declined func()) (wire.Request, error) {
			for {
				m, err := stream.Recv()
				if err != nil {
					return wire.Request{}, err
				}
				if response := m.GetResponse(); response != nil {
					declined()
					if err := send(&rdpb.BidirectionalStream{Request: wire.DeclineResponse(response)}); err != nil {
						return wire.Request{}, err
					}
				}
				if m.GetRequest() != nil {
					return wire.ParseRequest(m.GetRequest())
				}
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
				return send(&rdpb.BidirectionalStream{Response: response})
			}}, nil
		},
	})
}
