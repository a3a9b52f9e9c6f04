package catalogentry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// The bounds of what a prober tries.
const (
	maxProbes  = 20_000           // in a service
	maxEntries = limits.Endpoints // of a list or a map: no other has a higher limit
)

// prober finds the mistakes in a service, up to a number of most. Protojson and package wire stop at
// the first mistake, as a consumer has no use for more, but somebody who mends a file wants to see
// all. So a prober passes each piece of the service to them separately, in a service that has no other
// mistake.
type prober struct {
	policy wire.AddressPolicy
	report func(at, field, rule string) // at is where the mistake stands, if not at the field
	most   int

	found  int
	probes int
	told   map[string]bool // a piece is a part of larger ones
}

// piece is a place in a service.
type piece struct {
	path    string                       // such as endpoints[2].labels; empty for the service
	indices []int                        // in the path
	field   protoreflect.FieldDescriptor // of the value or, with element, of the list or map that has it
	element bool
	message protoreflect.MessageDescriptor // of an object that stands here
	good    map[string]any                 // an object that may stand here
	whole   func(value any) any            // returns a service that is right but for the value, which stands here
}

// findMistakes tries the service in an object, which is wrong.
func (p *prober) findMistakes(object map[string]any) {
	p.tryObject(object, piece{
		message: new(typespb.FederatedService).ProtoReflect().Descriptor(),
		good: map[string]any{
			"name": "probe", "fqdn": "probe.example",
			"endpoints": []any{map[string]any{"address": "192.0.2.1", "port": 1}},
			"instances": []any{map[string]any{"id": "probe", "protocol": "TCP"}},
		},
		whole: func(service any) any { return service },
	})
}

// tryObject tries each value of an object that stands at a place, and whether those are there that must
// be.
func (p *prober) tryObject(object map[string]any, at piece) {
	values := make(map[protoreflect.FieldDescriptor]any)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if field := cmp.Or(at.message.Fields().ByJSONName(key), at.message.Fields().ByTextName(key)); field != nil {
			values[field] = object[key]
		} else {
			p.addMistake(at.path+"."+key, at.path, "there is no field "+safetext.Quote(key))
		}
	}
	for i := range at.message.Fields().Len() {
		field := at.message.Fields().Get(i)
		name := field.TextName()
		of := piece{
			path: strings.TrimPrefix(at.path+"."+name, "."), indices: at.indices, field: field, message: field.Message(),
			whole: func(value any) any {
				probe := maps.Clone(at.good)
				probe[name] = value
				return at.whole(probe)
			},
		}
		if list, ok := at.good[name].([]any); ok {
			of.good, _ = list[0].(map[string]any)
		}
		p.tryValue(values[field], of) // nil counts as absent
	}
}

// tryValue tries a value at a place and, if that is wrong, each of its parts alone.
func (p *prober) tryValue(value any, at piece) {
	if p.probes++; p.found >= p.most || p.probes > maxProbes {
		return
	}
	_, err := decodeValue(at.whole(value), p.policy)
	if err == nil {
		return
	}
	invalid, ok := errors.AsType[*federation.InvalidError](err)
	if ok {
		field := withIndices(invalid.Field, at.indices)
		p.addMistake(field, field, invalid.Rule)
	}
	before := p.found
	part := at
	part.element = true
	switch value := value.(type) {
	case []any:
		if !at.field.IsList() || at.element {
			break
		}
		part.whole = func(element any) any { return at.whole([]any{element}) }
		for i, element := range value[:min(len(value), maxEntries)] {
			part.path, part.indices = fmt.Sprintf("%s[%d]", at.path, i), append(slices.Clip(at.indices), i)
			p.tryValue(element, part)
		}
	case map[string]any:
		switch {
		case at.element && at.field.IsList() && at.message != nil:
			p.tryObject(value, at)
		case at.field.IsMap() && !at.element:
			keys := slices.Sorted(maps.Keys(value))
			for _, key := range keys[:min(len(keys), maxEntries)] {
				part.path = at.path + "[" + safetext.Quote(key) + "]"
				part.whole = func(element any) any { return at.whole(map[string]any{key: element}) }
				p.tryValue(value[key], part)
			}
		}
	}
	if !ok && p.found == before { // the value has another type than protojson wants
		p.addMistake(at.path, at.path, misfitRule(at, value))
	}
}

// addMistake reports a mistake, once.
func (p *prober) addMistake(at, field, rule string) {
	if key := field + " " + rule; !p.told[key] {
		p.told[key] = true
		p.found++
		p.report(at, field, rule)
	}
}

// decodeValue returns the service in a value of JSON, or why a consumer with that policy would not take
// it.
func decodeValue(value any, policy wire.AddressPolicy) (*federation.Service, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return decodeJSON(data, policy)
}

// decodeJSON returns the service in data, or why a consumer with that policy would not take it.
func decodeJSON(data []byte, policy wire.AddressPolicy) (*federation.Service, error) {
	var message typespb.FederatedService
	if err := protojson.Unmarshal(data, &message); err != nil {
		return nil, err
	}
	return wire.DecodeService(&message, policy)
}

// withIndices returns the path of a field with its first zero indices replaced by
// indices. Keys of maps, which may look like an index, come after all of them.
func withIndices(path string, indices []int) string {
	var done strings.Builder
	for _, i := range indices {
		before, after, ok := strings.Cut(path, "[0]")
		if !ok {
			break // the list itself is wrong
		}
		fmt.Fprintf(&done, "%s[%d]", before, i)
		path = after
	}
	return done.String() + path
}

// misfitRule returns the rule that a value breaks whose type is not that of its place.
func misfitRule(at piece, value any) string {
	want := "a string"
	switch field := at.field; {
	case field.IsMap() && !at.element:
		want = "a mapping of strings to strings"
	case field.IsMap():
	case field.Message() != nil && at.element:
		want = "a mapping"
	case field.Message() != nil:
		want = "a list of mappings"
	case field.IsList() && !at.element:
		want = "a list of strings"
	case field.Kind() == protoreflect.Uint32Kind:
		want = "a whole number from 0 on"
	}
	return "must be " + want + ", not " + inWords(value)
}

// inWords returns how problems show a value of a file.
func inWords(value any) string {
	switch value := value.(type) {
	case string:
		return safetext.Quote(value)
	case []any:
		return "a list"
	case map[string]any:
		return "a mapping"
	case nil:
		return "nothing"
	}
	return fmt.Sprint(value)
}
