// Package wiretest makes the messages of an owner.
package wiretest

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// Response returns the v1alpha2 message for an event. Its service need not be valid, but must be one that
// package proto can write.
func Response(event wire.Event, nonce, context string) (*rdpb.StreamResponse, error) {
	var resource *anypb.Any
	var err error
	switch event.Operation {
	case wire.Upsert:
		resource = &anypb.Any{TypeUrl: wire.ResourceURL}
		var m *typespb.FederatedService
		if m, err = wire.EncodeService(event.Service); err == nil {
			resource.Value, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
		}
	case wire.Delete:
		resource, err = wire.EncodeDelete(event)
	}
	return wire.NewResponse(event, resource, nonce, context), err
}
