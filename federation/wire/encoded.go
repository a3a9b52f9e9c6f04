package wire

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// Encoded is a valid service in the form in which v1alpha2 sends it, which also takes
// the least memory. It never changes, so goroutines and messages share it. Only
// [NewEncoded] makes one.
type Encoded struct {
	name    string
	value   []byte              // of the resource
	service *federation.Service // where v1alpha2 cannot express it; value is nil then
}

// NewEncoded encodes the service. Of a service with an unnamed instance, which
// v1alpha2 cannot express, it keeps s, which must not be changed afterwards. It fails
// with a [*federation.InvalidError] when s is not valid (see
// [federation.Service.Validate]).
func NewEncoded(s *federation.Service) (*Encoded, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if hasUnnamed(s) {
		return &Encoded{name: s.Name, service: s}, nil
	}
	var room [usualBytes]byte
	return &Encoded{name: s.Name, value: bytes.Clone(appendService(room[:0], s))}, nil
}

// usualBytes is room for most services, so that they are encoded on the stack.
const usualBytes = 1 << 10

func hasUnnamed(s *federation.Service) bool {
	return slices.ContainsFunc(s.Instances, func(in federation.Instance) bool { return in.Unnamed })
}

// Name returns the name of the service.
func (e *Encoded) Name() string { return e.name }

// FQDN returns the name in DNS of the service, without the final dot.
func (e *Encoded) FQDN() string {
	if e.service != nil {
		return relative(e.service.FQDN.String())
	}
	name, _ := stringIn(e.value, fqdnField)
	return name
}

// Equal reports whether e and f are equal services (see [federation.Service.Equal]).
func (e *Encoded) Equal(f *Encoded) bool {
	if e.service != nil || f.service != nil {
		return e.service != nil && f.service != nil && e.service.Equal(f.service)
	}
	return bytes.Equal(e.value, f.value)
}

// Encodes reports whether e is the service s. It does not matter whether s is valid.
func (e *Encoded) Encodes(s *federation.Service) bool {
	if e.service != nil || hasUnnamed(s) {
		return e.service != nil && e.service.Equal(s)
	}
	var room [usualBytes]byte
	return bytes.Equal(e.value, appendService(room[:0], s))
}

// Service decodes the service, anew in each call.
func (e *Encoded) Service() *federation.Service {
	if e.service != nil {
		return e.service
	}
	// What a valid service was encoded to decodes to the same service.
	event, _ := Decode(&rdpb.StreamResponse{
		Operation: rdpb.StreamResponse_UPSERT, Resource: &anypb.Any{TypeUrl: ResourceURL, Value: e.value},
	}, AnyAddress())
	return event.Service
}

// Resource returns the resource of the message for the service. It fails where
// v1alpha2 cannot express the service, as [EncodeResource] does.
func (e *Encoded) Resource() (*anypb.Any, error) {
	if e.service != nil {
		return EncodeResource(federation.Event{Operation: federation.Upsert, Name: e.name, Service: e.service})
	}
	return &anypb.Any{TypeUrl: ResourceURL, Value: e.value}, nil
}

// The bytes are those of a deterministic Marshal of what [EncodeService] returns.
// They are written by hand, as that takes five times as long: it makes a message and
// maps first, and sorts what is sorted (BenchmarkEncode, BenchmarkNewEncoded).

// appendService appends the encoded service.
func appendService(b []byte, s *federation.Service) []byte {
	b = appendText(b, 1, s.Name)
	b = appendText(b, 2, s.Description)
	b = appendTexts(b, 3, s.Tags)
	b = appendPairs(b, 4, s.Labels)
	b = appendText(b, fqdnField, relative(s.FQDN.String()))
	for i := range s.Endpoints {
		start := len(b)
		b = appendEndpoint(b, &s.Endpoints[i])
		b = enclose(b, 9, start)
	}
	b = appendTexts(b, 10, s.SANs)
	for i := range s.Instances {
		start := len(b)
		b = appendInstance(b, &s.Instances[i])
		b = enclose(b, 11, start)
	}
	return b
}

func appendEndpoint(b []byte, e *federation.Endpoint) []byte {
	if ip, ok := e.Address.IP(); ok {
		start := len(b)
		b = ip.AppendTo(b)
		b = enclose(b, 1, start)
	} else {
		b = appendText(b, 1, relative(e.Address.String()))
	}
	if e.Port != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(e.Port))
	}
	b = appendTexts(b, 3, e.Labels)
	return appendText(b, 4, e.Description)
}

func appendInstance(b []byte, in *federation.Instance) []byte {
	b = appendText(b, 1, in.ID)
	b = appendText(b, 2, in.Protocol.String())
	b = appendPairs(b, 3, in.Metadata)
	b = appendTexts(b, 4, in.EndpointSelector)
	return appendText(b, 5, in.Description)
}

// appendText appends a field that is a string, unless it is empty.
func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// appendTexts appends a field that is a list of strings.
func appendTexts(b []byte, field protowire.Number, list []string) []byte {
	for _, s := range list {
		b = protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	return b
}

// appendPairs appends a field that is a map, whose entries have a key and a value even
// where these are empty.
func appendPairs(b []byte, field protowire.Number, pairs []federation.Pair) []byte {
	for _, pair := range pairs {
		start := len(b)
		b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), pair.Key)
		b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), pair.Value)
		b = enclose(b, field, start)
	}
	return b
}

// enclose makes what b has from start on the content of a field.
func enclose(b []byte, field protowire.Number, start int) []byte {
	size := len(b) - start
	var head [2 * 10]byte // two varints
	prefix := protowire.AppendTag(head[:0], field, protowire.BytesType)
	prefix = protowire.AppendVarint(prefix, uint64(size)) //nolint:gosec // a length is not negative
	b = append(b, prefix...)
	copy(b[start+len(prefix):], b[start:start+size])
	copy(b[start:], prefix)
	return b
}
