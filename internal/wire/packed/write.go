package packed

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// A field begins with its number and the kind of its value in one octet. Texts and
// messages have their length in front of them.
const (
	kinds      = 1<<3 - 1
	kindNumber = 0
	kindText   = 2

	recordService = 1<<3 | kindText
	recordUnnamed = 2<<3 | kindText

	serviceName        = 1<<3 | kindText
	serviceDescription = 2<<3 | kindText
	serviceTag         = 3<<3 | kindText
	serviceLabel       = 4<<3 | kindText
	serviceFQDN        = 5<<3 | kindText
	serviceEndpoint    = 9<<3 | kindText
	serviceSAN         = 10<<3 | kindText
	serviceInstance    = 11<<3 | kindText

	endpointAddress     = 1<<3 | kindText
	endpointPort        = 2<<3 | kindNumber
	endpointLabel       = 3<<3 | kindText
	endpointDescription = 4<<3 | kindText

	instanceID          = 1<<3 | kindText
	instanceProtocol    = 2<<3 | kindText
	instanceMetadata    = 3<<3 | kindText
	instanceSelector    = 4<<3 | kindText
	instanceDescription = 5<<3 | kindText

	pairKey   = 1<<3 | kindText
	pairValue = 2<<3 | kindText

	maxNumber = binary.MaxVarintLen64 // octets of a number
)

// appendRecord appends the encoded Record of a service.
func appendRecord(b []byte, s *federation.Service) []byte {
	b = append(b, recordService)
	start := len(b)
	b = appendService(b, s, true)
	b = insertLength(b, start)
	if slices.ContainsFunc(s.Instances, func(in federation.Instance) bool { return in.Unnamed }) {
		b = appendUnnamed(b, s.Instances)
	}
	return b
}

// AppendMessage appends the encoded FederatedService of proto/types/v1alpha2 for a
// service without unnamed instances, with names that have no final dot. The octets are
// those of a deterministic Marshal of the message, which takes five times as long.
func AppendMessage(b []byte, s *federation.Service) []byte { return appendService(b, s, false) }

// appendService appends the encoded FederatedService of a service, whose names have
// a final dot or none.
func appendService(b []byte, s *federation.Service, dot bool) []byte {
	b = appendString(b, serviceName, s.Name)
	b = appendString(b, serviceDescription, s.Description)
	b = appendList(b, serviceTag, s.Tags)
	b = appendPairs(b, serviceLabel, s.Labels)
	b = appendString(b, serviceFQDN, spellName(s.FQDN.String(), dot))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		b = append(b, serviceEndpoint)
		start := len(b)
		b = appendAddress(b, e.Address, dot)
		b = binary.AppendUvarint(append(b, endpointPort), uint64(e.Port))
		b = appendList(b, endpointLabel, e.Labels)
		b = appendString(b, endpointDescription, e.Description)
		b = insertLength(b, start)
	}
	b = appendList(b, serviceSAN, s.SANs)
	for i := range s.Instances {
		in := &s.Instances[i]
		protocol, id := in.Protocol.String(), in.ID
		if in.Unnamed {
			id = protocol // required on the wire
		}
		b = append(b, serviceInstance)
		start := len(b)
		b = appendString(b, instanceID, id)
		b = appendString(b, instanceProtocol, protocol)
		b = appendPairs(b, instanceMetadata, in.Metadata)
		b = appendList(b, instanceSelector, in.EndpointSelector)
		b = appendString(b, instanceDescription, in.Description)
		b = insertLength(b, start)
	}
	return b
}

// spellName returns an absolute name with or without its final dot.
func spellName(name string, dot bool) string {
	if dot {
		return name
	}
	return strings.TrimSuffix(name, ".")
}

// appendUnnamed appends the indices of the instances without a name.
func appendUnnamed(b []byte, instances []federation.Instance) []byte {
	b = append(b, recordUnnamed)
	start := len(b)
	for i := range instances {
		if instances[i].Unnamed {
			b = binary.AppendUvarint(b, uint64(i))
		}
	}
	return insertLength(b, start)
}

func appendAddress(b []byte, a federation.Address, dot bool) []byte {
	b = append(b, endpointAddress)
	start := len(b)
	if ip, ok := a.IP(); ok {
		b = ip.AppendTo(b)
	} else {
		b = append(b, spellName(a.String(), dot)...)
	}
	return insertLength(b, start)
}

// insertLength inserts the length of the octets from start on before them.
func insertLength(b []byte, start int) []byte {
	var length [maxNumber]byte
	n := binary.PutUvarint(length[:], uint64(len(b)-start)) //nolint:gosec // never negative
	return slices.Insert(b, start, length[:n]...)
}

// appendString appends a field, unless it is empty.
func appendString(b []byte, field byte, s string) []byte {
	if s == "" {
		return b
	}
	return appendField(b, field, s)
}

func appendField(b []byte, field byte, s string) []byte {
	return append(binary.AppendUvarint(append(b, field), uint64(len(s))), s...)
}

func appendList(b []byte, field byte, list []string) []byte {
	for _, s := range list {
		b = appendField(b, field, s)
	}
	return b
}

func appendPairs(b []byte, field byte, pairs []federation.Pair) []byte {
	for _, pair := range pairs {
		b = append(b, field)
		start := len(b)
		b = appendField(b, pairKey, pair.Key)
		b = appendField(b, pairValue, pair.Value)
		b = insertLength(b, start)
	}
	return b
}
