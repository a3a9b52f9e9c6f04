package wire

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
)

// The bytes are counted by hand, because package proto allocates every entry
// before anyone can count them.

// repeatedField is a repeated field of a message.
type repeatedField struct {
	name    string
	limit   int
	entries []repeatedField // the repeated fields of an entry
}

// The repeated fields of FederatedService and of its parts, by field number.
var (
	serviceFields = [12]repeatedField{
		3:  {name: "tags", limit: limits.Tags},
		4:  {name: "labels", limit: limits.Labels},
		9:  {name: "endpoints", limit: limits.Endpoints, entries: endpointFields[:]},
		10: {name: "sans", limit: limits.SANs},
		11: {name: "instances", limit: limits.Instances, entries: instanceFields[:]},
	}
	endpointFields = [4]repeatedField{
		3: {name: "labels", limit: limits.Labels},
	}
	instanceFields = [5]repeatedField{
		3: {name: "metadata", limit: limits.Metadata},
		4: {name: "endpoint_selector", limit: limits.Selectors},
	}

	// An endpoint of v1alpha1 has none.
	serviceFieldsV1Alpha1 = [10]repeatedField{
		3: {name: "tags", limit: limits.Tags},
		4: {name: "labels", limit: limits.Labels},
		8: {name: "protocols", limit: MaxProtocols},
		9: {name: "endpoints", limit: limits.Endpoints},
	}
)

// checkCounts refuses an encoded message that has more entries than the limits
// allow. It runs before the message is decoded, because two bytes can stand for an
// entry that takes a hundred in memory. Malformed bytes end the count; decoding
// fails on them afterwards.
func checkCounts(b []byte, fields []repeatedField) *federation.InvalidError {
	var counts [len(serviceFields)]int
	for number, value := range delimitedFields(b) {
		if int(number) >= len(fields) || fields[number].limit == 0 {
			continue
		}
		field := fields[number]
		counts[number]++
		if broken := limits.CheckCount(counts[number], field.limit); broken != nil {
			return limitError(field.name, broken)
		}
		if field.entries == nil {
			continue
		}
		if invalid := checkCounts(value, field.entries); invalid != nil {
			return invalid.In("%s[%d]", field.name, counts[number]-1)
		}
	}
	return nil
}

// The fields that name a FederatedService.
const (
	nameField protowire.Number = 1
	fqdnField protowire.Number = 5
	idField   protowire.Number = 6 // in v1alpha1
)

// stringIn returns a string field of an encoded FederatedService, and whether its
// bytes are well-formed. It allocates only the string.
func stringIn(b []byte, field protowire.Number) (string, bool) {
	var s []byte
	for number, value := range delimitedFields(b) {
		switch number {
		case malformed:
			return string(s), false
		case field:
			s = value // of several, the last one counts
		}
	}
	return string(s), true
}

// malformed stands for a field that cannot be read. No field has this number.
const malformed protowire.Number = 0

// delimitedFields ranges over the fields of an encoded message that are strings or
// messages. Where the bytes are malformed it yields the number malformed and stops.
func delimitedFields(b []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for len(b) > 0 {
			number, kind, n := protowire.ConsumeTag(b)
			if n < 0 {
				yield(malformed, nil)
				return
			}
			b = b[n:]
			var value []byte
			if kind == protowire.BytesType {
				value, n = protowire.ConsumeBytes(b)
			} else {
				n = protowire.ConsumeFieldValue(number, kind, b)
			}
			if n < 0 {
				yield(malformed, nil)
				return
			}
			b = b[n:]
			if kind == protowire.BytesType && !yield(number, value) {
				return
			}
		}
	}
}
