package wire

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// DecodeService returns the service that m describes. The error is always a
// [*federation.InvalidError], for the first rule that m breaks. The service
// takes over the slices of m, which must not be changed afterwards.
//
// An instance whose ID is no DNS name is valid; it has no name of its own.
func DecodeService(m *typespb.FederatedService, policy Policy) (*federation.Service, error) {
	service, invalid := decodeService(m, policy)
	if invalid != nil {
		invalid.Service = cut(m.GetName(), MaxNameBytes)
		return nil, invalid
	}
	return service, nil
}

// The internal functions return the concrete error, since whoever encloses them
// adds to it.
func decodeService(m *typespb.FederatedService, policy Policy) (*federation.Service, *federation.InvalidError) {
	if invalid := cmp.Or(
		required("name", m.GetName(), MaxNameBytes),
		text("description", m.GetDescription(), MaxDescriptionBytes),
		texts("tags", m.GetTags(), MaxTags, MaxTagBytes),
		texts("sans", m.GetSans(), MaxSANs, MaxSANBytes),
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
	endpoints, invalid := decodeAll("endpoints", m.GetEndpoints(), MaxEndpoints, policy.decodeEndpoint)
	if invalid != nil {
		return nil, invalid
	}
	if invalid := checkIDs(m.GetInstances()); invalid != nil {
		return nil, invalid
	}
	instances, invalid := decodeAll("instances", m.GetInstances(), MaxInstances, decodeInstance)
	if invalid != nil {
		return nil, invalid
	}
	shareLists(endpoints, instances)
	return &federation.Service{
		Name:        m.GetName(),
		FQDN:        fqdn,
		Description: m.GetDescription(),
		Tags:        share(m.GetTags()),
		Labels:      labels,
		SANs:        slices.Clip(m.GetSans()),
		Endpoints:   endpoints,
		Instances:   instances,
	}, nil
}

func decodeFQDN(s string) (federation.FQDN, *federation.InvalidError) {
	if s == "" {
		return federation.FQDN{}, broken("fqdn", federation.ReasonMissing, "required")
	}
	fqdn, err := federation.ParseFQDN(s)
	if err != nil {
		return federation.FQDN{}, broken("fqdn", federation.ReasonName, "%v: %s", err, federation.Quote(s))
	}
	return fqdn, nil
}

// decodeAll decodes the entries of a list that must have at least one.
func decodeAll[M, T any](field string, list []M, limit int, decode func(M) (T, *federation.InvalidError)) ([]T, *federation.InvalidError) {
	switch {
	case len(list) == 0:
		return nil, broken(field, federation.ReasonMissing, "at least one is required")
	case len(list) > limit:
		return nil, tooMany(field, limit)
	}
	values := make([]T, len(list))
	for i, m := range list {
		var invalid *federation.InvalidError
		if values[i], invalid = decode(m); invalid != nil {
			return nil, within(invalid, "%s[%d]", field, i)
		}
	}
	return values, nil
}

func (p Policy) decodeEndpoint(m *typespb.FederatedService_Endpoint) (federation.Endpoint, *federation.InvalidError) {
	endpoint, invalid := p.decodePlace(m.GetAddress(), m.GetPort())
	if invalid != nil {
		return federation.Endpoint{}, invalid
	}
	if invalid := cmp.Or(
		texts("labels", m.GetLabels(), MaxLabels, MaxTagBytes),
		text("description", m.GetDescription(), MaxDescriptionBytes),
	); invalid != nil {
		return federation.Endpoint{}, invalid
	}
	endpoint.Labels, endpoint.Description = share(m.GetLabels()), m.GetDescription()
	return endpoint, nil
}

// decodePlace returns what an endpoint is in any version: an address and a port.
func (p Policy) decodePlace(address string, port uint32) (federation.Endpoint, *federation.InvalidError) {
	place, invalid := p.decodeAddress(address)
	if invalid != nil {
		return federation.Endpoint{}, invalid
	}
	if port == 0 || port > math.MaxUint16 {
		return federation.Endpoint{}, broken("port", federation.ReasonPort, "%d is not in 1 to 65535", port)
	}
	return federation.Endpoint{Address: place, Port: uint16(port)}, nil
}

func (p Policy) decodeAddress(s string) (federation.Address, *federation.InvalidError) {
	if s == "" {
		return federation.Address{}, broken("address", federation.ReasonMissing, "required")
	}
	address, err := federation.ParseAddress(s)
	if err != nil {
		return federation.Address{}, broken("address", federation.ReasonAddress, "%v: %s", err, federation.Quote(s))
	}
	if invalid := p.check(address); invalid != nil {
		return federation.Address{}, invalid
	}
	return address, nil
}

func decodeInstance(m *typespb.FederatedService_Instance) (federation.Instance, *federation.InvalidError) {
	if invalid := cmp.Or(
		required("id", m.GetId(), MaxNameBytes),
		texts("endpoint_selector", m.GetEndpointSelector(), MaxSelectors, MaxTagBytes),
		text("description", m.GetDescription(), MaxDescriptionBytes),
	); invalid != nil {
		return federation.Instance{}, invalid
	}
	protocol, invalid := decodeProtocol(m.GetProtocol())
	if invalid != nil {
		return federation.Instance{}, invalid
	}
	metadata, invalid := decodePairs("metadata", m.GetMetadata(), MaxMetadata)
	if invalid != nil {
		return federation.Instance{}, invalid
	}
	return federation.Instance{
		ID:               word(m.GetId()),
		Protocol:         protocol,
		Metadata:         metadata,
		EndpointSelector: share(m.GetEndpointSelector()),
		Description:      m.GetDescription(),
	}, nil
}

// checkIDs refuses instances that are not told apart: the ID is how an update, a
// client and a DNS name refer to one of them. IDs that are equal only after case
// is folded are two. It comes before the rules for each instance, so that whoever
// tries the instances one by one to find all mistakes is told of this one as well.
func checkIDs(instances []*typespb.FederatedService_Instance) *federation.InvalidError {
	if len(instances) < 2 || len(instances) > MaxInstances {
		return nil
	}
	first := make(map[string]int, len(instances))
	for i, in := range instances {
		id := in.GetId()
		if id == "" {
			continue // which is another mistake
		}
		if j, ok := first[id]; ok {
			return broken(fmt.Sprintf("instances[%d].id", i), federation.ReasonName, "%s is the ID of instances[%d] as well", federation.Quote(id), j)
		}
		first[id] = i
	}
	return nil
}

func decodeProtocol(s string) (federation.Protocol, *federation.InvalidError) {
	if s == "" {
		return 0, broken("protocol", federation.ReasonMissing, "required")
	}
	if len(s) <= len("HTTPS") { // no name is longer; ParseProtocol would copy the string
		if protocol, ok := federation.ParseProtocol(s); ok {
			return protocol, nil
		}
	}
	return 0, broken("protocol", federation.ReasonProtocol,
		"%s is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS", federation.Quote(s))
}

// decodePairs returns the entries of a map, sorted by key. They are checked in
// that order, so that the same map always gets the same error.
func decodePairs(field string, m map[string]string, entries int) ([]federation.Pair, *federation.InvalidError) {
	if len(m) > entries {
		return nil, tooMany(field, entries)
	}
	if len(m) == 0 {
		return nil, nil
	}
	pairs := make([]federation.Pair, 0, len(m))
	for key, value := range m {
		pairs = append(pairs, federation.Pair{Key: word(key), Value: word(value)})
	}
	slices.SortFunc(pairs, func(a, b federation.Pair) int { return strings.Compare(a.Key, b.Key) })
	for _, pair := range pairs {
		if invalid := cmp.Or(text("key", pair.Key, MaxKeyBytes), text("value", pair.Value, MaxValueBytes)); invalid != nil {
			return nil, within(invalid, "%s[%s]", field, federation.Quote(pair.Key))
		}
	}
	return pairs, nil
}

// EncodeService returns the message that describes s, with names in lower case
// and without a final dot. It shares the slices of s.
func EncodeService(s *federation.Service) *typespb.FederatedService {
	m := &typespb.FederatedService{
		Name:        s.Name,
		Description: s.Description,
		Tags:        s.Tags,
		Labels:      encodePairs(s.Labels),
		Fqdn:        relative(s.FQDN.String()),
		Endpoints:   make([]*typespb.FederatedService_Endpoint, len(s.Endpoints)),
		Sans:        s.SANs,
		Instances:   make([]*typespb.FederatedService_Instance, len(s.Instances)),
	}
	for i, e := range s.Endpoints {
		m.Endpoints[i] = &typespb.FederatedService_Endpoint{
			Address:     relative(e.Address.String()),
			Port:        uint32(e.Port),
			Labels:      e.Labels,
			Description: e.Description,
		}
	}
	for i, in := range s.Instances {
		m.Instances[i] = &typespb.FederatedService_Instance{
			Id:               in.ID,
			Protocol:         in.Protocol.String(),
			Metadata:         encodePairs(in.Metadata),
			EndpointSelector: in.EndpointSelector,
			Description:      in.Description,
		}
	}
	return m
}

// relative strips the final dot of a name: the specification's examples have
// none, so a peer may not expect it.
func relative(name string) string { return strings.TrimSuffix(name, ".") }

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
