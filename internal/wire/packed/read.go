package packed

import (
	"math"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
)

// fieldReader reads the fields of an encoded message.
type fieldReader struct {
	rest      string
	malformed bool
}

func (r *fieldReader) hasMore() bool { return r.rest != "" }

// nextField returns the next field with its text or its number. At malformed octets it sets
// malformed, and nothing follows.
func (r *fieldReader) nextField() (field byte, text string, number uint64) {
	if r.rest == "" {
		return r.markMalformed()
	}
	field = r.rest[0]
	r.rest = r.rest[1:]
	number, ok := r.nextNumber()
	switch kind := field & kinds; {
	case !ok || field >= 1<<7 || kind != kindNumber && kind != kindText:
		return r.markMalformed()
	case kind == kindNumber:
		return field, "", number
	case number > uint64(len(r.rest)):
		return r.markMalformed()
	}
	text, r.rest = r.rest[:number], r.rest[number:]
	return field, text, 0
}

func (r *fieldReader) markMalformed() (byte, string, uint64) {
	r.rest, r.malformed = "", true
	return 0, "", 0
}

// nextNumber returns the next number, and whether there is one.
func (r *fieldReader) nextNumber() (uint64, bool) {
	n := uint64(0)
	for i := 0; i < len(r.rest) && i < maxNumber; i++ {
		b := r.rest[i]
		n |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			r.rest = r.rest[i+1:]
			return n, true
		}
	}
	return 0, false
}

// forEachField calls take with each field of an encoded message. It reports whether the octets are
// well-formed and take has returned true for all fields.
func forEachField(octets string, take func(field byte, text string, number uint64) bool) bool {
	r := fieldReader{rest: octets}
	for r.hasMore() {
		if field, text, number := r.nextField(); r.malformed || !take(field, text, number) {
			return false
		}
	}
	return true
}

// mustBeWhole panics unless octets of this package were unpacked to their end. Anything else is a
// mistake in this package, and nobody could use a part of a service.
func mustBeWhole(whole bool) {
	if !whole {
		panic("package packed does not read what it has written")
	}
}

// unpackRecord fills s with the service in a Record, and reuses the lists of s. It reports whether
// the octets are well-formed, with nothing in them that appendRecord does not write and no more
// entries than a service may have. The service need not be valid.
func unpackRecord(octets string, s *federation.Service) bool {
	*s = federation.Service{
		Tags: s.Tags[:0], Labels: s.Labels[:0], SANs: s.SANs[:0], Endpoints: s.Endpoints[:0], Instances: s.Instances[:0],
	}
	return forEachField(octets, func(field byte, text string, _ uint64) bool {
		switch field {
		case recordService:
			return unpackService(text, s)
		case recordUnnamed:
			return unpackUnnamed(text, s.Instances)
		}
		return false
	})
}

func unpackService(octets string, s *federation.Service) bool {
	return forEachField(octets, func(field byte, text string, _ uint64) bool {
		switch field {
		case serviceName:
			s.Name = text
		case serviceDescription:
			s.Description = text
		case serviceTag:
			return addText(&s.Tags, text, limits.Tags)
		case serviceLabel:
			return addPair(&s.Labels, text, limits.Labels)
		case serviceFQDN:
			s.FQDN, _ = federation.ParseOrigin(text) // Validate refuses what is only an origin
		case serviceEndpoint:
			return addEndpoint(&s.Endpoints, text)
		case serviceSAN:
			return addText(&s.SANs, text, limits.SANs)
		case serviceInstance:
			return addInstance(&s.Instances, text)
		default:
			return false
		}
		return true
	})
}

// unpackUnnamed marks the instances at these indices.
func unpackUnnamed(octets string, instances []federation.Instance) bool {
	r := fieldReader{rest: octets}
	for r.hasMore() {
		i, ok := r.nextNumber()
		if !ok || i >= uint64(len(instances)) {
			return false
		}
		instances[i].ID, instances[i].Unnamed = "", true
	}
	return true
}

func addEndpoint(list *[]federation.Endpoint, octets string) bool {
	e := extendList(list)
	*e = federation.Endpoint{Labels: e.Labels[:0]}
	return len(*list) <= limits.Endpoints && forEachField(octets, func(field byte, text string, number uint64) bool {
		switch field {
		case endpointAddress:
			e.Address, _ = federation.ParseAddress(text) // Validate refuses what is none
		case endpointPort:
			e.Port = uint16(number) //nolint:gosec // checked
			return number <= math.MaxUint16
		case endpointLabel:
			return addText(&e.Labels, text, limits.Labels)
		case endpointDescription:
			e.Description = text
		default:
			return false
		}
		return true
	})
}

func addInstance(list *[]federation.Instance, octets string) bool {
	in := extendList(list)
	*in = federation.Instance{Metadata: in.Metadata[:0], EndpointSelector: in.EndpointSelector[:0]}
	return len(*list) <= limits.Instances && forEachField(octets, func(field byte, text string, _ uint64) bool {
		switch field {
		case instanceID:
			in.ID = text
		case instanceProtocol:
			in.Protocol, _ = federation.ParseProtocol(text)
		case instanceMetadata:
			return addPair(&in.Metadata, text, limits.Metadata)
		case instanceSelector:
			return addText(&in.EndpointSelector, text, limits.Selectors)
		case instanceDescription:
			in.Description = text
		default:
			return false
		}
		return true
	})
}

// extendList makes the list one entry longer, and returns that entry, which may have an old value.
func extendList[E any](list *[]E) *E {
	*list = slices.Grow(*list, 1)[:len(*list)+1]
	return &(*list)[len(*list)-1]
}

func addText(list *[]string, text string, limit int) bool {
	*list = append(*list, text)
	return len(*list) <= limit
}

// addPair adds an entry of a map.
func addPair(list *[]federation.Pair, octets string, limit int) bool {
	pair := extendList(list)
	*pair = federation.Pair{}
	return len(*list) <= limit && forEachField(octets, func(field byte, text string, _ uint64) bool {
		switch field {
		case pairKey:
			pair.Key = text
		case pairValue:
			pair.Value = text
		default:
			return false
		}
		return true
	})
}
