package wire

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
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
func DecodeV1Alpha1(m *rdpb1.StreamResponse) (Event, error) {
	event, invalid := decodeV1Alpha1(m)
	if invalid != nil {
		id, _ := stringIn(m.GetResource().GetValue(), idField)
		invalid.Service = cutText(id, limits.NameBytes)
		invalid.FQDN = fqdnIn(m.GetResource().GetValue())
		return Event{}, invalid
	}
	return event, nil
}

func decodeV1Alpha1(m *rdpb1.StreamResponse) (Event, *federation.InvalidError) {
	if invalid := checkResponse(m, (*typespb1.FederatedService)(nil), ResourceURLV1Alpha1); invalid != nil {
		return Event{}, invalid
	}
	resource := m.GetResource()
	switch operation := m.GetOperation(); {
	// Hamlet: methods are idempotent and every message has the full object, so
	// these two are one.
	case operation == rdpb1.StreamResponse_CREATE, operation == rdpb1.StreamResponse_UPDATE:
		if invalid := checkSize(m); invalid != nil {
			return Event{}, invalid
		}
		return decodeUpsertV1Alpha1(resource)
	case operation == rdpb1.StreamResponse_DELETE:
		return decodeDeleteV1Alpha1(resource)
	case operation == rdpb1.StreamResponse_UNKNOWN && resource == nil:
		return Event{Operation: Alive}, nil
	default:
		return Event{}, federation.Invalidf("operation", federation.ReasonUndecodable,
			"%d is none of CREATE (1), UPDATE (2), DELETE (3)", operation)
	}
}

func decodeUpsertV1Alpha1(resource *anypb.Any) (Event, *federation.InvalidError) {
	var m typespb1.FederatedService
	if invalid := unmarshalResource(resource, serviceFieldsV1Alpha1[:], &m); invalid != nil {
		return Event{}, invalid
	}
	service, invalid := decodeServiceV1Alpha1(&m)
	if invalid != nil {
		return Event{}, invalid
	}
	return Event{Operation: Upsert, Name: service.Name, Service: service}, nil
}

// decodeDeleteV1Alpha1 takes no more than the id, as decodeDelete does.
func decodeDeleteV1Alpha1(resource *anypb.Any) (Event, *federation.InvalidError) {
	if resource == nil {
		return Event{}, federation.Invalidf("resource", federation.ReasonMissing, "required")
	}
	id, ok := stringIn(resource.GetValue(), idField)
	if !ok {
		return Event{}, undecodableError()
	}
	if invalid := limitError("resource.id", limits.CheckRequired(id, limits.NameBytes)); invalid != nil {
		return Event{}, invalid
	}
	return Event{Operation: Delete, Name: id}, nil
}

// decodeServiceV1Alpha1 returns the service that m describes. The name in m, which
// is for people and need not be unique, has no place in the result.
//
// The endpoints belong to every protocol, so the instances have no selectors.
func decodeServiceV1Alpha1(m *typespb1.FederatedService) (*federation.Service, *federation.InvalidError) {
	if invalid := cmp.Or(
		limitError("id", limits.CheckRequired(m.GetId(), limits.NameBytes)),
		limitError("name", limits.CheckText(m.GetName(), limits.NameBytes)),
	); invalid != nil {
		return nil, invalid
	}
	var p fieldParser
	s := &federation.Service{
		Name:        m.GetId(),
		FQDN:        p.parseFQDN(m.GetFqdn()),
		Description: m.GetDescription(),
		Tags:        m.GetTags(),
		Labels:      federation.Pairs(m.GetLabels()),
		SANs:        []string{m.GetSan()},
		Endpoints:   make([]federation.Endpoint, len(m.GetEndpoints())),
		Instances:   p.instancesV1Alpha1(m),
	}
	for i, e := range m.GetEndpoints() {
		s.Endpoints[i] = federation.Endpoint{Address: p.addressV1Alpha1(i, e.GetAddress()), Port: p.parsePort(i, e.GetPort())}
	}
	invalid := p.validateService(s)
	if invalid == nil {
		return s, nil
	}
	switch invalid.Field {
	case "sans[0]":
		invalid.Field = "san"
		if m.GetSan() == "" {
			invalid.Rule = "required"
		}
	case "instances":
		invalid.Field = "protocols"
	}
	return nil, invalid
}

// addressV1Alpha1 parses the address of the i-th endpoint. The draft allows a CIDR
// block there, which does not say which of its addresses answers.
func (p *fieldParser) addressV1Alpha1(i int, s string) federation.Address {
	if _, err := netip.ParsePrefix(s); err == nil {
		p.failAtf("endpoints", i, "address", federation.ReasonAddress,
			"%s is a CIDR block, an endpoint must be one IP address or host name", safetext.Quote(s))
		return federation.Address{}
	}
	return p.parseAddress(i, s)
}

// instancesV1Alpha1 returns an instance for each of the protocols, without an ID:
// v1alpha1 has none. It returns no instance when there is one protocol that does
// not parse, or too many.
func (p *fieldParser) instancesV1Alpha1(m *typespb1.FederatedService) []federation.Instance {
	if broken := limits.CheckCount(len(m.GetProtocols()), MaxProtocols); broken != nil {
		p.failField("instances", limitError("protocols", broken))
		return nil
	}
	// Hamlet, draft of 2019: the id "will be the value sent as the SNI header".
	metadata := []federation.Pair{{Key: sni, Value: m.GetId()}}
	var instances []federation.Instance
	for i, name := range m.GetProtocols() {
		protocol, ok := parseProtocol(name)
		if !ok {
			invalid := federation.Invalidf("", federation.ReasonProtocol, unknownProtocol, safetext.Quote(name))
			if name == "" {
				invalid.Reason, invalid.Rule = federation.ReasonMissing, "required"
			}
			invalid.Field = fmt.Sprintf("protocols[%d]", i)
			p.failField("instances", invalid)
			return nil
		}
		if !slices.ContainsFunc(instances, func(in federation.Instance) bool { return in.Protocol == protocol }) {
			instances = append(instances, federation.Instance{Protocol: protocol, Metadata: metadata, Unnamed: true})
		}
	}
	return slices.Clip(instances)
}

// EncodeV1Alpha1 is [Encode] for v1alpha1. Known says that the consumer has a
// version of the service, which makes an Upsert an UPDATE instead of a CREATE.
//
// It fails for a service without a SAN, for one whose instances have another SNI
// than its name, and for one whose protocols are reached through different
// endpoints: v1alpha1 cannot express them.
func EncodeV1Alpha1(event Event, nonce string, known bool) (*rdpb1.StreamResponse, error) {
	m := &rdpb1.StreamResponse{Nonce: nonce, ResourceUrl: ResourceURLV1Alpha1}
	var (
		resource *typespb1.FederatedService
		err      error
	)
	switch event.Operation {
	case Upsert:
		m.Operation = rdpb1.StreamResponse_CREATE
		if known {
			m.Operation = rdpb1.StreamResponse_UPDATE
		}
		if resource, err = encodeServiceV1Alpha1(event.Service); err != nil {
			return nil, err
		}
	case Delete:
		m.Operation = rdpb1.StreamResponse_DELETE
		resource = &typespb1.FederatedService{Id: event.Name}
	case End:
		return m, nil
	default:
		return nil, fmt.Errorf("no message says %q", event.Operation)
	}
	if m.Resource, err = marshalResource(event.Name, resource, ResourceURLV1Alpha1); err != nil {
		return nil, err
	}
	return m, nil
}

// encodeServiceV1Alpha1 returns the message that describes s, or why there is none.
// The message may say less than the service: it has no place for the instances'
// IDs, metadata and selectors, for all sans but the first, and for endpoints
// that no instance is reached through. It must say nothing that is not true.
func encodeServiceV1Alpha1(s *federation.Service) (*typespb1.FederatedService, error) {
	if len(s.SANs) == 0 {
		// None can be made up: clients trust whoever has the identity.
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
		Fqdn:        trimFinalDot(s.FQDN.String()),
		Id:          s.Name,
		San:         s.SANs[0],
	}
	var reached [federation.MTLS + 1][]bool // whether a protocol is reached through an endpoint
	for i := range s.Instances {
		in := &s.Instances[i]
		if slices.ContainsFunc(in.Metadata, func(p federation.Pair) bool { return strings.EqualFold(p.Key, sni) && p.Value != s.Name }) {
			return nil, fmt.Errorf("v1alpha1 has the name of the service for its SNI, and instance %s has another", safetext.Quote(in.ID))
		}
		if reached[in.Protocol] == nil {
			reached[in.Protocol] = make([]bool, len(s.Endpoints))
			m.Protocols = append(m.Protocols, in.Protocol.String())
		}
		markReached(reached[in.Protocol], in, s.Endpoints)
	}
	first := s.Instances[0].Protocol
	for protocol := range reached {
		if reached[protocol] != nil && !slices.Equal(reached[protocol], reached[first]) {
			return nil, fmt.Errorf("v1alpha1 has the same endpoints for all protocols, and %s and %s are reached through different ones",
				first, federation.Protocol(protocol))
		}
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; reached[first][i] {
			m.Endpoints = append(m.Endpoints, &typespb1.FederatedService_Endpoint{
				Address: trimFinalDot(e.Address.String()), Port: uint32(e.Port),
			})
		}
	}
	return m, nil
}

func encodePairs(pairs []federation.Pair) map[string]string {
	if len(pairs) == 0 {
		return nil
	}
	m := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		m[pair.Key] = pair.Value
	}
	return m
}

// markReached marks the endpoints that the instance is reached through: those that its
// selector matches and, as the specification has it, all where it matches none.
func markReached(reached []bool, in *federation.Instance, endpoints []federation.Endpoint) {
	matched := false
	for i := range endpoints {
		if in.Selects(endpoints[i].Labels) {
			reached[i], matched = true, true
		}
	}
	for i := range reached {
		reached[i] = reached[i] || !matched
	}
}

// SubscribeV1Alpha1 is [Subscribe] for v1alpha1.
func SubscribeV1Alpha1() *rdpb1.StreamRequest {
	return &rdpb1.StreamRequest{ResourceUrl: ResourceURLV1Alpha1}
}

// AnswerV1Alpha1 is [Answer] for v1alpha1.
func AnswerV1Alpha1(nonce string, refusal *federation.InvalidError) *rdpb1.StreamRequest {
	return &rdpb1.StreamRequest{ResourceUrl: ResourceURLV1Alpha1, ResponseNonce: nonce, Status: answerStatus(refusal)}
}

// ParseRequestV1Alpha1 is [ParseRequest] for v1alpha1, which has no context.
func ParseRequestV1Alpha1(m *rdpb1.StreamRequest) (Request, error) {
	return parseRequest(m, m.GetStatus(), ResourceURLV1Alpha1, "")
}
