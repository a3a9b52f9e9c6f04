package wire

import (
	"bytes"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/packed"
)

// Encoded is a valid service in the form in which v1alpha2 sends it, which also takes
// the least memory. It never changes, so goroutines and messages share it. Only
// [NewEncoded] and [EncodedOf] make one.
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
	return &Encoded{name: s.Name, value: bytes.Clone(packed.AppendMessage(room[:0], s))}, nil
}

// EncodedOf is [NewEncoded] for a service that is packed, and so valid, without unpacking
// it: the two forms have most of their octets in common. Of a service with an unnamed
// instance it keeps the memory of p. p must not be zero.
func EncodedOf(p packed.Service) *Encoded {
	var room [usualBytes]byte
	value, ok := p.AppendMessage(room[:0])
	if !ok {
		return &Encoded{name: p.Name(), service: p.Unpack()}
	}
	return &Encoded{name: strings.Clone(p.Name()), value: bytes.Clone(value)} // so that whoever keeps it does not keep p
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
	return bytes.Equal(e.value, packed.AppendMessage(room[:0], s))
}

// Service decodes the service, anew in each call.
func (e *Encoded) Service() *federation.Service {
	if e.service != nil {
		return e.service
	}
	s := packed.UnpackMessage(string(e.value))
	s.Name = e.name // so that whoever keeps it does not keep all
	return s
}

// Resource returns the resource of the message for the service. It fails where
// v1alpha2 cannot express the service, as [EncodeResource] does.
func (e *Encoded) Resource() (*anypb.Any, error) {
	if e.service != nil {
		return EncodeResource(federation.Event{Operation: federation.Upsert, Name: e.name, Service: e.service})
	}
	return &anypb.Any{TypeUrl: ResourceURL, Value: e.value}, nil
}
