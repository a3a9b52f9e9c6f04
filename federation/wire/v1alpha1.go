package wire

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	typespb1 "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha1"
)

// ResourceURLV1Alpha1 is the type of the resources that are exchanged in
// v1alpha1.
const ResourceURLV1Alpha1 = "type.googleapis.com/federation.types.v1alpha1.FederatedService"

// sni is the key of the metadata that holds what a client sends as SNI. The
// specification has it in upper case, the comment of the public definition in
// lower case, so owners send either.
const sni = "SNI"

// DecodeV1Alpha1 is [Decode] for v1alpha1. A service is known by its id.
func DecodeV1Alpha1(m *rdpb1.StreamResponse, policy Policy) (federation.Event, error) {
	event, invalid := decodeV1Alpha1(m, policy)
	if invalid != nil {
		id, _ := stringIn(m.GetResource().GetValue(), idField)
		invalid.Service = cut(id, MaxNameBytes)
		return federation.Event{}, invalid
	}
	return event, nil
}

func decodeV1Alpha1(m *rdpb1.StreamResponse, policy Policy) (federation.Event, *federation.InvalidError) {
	if m == nil {
		return federation.Event{}, broken("response", federation.ReasonMissing, "required")
	}
	if invalid := checkURL(m.GetResourceUrl(), ResourceURLV1Alpha1); invalid != nil {
		return federation.Event{}, invalid
	}
	resource := m.GetResource()
	if resource != nil && !resource.MessageIs((*typespb1.FederatedService)(nil)) {
		return federation.Event{}, broken("resource.type_url", federation.ReasonUndecodable,
			"%s is not %s", federation.Quote(resource.GetTypeUrl()), ResourceURLV1Alpha1)
	}
	switch operation := m.GetOperation(); {
	// Hamlet: methods are idempotent and every message has the full object, so
	// these two are one.
	case operation == rdpb1.StreamResponse_CREATE, operation == rdpb1.StreamResponse_UPDATE:
		if invalid := policy.tooLarge(proto.Size(m)); invalid != nil {
			return federation.Event{}, invalid
		}
		return decodeUpsertV1Alpha1(resource, policy)
	case operation == rdpb1.StreamResponse_DELETE:
		return decodeDeleteV1Alpha1(resource)
	case operation == rdpb1.StreamResponse_UNKNOWN && resource == nil:
		return federation.Event{Operation: federation.Alive}, nil
	default:
		return federation.Event{}, broken("operation", federation.ReasonUndecodable,
			"%d is none of CREATE (1), UPDATE (2), DELETE (3)", operation)
	}
}

func decodeUpsertV1Alpha1(resource *anypb.Any, policy Policy) (federation.Event, *federation.InvalidError) {
	if resource == nil {
		return federation.Event{}, broken("resource", federation.ReasonMissing, "required")
	}
	if invalid := checkCounts(resource.GetValue(), serviceFieldsV1Alpha1[:]); invalid != nil {
		return federation.Event{}, invalid
	}
	var m typespb1.FederatedService
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(resource.GetValue(), &m); err != nil {
		return federation.Event{}, undecodable()
	}
	service, invalid := decodeServiceV1Alpha1(&m, policy)
	if invalid != nil {
		return federation.Event{}, invalid
	}
	return federation.Event{Operation: federation.Upsert, Name: service.Name, Service: service}, nil
}

// decodeDeleteV1Alpha1 takes no more than the id, as decodeDelete does.
func decodeDeleteV1Alpha1(resource *anypb.Any) (federation.Event, *federation.InvalidError) {
	if resource == nil {
		return federation.Event{}, broken("resource", federation.ReasonMissing, "required")
	}
	id, ok := stringIn(resource.GetValue(), idField)
	if !ok {
		return federation.Event{}, undecodable()
	}
	if invalid := required("resource.id", id, MaxNameBytes); invalid != nil {
		return federation.Event{}, invalid
	}
	return federation.Event{Operation: federation.Delete, Name: id}, nil
}

// decodeServiceV1Alpha1 returns the service that m describes. Its name, which is
// for people and need not be unique, has no place in the result.
//
// The endpoints belong to every protocol, so the instances have no selectors.
func decodeServiceV1Alpha1(m *typespb1.FederatedService, policy Policy) (*federation.Service, *federation.InvalidError) {
	if invalid := cmp.Or(
		required("id", m.GetId(), MaxNameBytes),
		text("name", m.GetName(), MaxNameBytes),
		text("description", m.GetDescription(), MaxDescriptionBytes),
		texts("tags", m.GetTags(), MaxTags, MaxTagBytes),
		required("san", m.GetSan(), MaxSANBytes),
	); invalid != nil {
		return nil, invalid
	}
	fqdn, invalid := decodeFQDN(m.GetFqdn())
	if invalid != nil {
		return nil, invalid
	}
	labels, invalid := decodePairs("labels", m.GetLabels(), MaxLabels)
	if invalid != nil {
		return nil, invalid
	}
	endpoints, invalid := decodeAll("endpoints", m.GetEndpoints(), MaxEndpoints, policy.decodeEndpointV1Alpha1)
	if invalid != nil {
		return nil, invalid
	}
	instances, invalid := decodeInstancesV1Alpha1(m)
	if invalid != nil {
		return nil, invalid
	}
	return &federation.Service{
		Name:        m.GetId(),
		FQDN:        fqdn,
		Description: m.GetDescription(),
		Tags:        share(m.GetTags()),
		Labels:      labels,
		SANs:        []string{m.GetSan()},
		Endpoints:   endpoints,
		Instances:   instances,
	}, nil
}

func (p Policy) decodeEndpointV1Alpha1(m *typespb1.FederatedService_Endpoint) (federation.Endpoint, *federation.InvalidError) {
	if _, err := netip.ParsePrefix(m.GetAddress()); err == nil {
		// It does not say which of its addresses answers.
		return federation.Endpoint{}, broken("address", federation.ReasonAddress,
			"%s is a CIDR block, an endpoint must be one IP address or host name", federation.Quote(m.GetAddress()))
	}
	return p.decodePlace(m.GetAddress(), m.GetPort())
}

// decodeInstancesV1Alpha1 returns an instance for each of the protocols, without
// an identity: v1alpha1 has none.
func decodeInstancesV1Alpha1(m *typespb1.FederatedService) ([]federation.Instance, *federation.InvalidError) {
	switch list := m.GetProtocols(); {
	case len(list) == 0:
		return nil, broken("protocols", federation.ReasonMissing, "at least one is required")
	case len(list) > MaxProtocols:
		return nil, tooMany("protocols", MaxProtocols)
	}
	// Hamlet, draft of 2019: the id "will be the value sent as the SNI header".
	metadata := []federation.Pair{{Key: sni, Value: m.GetId()}}
	var instances []federation.Instance
	for i, name := range m.GetProtocols() {
		protocol, invalid := decodeProtocol(name)
		if invalid != nil {
			invalid.Field = fmt.Sprintf("protocols[%d]", i)
			return nil, invalid
		}
		if !slices.ContainsFunc(instances, func(in federation.Instance) bool { return in.Protocol == protocol }) {
			instances = append(instances, federation.Instance{Protocol: protocol, Metadata: metadata, Unnamed: true})
		}
	}
	return slices.Clip(instances), nil
}

// EncodeV1Alpha1 is [Encode] for v1alpha1. Known tells whether the consumer has a
// version of the service, which makes an Upsert an UPDATE. It fails as
// [CheckV1Alpha1] does.
func EncodeV1Alpha1(event federation.Event, nonce string, known bool) (*rdpb1.StreamResponse, error) {
	m := &rdpb1.StreamResponse{Nonce: nonce, ResourceUrl: ResourceURLV1Alpha1}
	var resource *typespb1.FederatedService
	switch event.Operation {
	case federation.Upsert:
		m.Operation = rdpb1.StreamResponse_CREATE
		if known {
			m.Operation = rdpb1.StreamResponse_UPDATE
		}
		var err error
		if resource, err = encodeServiceV1Alpha1(event.Service); err != nil {
			return nil, fmt.Errorf("encode service %s: %w", federation.Quote(event.Name), err)
		}
	case federation.Delete:
		m.Operation = rdpb1.StreamResponse_DELETE
		resource = &typespb1.FederatedService{Id: event.Name}
	case federation.End:
		return m, nil
	default:
		return nil, fmt.Errorf("no message says %q", event.Operation)
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(resource)
	if err != nil {
		return nil, fmt.Errorf("encode service %s: %w", federation.Quote(event.Name), err)
	}
	m.Resource = &anypb.Any{TypeUrl: ResourceURLV1Alpha1, Value: value}
	return m, nil
}

// CheckV1Alpha1 tells why v1alpha1 cannot express the service; nil where it can.
//
// The message may say less than the service: it has no place for the instances'
// IDs, metadata and selectors, for all sans but the first, and for endpoints
// that no instance is reached through. It must say nothing that is not so.
func CheckV1Alpha1(s *federation.Service) error {
	_, err := encodeServiceV1Alpha1(s)
	return err
}

func encodeServiceV1Alpha1(s *federation.Service) (*typespb1.FederatedService, error) {
	if len(s.SANs) == 0 {
		// An identity is not to be made up: clients trust whoever has it.
		return nil, errors.New("v1alpha1 requires a SAN; add one to sans")
	}
	if len(s.Instances) == 0 {
		return nil, errors.New("v1alpha1 requires a protocol, and the service has no instance that speaks one")
	}
	m := &typespb1.FederatedService{
		Name:        s.Name,
		Description: s.Description,
		Tags:        s.Tags,
		Labels:      encodePairs(s.Labels),
		Fqdn:        relative(s.FQDN.String()),
		Id:          s.Name,
		San:         s.SANs[0],
	}
	var ends [federation.MTLS + 1][]bool // what each protocol is reached through, by the index of the endpoint
	for i := range s.Instances {
		in := &s.Instances[i]
		if slices.ContainsFunc(in.Metadata, func(p federation.Pair) bool { return strings.EqualFold(p.Key, sni) && p.Value != s.Name }) {
			return nil, fmt.Errorf("v1alpha1 has the name of the service for its SNI, and instance %s has another", federation.Quote(in.ID))
		}
		if ends[in.Protocol] == nil {
			ends[in.Protocol] = make([]bool, len(s.Endpoints))
			m.Protocols = append(m.Protocols, in.Protocol.String())
		}
		reach(ends[in.Protocol], in, s.Endpoints)
	}
	first := s.Instances[0].Protocol
	for protocol := range ends {
		if ends[protocol] != nil && !slices.Equal(ends[protocol], ends[first]) {
			return nil, fmt.Errorf("v1alpha1 has the same endpoints for all protocols, and %s and %s are reached through different ones",
				first, federation.Protocol(protocol))
		}
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; ends[first][i] {
			m.Endpoints = append(m.Endpoints, &typespb1.FederatedService_Endpoint{
				Address: relative(e.Address.String()), Port: uint32(e.Port),
			})
		}
	}
	return m, nil
}

// reach marks the endpoints that the instance is reached through: those that its
// selector matches and, as the specification has it, all where it matches none.
func reach(ends []bool, in *federation.Instance, endpoints []federation.Endpoint) {
	matched := false
	for i := range endpoints {
		if in.Selects(endpoints[i].Labels) {
			ends[i], matched = true, true
		}
	}
	for i := range ends {
		ends[i] = ends[i] || !matched
	}
}

// SubscribeV1Alpha1 is [Subscribe] for v1alpha1.
func SubscribeV1Alpha1() *rdpb1.StreamRequest {
	return &rdpb1.StreamRequest{ResourceUrl: ResourceURLV1Alpha1}
}

// AckV1Alpha1 is [Ack] for v1alpha1.
func AckV1Alpha1(nonce string) *rdpb1.StreamRequest {
	return &rdpb1.StreamRequest{ResourceUrl: ResourceURLV1Alpha1, ResponseNonce: nonce, Status: accepted()}
}

// NackV1Alpha1 is [Nack] for v1alpha1.
func NackV1Alpha1(nonce string, err error) *rdpb1.StreamRequest {
	return &rdpb1.StreamRequest{ResourceUrl: ResourceURLV1Alpha1, ResponseNonce: nonce, Status: refused(err)}
}

// ParseRequestV1Alpha1 is [ParseRequest] for v1alpha1, which has no context.
func ParseRequestV1Alpha1(m *rdpb1.StreamRequest) (Request, error) {
	if m == nil {
		return Request{}, broken("request", federation.ReasonMissing, "required")
	}
	request := parseRequest(m.GetResponseNonce(), m.GetStatus())
	if invalid := checkRequestURL(m.GetResourceUrl(), ResourceURLV1Alpha1, request.Initial); invalid != nil {
		return Request{}, invalid
	}
	return request, nil
}
