package wire

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// ResourceURL is the type of the resources that are exchanged.
const ResourceURL = "type.googleapis.com/federation.types.v1alpha2.FederatedService"

// The headers of a stream.
const (
	// CatalogEndHeader is the response header with which an owner announces that it
	// marks the end of its catalog, and CatalogEndMarked is its value. As a request header
	// with CatalogEndAwaited it says that the consumer concludes nothing before that, and so
	// may be told what is known of a catalog that is not complete.
	CatalogEndHeader  = "federation-catalog-end"
	CatalogEndMarked  = "marked"
	CatalogEndAwaited = "awaited"

	// ResumeHeader is the request header with the digests of what a consumer holds
	// already, and the response header in which the owner says which part of that it
	// sends; see package resume.
	ResumeHeader = "federation-resume"

	// PathHeader is the response header that says through which owners the services of a
	// stream have come: see [OwnerPath].
	PathHeader = "federation-path"
)

// Decode returns what m says. The error is always a
// [*federation.InvalidError], for the first rule that m breaks. Addresses are judged later, by a
// [AddressPolicy], which may change.
//
// A response without operation, resource and resource_id is an Alive; whether
// it is an End depends on the header of its stream. With a google.rpc.Status for a resource
// it is an Unavailable, or an Available. An empty resource_url is accepted, since the resource
// names its own type.
//
// A service is known by its name. The resource_id stands for the name only in a
// DELETE whose resource has none: owners built on the public implementation choose
// their IDs freely, and its examples use the fqdn. So the ID of an UPSERT is part
// of the event, even of an UPSERT that is refused.
func Decode(m *rdpb.StreamResponse) (Event, error) {
	event, invalid := decodeResponse(m)
	if invalid != nil {
		name, _ := stringIn(m.GetResource().GetValue(), nameField)
		invalid.Service = cutText(cmp.Or(name, m.GetResourceId()), limits.NameBytes)
		invalid.FQDN = fqdnIn(m.GetResource().GetValue())
		return Event{ID: cutText(m.GetResourceId(), limits.NameBytes)}, invalid
	}
	return event, nil
}

func decodeResponse(m *rdpb.StreamResponse) (Event, *federation.InvalidError) {
	if invalid := checkResponse(m, (*typespb.FederatedService)(nil), ResourceURL); invalid != nil {
		return Event{}, invalid
	}
	resource := m.GetResource()
	switch operation := m.GetOperation(); {
	case operation == rdpb.StreamResponse_UPSERT:
		if invalid := checkSize(m); invalid != nil {
			return Event{}, invalid
		}
		return decodeUpsert(resource, m.GetResourceId())
	case operation == rdpb.StreamResponse_DELETE:
		return decodeDelete(resource, m.GetResourceId())
	case operation == rdpb.StreamResponse_UNKNOWN && resource == nil && m.GetResourceId() == "":
		return Event{Operation: Alive}, nil
	default:
		return Event{}, federation.Invalidf("operation", federation.ReasonUndecodable,
			"%d is neither UPSERT (1) nor DELETE (2)", operation)
	}
}

// responseMessage has what the responses of both versions share.
type responseMessage interface {
	proto.Message
	GetResourceUrl() string
	GetResource() *anypb.Any
}

// checkResponse checks that there is a response, and the types that it names: that of kind,
// or none.
func checkResponse(m responseMessage, kind proto.Message, url string) *federation.InvalidError {
	if !m.ProtoReflect().IsValid() {
		return federation.Invalidf("response", federation.ReasonMissing, "required")
	}
	if invalid := checkURL(m.GetResourceUrl(), url); invalid != nil {
		return invalid
	}
	if resource := m.GetResource(); resource != nil && !resource.MessageIs(kind) {
		return federation.Invalidf("resource.type_url", federation.ReasonUndecodable, "%s is not %s", safetext.Quote(resource.GetTypeUrl()), url)
	}
	return nil
}

// checkSize refuses a message over the limit. It is called before the resource is decoded, which
// takes several times its size in memory.
func checkSize(m proto.Message) *federation.InvalidError {
	if size := proto.Size(m); size > MaxMessageBytes {
		return federation.Invalidf("", federation.ReasonLimit, "message of %d bytes is larger than the %d that are allowed", size, MaxMessageBytes)
	}
	return nil
}

// unmarshalResource decodes a resource whose repeated fields are fields.
func unmarshalResource(resource *anypb.Any, fields []repeatedField, m proto.Message) *federation.InvalidError {
	if resource == nil {
		return federation.Invalidf("resource", federation.ReasonMissing, "required")
	}
	if invalid := checkCounts(resource.GetValue(), fields); invalid != nil {
		return invalid
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(resource.GetValue(), m); err != nil {
		return undecodableError()
	}
	return nil
}

func decodeUpsert(resource *anypb.Any, id string) (Event, *federation.InvalidError) {
	var m typespb.FederatedService
	if invalid := unmarshalResource(resource, serviceFields[:], &m); invalid != nil {
		return Event{}, invalid
	}
	service, invalid := decodeService(&m)
	if invalid != nil {
		return Event{}, invalid
	}
	if invalid := limitError("resource_id", limits.CheckText(id, limits.NameBytes)); invalid != nil {
		return Event{}, invalid
	}
	if id == service.Name {
		id = ""
	}
	return Event{Operation: Upsert, Name: service.Name, ID: id, Service: service}, nil
}

// decodeDelete returns the deletion of a service. It reads only the name, because nothing else in
// the resource can be a reason to keep a service that its owner has withdrawn.
func decodeDelete(resource *anypb.Any, id string) (Event, *federation.InvalidError) {
	name, ok := stringIn(resource.GetValue(), nameField)
	if !ok {
		return Event{}, undecodableError()
	}
	field := "resource.name"
	if name != "" {
		id = ""
	} else {
		field, name = "resource_id", id
	}
	if invalid := limitError(field, limits.CheckRequired(name, limits.NameBytes)); invalid != nil {
		return Event{}, invalid
	}
	return Event{Operation: Delete, Name: name, ID: id}, nil
}

// fqdnIn returns the fqdn of the service in a refused resource, as far as it is known.
func fqdnIn(resource []byte) string {
	text, _ := stringIn(resource, fqdnField)
	if fqdn, err := federation.ParseFQDN(text); err == nil {
		return fqdn.String()
	}
	return cutText(text, limits.NameBytes)
}

// undecodableError returns the error for malformed bytes, without the error of package proto, whose
// text is not stable.
func undecodableError() *federation.InvalidError {
	return federation.Invalidf("resource.value", federation.ReasonUndecodable, "malformed, or a string in it is not valid UTF-8")
}

// EncodeDelete returns the resource in the message for a Delete. It has only the name, and is there since
// the public definitions require a resource in every response.
func EncodeDelete(event Event) (*anypb.Any, error) {
	resource := new(typespb.FederatedService)
	if event.ID == "" {
		resource.Name = event.Name
	}
	return marshalResource(event.Name, resource, ResourceURL)
}

// marshalResource encodes the resource for a service.
func marshalResource(name string, resource proto.Message, url string) (*anypb.Any, error) {
	// Deterministic, since a map has no order: equal services get equal bytes.
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(resource)
	if err != nil {
		return nil, fmt.Errorf("encode service %s: %w", safetext.Quote(name), err)
	}
	return &anypb.Any{TypeUrl: url, Value: value}, nil
}

// NewResponse returns the message for an event whose resource is encoded already. One
// resource can be in any number of messages, as long as nothing changes it.
func NewResponse(event Event, resource *anypb.Any, nonce, context string) *rdpb.StreamResponse {
	m := &rdpb.StreamResponse{
		Nonce: nonce, ResourceUrl: ResourceURL, ResourceId: cmp.Or(event.ID, event.Name), Resource: resource, Context: context,
	}
	switch event.Operation {
	case Upsert:
		m.Operation = rdpb.StreamResponse_UPSERT
	case Delete:
		m.Operation = rdpb.StreamResponse_DELETE
	}
	return m
}
