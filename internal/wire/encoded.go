package wire

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// EncodedService is a valid service in the form in which v1alpha2 sends it, which also takes
// the least memory. It never changes, so goroutines and messages share it. Only
// [NewEncoded] and [EncodedOf] make one.
//
// v1alpha2 wants an ID of every instance, and a service of v1alpha1 has none. So an
// unnamed instance has got that of its protocol, in lower case: without it consumers of
// v1alpha2 could not be told of the service at all.
type EncodedService struct {
	name  string
	value []byte // of the resource
}

// NewEncoded returns the encoded service, or a [*federation.InvalidError] when s is not valid (see
// [federation.Service.Validate]).
func NewEncoded(s *federation.Service) (*EncodedService, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return encodeValid(s), nil
}

func encodeValid(s *federation.Service) *EncodedService {
	var room [usualBytes]byte
	return &EncodedService{name: s.Name, value: bytes.Clone(packed.AppendMessage(room[:0], nameInstances(s)))}
}

// EncodedOf returns what [NewEncoded] does for a packed service, which is valid. A service without
// unnamed instances is not unpacked, because the two forms have most of their octets in common. P
// must not be zero.
func EncodedOf(p packed.Service) *EncodedService {
	var room [usualBytes]byte
	value, ok := p.AppendMessage(room[:0])
	if !ok {
		return encodeValid(p.Unpack())
	}
	return &EncodedService{name: strings.Clone(p.Name()), value: bytes.Clone(value)} // so that whoever keeps it does not keep p
}

// usualBytes is room for most services, so that they are encoded on the stack.
const usualBytes = 1 << 10

// nameInstances returns s if each instance has an ID, or a copy in which each has one.
func nameInstances(s *federation.Service) *federation.Service {
	if !slices.ContainsFunc(s.Instances, func(in federation.Instance) bool { return in.Unnamed }) {
		return s
	}
	c := *s
	c.Instances = slices.Clone(s.Instances)
	for i := range c.Instances {
		if in := &c.Instances[i]; in.Unnamed {
			in.ID, in.Unnamed = freeID(c.Instances, strings.ToLower(in.Protocol.String())), false
		}
	}
	return &c
}

// freeID returns the ID, or a similar one if an instance has that ID. Only a program can publish a
// service in which that is so.
func freeID(instances []federation.Instance, id string) string {
	free := id
	for n := 2; slices.ContainsFunc(instances, func(in federation.Instance) bool { return strings.EqualFold(in.ID, free) }); n++ {
		free = fmt.Sprint(id, "-", n)
	}
	return free
}

// Name returns the name of the service.
func (e *EncodedService) Name() string { return e.name }

// FQDN returns the fqdn of the service, without the final dot.
func (e *EncodedService) FQDN() string {
	name, _ := stringIn(e.value, fqdnField)
	return name
}

// Equal reports whether e and f are equal services (see [federation.Service.Equal]).
func (e *EncodedService) Equal(f *EncodedService) bool { return bytes.Equal(e.value, f.value) }

// Service returns the decoded service, a new one in each call.
func (e *EncodedService) Service() *federation.Service {
	s := packed.UnpackMessage(string(e.value))
	s.Name = e.name // so that whoever keeps it does not keep all
	return s
}

// Resource returns the resource of the message for the service.
func (e *EncodedService) Resource() *anypb.Any {
	return &anypb.Any{TypeUrl: ResourceURL, Value: e.value}
}
