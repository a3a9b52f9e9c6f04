package owner

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
)

// v1alpha1 serves that version of the API.
type v1alpha1 struct {
	rdpb1.UnimplementedDiscoveryServiceServer

	server *Server
}

// EstablishStream is one subscription of a consumer.
func (v v1alpha1) EstablishStream(stream rdpb1.DiscoveryService_EstablishStreamServer) error {
	withheld := withheld{server: v.server, names: make(map[string]struct{})}
	return v.server.subscribe(stream, dialect{
		version: wire.V1Alpha1,
		receive: func() (wire.Request, error) {
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
		express: withheld.express,
		send: func(u update, nonce, _ string) error {
			response, err := wire.EncodeV1Alpha1(u.Event, nonce, u.told)
			if err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			return stream.Send(response)
		},
	})
}

// withheld is what one consumer of v1alpha1 does not get of the catalog, as
// v1alpha1 cannot express it.
type withheld struct {
	server *Server
	names  map[string]struct{} // of services
}

// express returns what v1alpha1 can say of an update, and false when there is
// nothing to be said. A service that cannot be expressed any more is withdrawn:
// what the consumer has of it is no longer so.
func (w withheld) express(u update) (update, bool) {
	_, unsaid := w.names[u.Name]
	u.told = u.told && !unsaid
	switch u.Operation {
	case federation.Upsert:
		err := wire.CheckV1Alpha1(u.Service)
		if err == nil {
			delete(w.names, u.Name)
			return u, true
		}
		w.names[u.Name] = struct{}{}
		if w.server.withheld.add("", u.Name, err.Error()) {
			w.server.config.Logger.Warn("service cannot be expressed in v1alpha1; consumers of that version do not get it",
				"service", u.Name, "reason", err)
		}
		u.Event = federation.Event{Operation: federation.Delete, Name: u.Name}
		return u, u.told
	case federation.Delete:
		delete(w.names, u.Name)
		return u, u.told
	default:
		return u, true
	}
}
