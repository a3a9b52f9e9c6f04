package ownerfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// The bounds of what mistakes tries.
const (
	maxProbes  = 20_000            // in a service
	maxEntries = wire.MaxEndpoints // of a list or a map: no other has a higher limit
)

// mistakes returns everything that is wrong with m. first is the error that wire
// found. It stops there, as a consumer has no use for more; whoever mends a file
// wants to see them all, so each piece of m is put to wire by itself, in a
// service that is right otherwise. It ends when it has found the given number.
func mistakes(m *typespb.FederatedService, policy wire.Policy, first error, most int) []*federation.InvalidError {
	good := &typespb.FederatedService{
		Name:      "probe",
		Fqdn:      "probe.example",
		Endpoints: []*typespb.FederatedService_Endpoint{{Address: "192.0.2.1", Port: 1}},
		Instances: []*typespb.FederatedService_Instance{{Id: "probe", Protocol: "TCP"}},
	}
	var found []*federation.InvalidError
	told := make(map[string]bool) // a piece is a part of larger ones
	probes := 0
	pieces(m.ProtoReflect(), good.ProtoReflect(), func(indices []int, probe protoreflect.Message) bool {
		if probes++; len(found) >= most || probes > maxProbes {
			return false
		}
		service, _ := probe.Interface().(*typespb.FederatedService)
		_, err := wire.DecodeService(service, policy)
		invalid, ok := errors.AsType[*federation.InvalidError](err)
		if !ok {
			return false
		}
		invalid.Field = indexed(invalid.Field, indices)
		if key := invalid.Field + " " + invalid.Rule; !told[key] {
			told[key] = true
			found = append(found, invalid)
		}
		return true
	})
	if invalid, ok := errors.AsType[*federation.InvalidError](first); ok && len(found) == 0 {
		found = append(found, invalid)
	}
	return found
}

// indexed returns the path of a field with these indices in the place of the
// first zeros. Keys of maps, which may look like one, come behind all of them.
func indexed(path string, indices []int) string {
	var done strings.Builder
	for _, i := range indices {
		before, after, ok := strings.Cut(path, "[0]")
		if !ok {
			break // what is wrong is the list
		}
		fmt.Fprintf(&done, "%s[%d]", before, i)
		path = after
	}
	return done.String() + path
}

// pieces calls try with copies of good of which one field is that of m. Where try
// says that it is wrong, and it is a list or a map, the same is done with each of
// its entries by itself: indices are the places in m of what stands first in the
// lists of the probe, from the outermost in.
func pieces(m, good protoreflect.Message, try func(indices []int, probe protoreflect.Message) bool) {
	with := func(field protoreflect.FieldDescriptor, value protoreflect.Value) protoreflect.Message {
		probe := proto.Clone(good.Interface()).ProtoReflect()
		probe.Set(field, value)
		return probe
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !m.Has(field) {
			probe := proto.Clone(good.Interface()).ProtoReflect()
			probe.Clear(field)
			try(nil, probe)
			continue
		}
		if !try(nil, with(field, m.Get(field))) {
			continue
		}
		switch {
		case field.IsMap():
			pairs := m.Get(field).Map()
			var keys []protoreflect.MapKey
			pairs.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				keys = append(keys, key)
				return true
			})
			slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
			for _, key := range keys[:min(len(keys), maxEntries)] {
				alone := m.New().NewField(field)
				alone.Map().Set(key, pairs.Get(key))
				try(nil, with(field, alone))
			}
		case field.IsList():
			list := m.Get(field).List()
			single := func(value protoreflect.Value) protoreflect.Message {
				alone := m.New().NewField(field)
				alone.List().Append(value)
				return with(field, alone)
			}
			for j := range min(list.Len(), maxEntries) {
				if !try([]int{j}, single(list.Get(j))) || field.Message() == nil {
					continue
				}
				pieces(list.Get(j).Message(), good.Get(field).List().Get(0).Message(),
					func(indices []int, element protoreflect.Message) bool {
						return try(append([]int{j}, indices...), single(protoreflect.ValueOfMessage(element)))
					})
			}
		}
	}
}

// misfits calls report for each field of object whose value is of a type that
// the field cannot have, and removes it. protojson would stop at the first one.
func misfits(object map[string]any, message protoreflect.MessageDescriptor, path string, report func(path, rule string)) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		field := fieldOf(message, key)
		if field == nil {
			continue // reported already
		}
		path := strings.TrimPrefix(path+"."+field.TextName(), ".")
		value := object[key]
		if field.IsList() && field.Message() != nil {
			elements, ok := value.([]any)
			if ok {
				for i, element := range elements {
					if child, ok := element.(map[string]any); ok {
						misfits(child, field.Message(), fmt.Sprintf("%s[%d]", path, i), report)
					} else {
						report(fmt.Sprintf("%s[%d]", path, i), "must be a mapping, not "+inWords(element))
						elements[i] = map[string]any{}
					}
				}
				continue
			}
		}
		if rule := misfit(field, value); rule != "" {
			report(path, rule)
			delete(object, key)
		}
	}
}

// misfit returns the rule that the value of a field breaks, if its type is not
// that of the field.
func misfit(field protoreflect.FieldDescriptor, value any) string {
	if value == nil {
		return "" // as if it were not there
	}
	want := "a whole number from 0 on"
	var inside []any // what has to be strings
	ok := false
	switch {
	case field.IsMap():
		want = "a mapping of strings to strings"
		var pairs map[string]any
		pairs, ok = value.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(pairs)) {
			inside = append(inside, pairs[key])
		}
	case field.IsList() && field.Message() != nil:
		want = "a list of mappings"
	case field.IsList():
		want = "a list of strings"
		inside, ok = value.([]any)
	case field.Kind() == protoreflect.StringKind:
		want = "a string"
		_, ok = value.(string)
	default:
		var n float64
		n, ok = value.(float64)
		if text, quoted := value.(string); quoted { // which is how JSON may have them
			var err error
			n, err = strconv.ParseFloat(text, 64)
			ok = err == nil
		}
		ok = ok && n >= 0 && n <= math.MaxUint32 && n == math.Trunc(n)
	}
	if !ok {
		return "must be " + want + ", not " + inWords(value)
	}
	for _, element := range inside {
		if _, ok := element.(string); !ok {
			return "must be " + want + ", and " + inWords(element) + " is none"
		}
	}
	return ""
}

// inWords returns a value of a file in words.
func inWords(value any) string {
	switch value := value.(type) {
	case string:
		return federation.Quote(value)
	case []any:
		return "a list"
	case map[string]any:
		return "a mapping"
	case nil:
		return "nothing"
	}
	return fmt.Sprint(value)
}

// fieldOf returns the field that a key names, in either of its forms, or nil.
func fieldOf(message protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(key); field != nil {
		return field
	}
	return message.Fields().ByTextName(key)
}

// snake returns the text form of a field's JSON name.
func snake(name string) string {
	var text strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			text.WriteByte('_')
		}
		text.WriteRune(unicode.ToLower(r))
	}
	return text.String()
}

// locate returns where everything stands in data, which is valid JSON and begins
// on the given line.
func locate(data []byte, start int) *yaml.Node {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // any number will do
	line, counted := start, int64(0)
	var next func() *yaml.Node
	next = func() *yaml.Node {
		token, _ := decoder.Token()
		line += bytes.Count(data[counted:decoder.InputOffset()], []byte("\n"))
		counted = decoder.InputOffset()
		node := &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(token), Line: line}
		switch token {
		case json.Delim('{'):
			node.Kind = yaml.MappingNode
		case json.Delim('['):
			node.Kind = yaml.SequenceNode
		default:
			return node
		}
		for decoder.More() {
			node.Content = append(node.Content, next())
		}
		_, _ = decoder.Token() // the end of it
		return node
	}
	return next()
}
