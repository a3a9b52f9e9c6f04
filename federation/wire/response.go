package wire

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// ResourceURL is the type of the resources that are exchanged.
const ResourceURL = "type.googleapis.com/federation.types.v1alpha2.FederatedService"

// The response header with which an owner announces that it marks the end of
// its catalog, and the header's value.
const (
	CatalogEndHeader = "federation-catalog-end"
	CatalogEndMarked = "marked"
)

// Decode returns what m says. The error is always a
// [*federation.InvalidError], for the first rule that m breaks.
//
// A response without operation, resource and resource_id is an Alive; whether
// it is an End depends on the header of its stream. An empty resource_url counts
// as ours, as the resource has a type of its own.
//
// A service is known by its name. The resource_id stands for it only in a DELETE
// that has no name in its resource: owners built on the public implementation
// choose their IDs freely, and its examples take the fqdn. So the ID of an UPSERT
// is a part of the event, also of one that is refused.
func Decode(m *rdpb.StreamResponse, policy Policy) (federation.Event, error) {
	event, invalid := decode(m, policy)
	if invalid != nil {
		name, _ := stringIn(m.GetResource().GetValue(), nameField)
		invalid.Service = cut(cmp.Or(name, m.GetResourceId()), MaxNameBytes)
		return federation.Event{ID: cut(m.GetResourceId(), MaxNameBytes)}, invalid
	}
	return event, nil
}

func decode(m *rdpb.StreamResponse, policy Policy) (federation.Event, *federation.InvalidError) {
	if m == nil {
		return federation.Event{}, broken("response", federation.ReasonMissing, "required")
	}
	if invalid := checkURL(m.GetResourceUrl(), ResourceURL); invalid != nil {
		return federation.Event{}, invalid
	}
	resource := m.GetResource()
	if resource != nil && !resource.MessageIs((*typespb.FederatedService)(nil)) {
		return federation.Event{}, broken("resource.type_url", federation.ReasonUndecodable,
			"%s is not %s", federation.Quote(resource.GetTypeUrl()), ResourceURL)
	}
	switch operation := m.GetOperation(); {
	case operation == rdpb.StreamResponse_UPSERT:
		if invalid := policy.tooLarge(proto.Size(m)); invalid != nil {
			return federation.Event{}, invalid
		}
		return decodeUpsert(resource, m.GetResourceId(), policy)
	case operation == rdpb.StreamResponse_DELETE:
		return decodeDelete(resource, m.GetResourceId())
	case operation == rdpb.StreamResponse_UNKNOWN && resource == nil && m.GetResourceId() == "":
		return federation.Event{Operation: federation.Alive}, nil
	default:
		return federation.Event{}, broken("operation", federation.ReasonUndecodable,
			"%d is neither UPSERT (1) nor DELETE (2)", operation)
	}
}

func decodeUpsert(resource *anypb.Any, id string, policy Policy) (federation.Event, *federation.InvalidError) {
	if resource == nil {
		return federation.Event{}, broken("resource", federation.ReasonMissing, "required")
	}
	if invalid := checkCounts(resource.GetValue(), serviceFields[:]); invalid != nil {
		return federation.Event{}, invalid
	}
	var m typespb.FederatedService
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(resource.GetValue(), &m); err != nil {
		return federation.Event{}, undecodable()
	}
	service, invalid := decodeService(&m, policy)
	if invalid != nil {
		return federation.Event{}, invalid
	}
	if invalid := text("resource_id", id, MaxNameBytes); invalid != nil {
		return federation.Event{}, invalid
	}
	if id == service.Name {
		id = ""
	}
	return federation.Event{Operation: federation.Upsert, Name: service.Name, ID: id, Service: service}, nil
}

// decodeDelete takes no more than the name: what else the resource says cannot
// be a reason to keep a service that its owner withdrew.
func decodeDelete(resource *anypb.Any, id string) (federation.Event, *federation.InvalidError) {
	name, ok := stringIn(resource.GetValue(), nameField)
	if !ok {
		return federation.Event{}, undecodable()
	}
	field := "resource.name"
	if name != "" {
		id = ""
	} else {
		field, name = "resource_id", id
	}
	if invalid := required(field, name, MaxNameBytes); invalid != nil {
		return federation.Event{}, invalid
	}
	return federation.Event{Operation: federation.Delete, Name: name, ID: id}, nil
}

// undecodable does not show the error of package proto, whose text is not
// stable.
func undecodable() *federation.InvalidError {
	return broken("resource.value", federation.ReasonUndecodable, "malformed, or a string in it is not valid UTF-8")
}

// Encode returns the message for an Upsert, a Delete or an End.
func Encode(event federation.Event, nonce, context string) (*rdpb.StreamResponse, error) {
	resource, err := EncodeResource(event)
	if err != nil {
		return nil, err
	}
	return Respond(event, resource, nonce, context), nil
}

// EncodeResource returns the resource in the message for an Upsert, a Delete or
// an End, which has none. A Delete has one with no more than the name in it: the
// public definitions require one in every response.
func EncodeResource(event federation.Event) (*anypb.Any, error) {
	var resource *typespb.FederatedService
	switch event.Operation {
	case federation.Upsert:
		resource = EncodeService(event.Service)
	case federation.Delete:
		resource = &typespb.FederatedService{}
		if event.ID == "" {
			resource.Name = event.Name
		}
	case federation.End:
		return nil, nil //nolint:nilnil // it has no resource
	default:
		return nil, fmt.Errorf("no message says %q", event.Operation)
	}
	// A map has no order; the same service gets the same bytes nevertheless.
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(resource)
	if err != nil {
		return nil, fmt.Errorf("encode service %s: %w", federation.Quote(event.Name), err)
	}
	return &anypb.Any{TypeUrl: ResourceURL, Value: value}, nil
}

// Respond returns the message for an event whose resource is encoded. The same
// resource can be in any number of messages, as long as nobody changes it.
func Respond(event federation.Event, resource *anypb.Any, nonce, context string) *rdpb.StreamResponse {
	m := &rdpb.StreamResponse{
		Nonce: nonce, ResourceUrl: ResourceURL, ResourceId: cmp.Or(event.ID, event.Name), Resource: resource, Context: context,
	}
	switch event.Operation {
	case federation.Upsert:
		m.Operation = rdpb.StreamResponse_UPSERT
	case federation.Delete:
		m.Operation = rdpb.StreamResponse_DELETE
	}
	return m
}
