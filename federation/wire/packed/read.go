package packed

import (
	"math"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// reader reads the fields of an encoded message.
type reader struct {
	rest      string
	malformed bool
}

func (r *reader) more() bool { return r.rest != "" }

// next returns the next field with its text or its number. At malformed octets it
// notes that, and nothing more follows.
func (r *reader) next() (field byte, text string, number uint64) {
	if r.rest == "" {
		return r.fail()
	}
	field = r.rest[0]
	r.rest = r.rest[1:]
	number, ok := r.number()
	switch kind := field & kinds; {
	case !ok || field >= 1<<7 || kind != kindNumber && kind != kindText:
		return r.fail()
	case kind == kindNumber:
		return field, "", number
	case number > uint64(len(r.rest)):
		return r.fail()
	}
	text, r.rest = r.rest[:number], r.rest[number:]
	return field, text, 0
}

func (r *reader) fail() (byte, string, uint64) {
	r.rest, r.malformed = "", true
	return 0, "", 0
}

// number returns the next number, and whether there is one.
func (r *reader) number() (uint64, bool) {
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

// unpack fills s, of which it reuses the lists, with the service in a Record. It
// reports whether the octets are well-formed, with nothing in them that appendRecord
// does not write and no more entries than a service may have. What it reads need not
// be valid.
func unpack(octets string, s *federation.Service) bool {
	*s = federation.Service{
		Tags: s.Tags[:0], Labels: s.Labels[:0], SANs: s.SANs[:0], Endpoints: s.Endpoints[:0], Instances: s.Instances[:0],
	}
	r := reader{rest: octets}
	for r.more() {
		ok := false
		switch field, text, _ := r.next(); field {
		case recordService:
			ok = unpackService(text, s)
		case recordUnnamed:
			ok = unpackUnnamed(text, s.Instances)
		}
		if !ok {
			return false
		}
	}
	return !r.malformed
}

func unpackService(octets string, s *federation.Service) bool {
	r := reader{rest: octets}
	for r.more() {
		ok := true
		switch field, text, _ := r.next(); field {
		case serviceName:
			s.Name = text
		case serviceDescription:
			s.Description = text
		case serviceTag:
			s.Tags, ok = appendText(s.Tags, text, federation.MaxTags)
		case serviceLabel:
			s.Labels, ok = appendPair(s.Labels, text, federation.MaxLabels)
		case serviceFQDN:
			s.FQDN, _ = federation.ParseOrigin(text) // Validate refuses what is only an origin
		case serviceEndpoint:
			s.Endpoints, ok = appendEndpoint(s.Endpoints, text)
		case serviceSAN:
			s.SANs, ok = appendText(s.SANs, text, federation.MaxSANs)
		case serviceInstance:
			s.Instances, ok = appendInstance(s.Instances, text)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return !r.malformed
}

// unpackUnnamed marks the instances at these indices.
func unpackUnnamed(octets string, instances []federation.Instance) bool {
	r := reader{rest: octets}
	for r.more() {
		i, ok := r.number()
		if !ok || i >= uint64(len(instances)) {
			return false
		}
		instances[i].ID, instances[i].Unnamed = "", true
	}
	return true
}

func appendEndpoint(list []federation.Endpoint, octets string) ([]federation.Endpoint, bool) {
	list, e := extend(list)
	*e = federation.Endpoint{Labels: e.Labels[:0]}
	r := reader{rest: octets}
	for r.more() {
		ok := true
		switch field, text, number := r.next(); field {
		case endpointAddress:
			e.Address, _ = federation.ParseAddress(text) // Validate refuses what is none
		case endpointPort:
			ok = number <= math.MaxUint16
			e.Port = uint16(number) //nolint:gosec // checked
		case endpointLabel:
			e.Labels, ok = appendText(e.Labels, text, federation.MaxLabels)
		case endpointDescription:
			e.Description = text
		default:
			ok = false
		}
		if !ok {
			return list, false
		}
	}
	return list, !r.malformed && len(list) <= federation.MaxEndpoints
}

func appendInstance(list []federation.Instance, octets string) ([]federation.Instance, bool) {
	list, in := extend(list)
	*in = federation.Instance{Metadata: in.Metadata[:0], EndpointSelector: in.EndpointSelector[:0]}
	r := reader{rest: octets}
	for r.more() {
		ok := true
		switch field, text, _ := r.next(); field {
		case instanceID:
			in.ID = text
		case instanceProtocol:
			in.Protocol, _ = federation.ParseProtocol(text)
		case instanceMetadata:
			in.Metadata, ok = appendPair(in.Metadata, text, federation.MaxMetadata)
		case instanceSelector:
			in.EndpointSelector, ok = appendText(in.EndpointSelector, text, federation.MaxSelectors)
		case instanceDescription:
			in.Description = text
		default:
			ok = false
		}
		if !ok {
			return list, false
		}
	}
	return list, !r.malformed && len(list) <= federation.MaxInstances
}

// extend makes the list one entry longer. The entry has whatever was there before.
func extend[E any](list []E) ([]E, *E) {
	if len(list) < cap(list) {
		list = list[:len(list)+1]
	} else {
		list = append(list, *new(E))
	}
	return list, &list[len(list)-1]
}

func appendText(list []string, text string, limit int) ([]string, bool) {
	return append(list, text), len(list) < limit
}

// appendPair appends an entry of a map.
func appendPair(list []federation.Pair, octets string, limit int) ([]federation.Pair, bool) {
	var pair federation.Pair
	r := reader{rest: octets}
	for r.more() {
		switch field, text, _ := r.next(); field {
		case pairKey:
			pair.Key = text
		case pairValue:
			pair.Value = text
		default:
			return list, false
		}
	}
	return append(list, pair), !r.malformed && len(list) < limit
}
