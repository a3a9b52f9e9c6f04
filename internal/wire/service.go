package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// DecodeService returns the service that m describes, valid by
// [federation.Service.Validate] and with addresses that the policy admits. The
// error is always a [*federation.InvalidError], for the first rule that m breaks.
// The service takes over the slices of m, which must not be changed afterwards.
//
// An instance whose ID is not a DNS name is valid; it has no name of its own.
func DecodeService(m *typespb.FederatedService, policy AddressPolicy) (*federation.Service, error) {
	service, invalid := decodeService(m)
	if invalid == nil {
		invalid = policy.Check(service)
	}
	if invalid != nil {
		invalid.Service = cutText(m.GetName(), limits.NameBytes)
		return nil, invalid
	}
	return service, nil
}

// The internal functions return the concrete error, because the caller that knows the
// enclosing field adds its path.
func decodeService(m *typespb.FederatedService) (*federation.Service, *federation.InvalidError) {
	var p fieldParser
	s := &federation.Service{
		Name:        m.GetName(),
		FQDN:        p.parseFQDN(m.GetFqdn()),
		Description: m.GetDescription(),
		Tags:        m.GetTags(),
		Labels:      federation.Pairs(m.GetLabels()),
		SANs:        m.GetSans(),
		Endpoints:   make([]federation.Endpoint, len(m.GetEndpoints())),
		Instances:   make([]federation.Instance, len(m.GetInstances())),
	}
	for i, e := range m.GetEndpoints() {
		s.Endpoints[i] = federation.Endpoint{
			Address:     p.parseAddress(i, e.GetAddress()),
			Port:        p.parsePort(i, e.GetPort()),
			Labels:      e.GetLabels(),
			Description: e.GetDescription(),
		}
	}
	for i, in := range m.GetInstances() {
		s.Instances[i] = federation.Instance{
			ID:               in.GetId(),
			Protocol:         p.instanceProtocol(i, in.GetProtocol()),
			Metadata:         federation.Pairs(in.GetMetadata()),
			EndpointSelector: in.GetEndpointSelector(),
			Description:      in.GetDescription(),
		}
	}
	if invalid := p.validateService(s); invalid != nil {
		return nil, invalid
	}
	return s, nil
}

// fieldParser parses the fields of a service that are strings or numbers on the wire
// and have a type of their own in package federation. A field that does not parse
// is left zero, which [federation.Service.Validate] refuses: so the first rule
// that a message breaks is found in one pass over the service.
type fieldParser struct {
	// field is the path, in the service, of the first field that does not parse,
	// and why says more about it than Validate can.
	field string
	why   *federation.InvalidError
}

// failField records why a field of the service does not parse, if it is the first one. Why names
// the field of the message.
func (p *fieldParser) failField(field string, why *federation.InvalidError) {
	if p.why == nil {
		p.field, p.why = field, why
	}
}

// validateService returns the first rule that the service breaks.
func (p *fieldParser) validateService(s *federation.Service) *federation.InvalidError {
	invalid, _ := errors.AsType[*federation.InvalidError](s.Validate())
	if invalid != nil && p.why != nil && p.field == invalid.Field {
		return p.why
	}
	return invalid
}

func (p *fieldParser) parseFQDN(s string) federation.FQDN {
	fqdn, err := federation.ParseFQDN(s)
	if err != nil && s != "" {
		p.failField("fqdn", federation.Invalidf("fqdn", federation.ReasonName, "%v: %s", err, safetext.Quote(s)))
	}
	return fqdn
}

// parseAddress parses the address of the i-th endpoint.
func (p *fieldParser) parseAddress(i int, s string) federation.Address {
	if s == "" {
		return federation.Address{}
	}
	address, err := federation.ParseAddress(s)
	if err != nil {
		p.failAtf("endpoints", i, "address", federation.ReasonAddress, "%v: %s", err, safetext.Quote(s))
	}
	return address
}

// parsePort returns the port of the i-th endpoint.
func (p *fieldParser) parsePort(i int, port uint32) uint16 {
	if port > math.MaxUint16 {
		p.failAtf("endpoints", i, "port", federation.ReasonPort, "%d is not in 1 to 65535", port)
		return 0
	}
	return uint16(port)
}

// instanceProtocol parses the protocol of the i-th instance.
func (p *fieldParser) instanceProtocol(i int, s string) federation.Protocol {
	protocol, ok := parseProtocol(s)
	if !ok && s != "" {
		p.failAtf("instances", i, "protocol", federation.ReasonProtocol, unknownProtocol, safetext.Quote(s))
	}
	return protocol
}

// failAtf is failField for a field of the i-th entry of a list that has the same path
// in the service and in the message.
func (p *fieldParser) failAtf(list string, i int, field string, reason federation.Reason, format string, args ...any) {
	if p.why == nil { // otherwise these strings would be for nothing
		path := fmt.Sprintf("%s[%d].%s", list, i, field)
		p.failField(path, federation.Invalidf(path, reason, format, args...))
	}
}

const unknownProtocol = "%s is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS"

func parseProtocol(s string) (federation.Protocol, bool) {
	if len(s) > len("HTTPS") { // no name is longer, and ParseProtocol would copy the string
		return 0, false
	}
	return federation.ParseProtocol(s)
}

// EncodeService returns the message that describes s, which must be valid, with names in lower case
// and without a final dot. An unnamed instance gets an empty ID, which no consumer accepts.
func EncodeService(s *federation.Service) (*typespb.FederatedService, error) {
	m := new(typespb.FederatedService)
	if err := proto.Unmarshal(packed.AppendMessage(nil, s), m); err != nil {
		return nil, err
	}
	for i := range s.Instances {
		if s.Instances[i].Unnamed {
			m.Instances[i].Id = ""
		}
	}
	return m, nil
}

// trimFinalDot strips the final dot of a name: the specification's examples have no
// final dot, so a peer may not expect one.
func trimFinalDot(name string) string { return strings.TrimSuffix(name, ".") }
