package ownerfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// entry is one element of services.
type entry struct {
	start  int        // line where it begins
	offset int        // of the lines of node in the file
	node   *yaml.Node // where its fields stand; in a JSON file nil until someone asks
	value  any        // as encoding/json decodes it
	json   []byte     // in a JSON file
	broken findings   // why it has no value
}

// newEntry returns the entry that a node is.
func newEntry(node *yaml.Node, x *expander) *entry {
	e := &entry{start: node.Line + x.offset, offset: x.offset, node: node, value: x.value(node)}
	e.broken, x.found = x.found, findings{room: maxKept}
	return e
}

// findings are problems or warnings. There is room for some of them, the others
// are counted.
type findings struct {
	room int
	kept []Problem
	more int
}

func (f *findings) full() bool { return len(f.kept) >= f.room }

func (f *findings) add(p Problem) {
	if f.full() {
		f.more++
	} else {
		f.kept = append(f.kept, p)
	}
}

// decode returns the service that the entry spells. If that is none it returns
// nil, and finds at least one thing that is wrong with it: all where there is
// room. The place is that of the entry in the file.
func (e *entry) decode(place string, policy wire.Policy, found *findings) *federation.Service {
	if len(e.broken.kept) > 0 {
		for _, p := range e.broken.kept {
			p.Service = place
			found.add(p)
		}
		found.more += e.broken.more
		return nil
	}
	object, ok := e.value.(map[string]any)
	if !ok {
		found.add(Problem{Line: e.start, Service: place, Rule: "a service must be a mapping"})
		return nil
	}
	label := place
	if name, ok := object["name"].(string); ok && name != "" {
		label = federation.Quote(name)
	}
	start := *found
	report := func(at, field, rule string) {
		if found.full() {
			found.more++ // without looking for the line
			return
		}
		found.add(Problem{Line: e.line(at), Service: label, Field: field, Rule: rule})
	}
	var message typespb.FederatedService
	var left map[string]bool // paths of what was left out, as it has the wrong type
	if e.json != nil || !fill(message.ProtoReflect(), object) {
		var ok bool
		if left, ok = e.fillSlowly(&message, object, report); !ok {
			return nil
		}
	}
	service, err := wire.DecodeService(&message, policy)
	switch {
	case err != nil && found.full():
		found.more++
	case err != nil:
		for _, invalid := range mistakes(&message, policy, err, found.room-len(found.kept)+len(left)) {
			if !within(invalid.Field, left) { // what was left out is not missing
				report(invalid.Field, invalid.Field, invalid.Rule)
			}
		}
	}
	if len(found.kept) > len(start.kept) || found.more > start.more {
		return nil
	}
	return service
}

// within reports whether the path of a field is one of paths, or below one.
func within(field string, paths map[string]bool) bool {
	for i, c := range field {
		if c == '.' && paths[field[:i]] {
			return true
		}
	}
	return paths[field]
}

// fill sets the fields of message to the values of object, and reports whether it
// could: they are there once, under their names, and have the types that the
// protobuf JSON mapping gives them.
func fill(message protoreflect.Message, object map[string]any) bool {
	var seen uint64 // fields, by their numbers
	for key, value := range object {
		field := fieldOf(message.Descriptor(), key)
		if field == nil {
			return false
		}
		if value == nil {
			continue
		}
		bit := uint64(1) << field.Number()
		if seen&bit != 0 {
			return false // under both of its names
		}
		seen |= bit
		switch {
		case field.IsMap():
			pairs, ok := value.(map[string]any)
			if !ok {
				return false
			}
			target := message.Mutable(field).Map()
			for key, value := range pairs {
				text, ok := value.(string)
				if !ok || !utf8.ValidString(key) || !utf8.ValidString(text) {
					return false
				}
				target.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(text))
			}
		case field.IsList():
			elements, ok := value.([]any)
			if !ok {
				return false
			}
			target := message.Mutable(field).List()
			for _, element := range elements {
				switch element := element.(type) {
				case string:
					if field.Message() != nil || !utf8.ValidString(element) {
						return false
					}
					target.Append(protoreflect.ValueOfString(element))
				case map[string]any:
					if field.Message() == nil || !fill(target.AppendMutable().Message(), element) {
						return false
					}
				default:
					return false
				}
			}
		case field.Kind() == protoreflect.StringKind:
			text, ok := value.(string)
			if !ok || !utf8.ValidString(text) {
				return false
			}
			message.Set(field, protoreflect.ValueOfString(text))
		default:
			number, ok := value.(int)
			if !ok || number < 0 || number > math.MaxUint32 {
				return false
			}
			message.Set(field, protoreflect.ValueOfUint32(uint32(number)))
		}
	}
	return true
}

// fillSlowly fills an empty message with what protojson makes of the entry. It reports
// fields that do not exist or have the wrong type, and returns the paths of those
// that it left out for that. Of anything else that protojson refuses it reports
// what protojson says, and false.
func (e *entry) fillSlowly(message *typespb.FederatedService, object map[string]any, report func(at, field, rule string)) (left map[string]bool, ok bool) {
	proto.Reset(message)
	descriptor := message.ProtoReflect().Descriptor()
	unknownFields(object, descriptor, "", func(path, key string) {
		report(path+"."+key, path, "there is no field "+federation.Quote(key))
	})
	data := e.json
	if data == nil {
		var err error
		if data, err = json.Marshal(object); err != nil {
			report("", "", err.Error())
			return nil, false
		}
	}
	options := protojson.UnmarshalOptions{DiscardUnknown: true}
	err := options.Unmarshal(data, message)
	if err == nil {
		return nil, true
	}
	var values map[string]any // of the types of JSON, whatever the file is
	_ = json.Unmarshal(data, &values)
	left = make(map[string]bool)
	misfits(values, descriptor, "", func(path, rule string) {
		left[path] = true
		report(path, path, rule)
	})
	rest, failure := json.Marshal(values)
	if len(left) == 0 || failure != nil || options.Unmarshal(rest, message) != nil {
		report("", "", decodeRule(err))
		return nil, false
	}
	return left, true
}

// unknownFields calls report for each key of object that is no field of the
// message, with the path of the mapping that has it. protojson would stop at the
// first one.
func unknownFields(object map[string]any, message protoreflect.MessageDescriptor, path string, report func(path, key string)) {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		field := fieldOf(message, key)
		if field == nil {
			report(path, key)
			continue
		}
		if field.Message() == nil || !field.IsList() {
			continue
		}
		elements, _ := object[key].([]any)
		for i, element := range elements {
			if child, ok := element.(map[string]any); ok {
				unknownFields(child, field.Message(), fmt.Sprintf("%s[%d]", field.TextName(), i), report)
			}
		}
	}
}

// decodePrefix is what protojson puts before the rule. Its line is that of our
// own conversion, and its space varies on purpose.
var decodePrefix = regexp.MustCompile(`^proto:\s*(?:syntax error\s*)?(?:\(line \d+:\d+\):)?\s*`)

func decodeRule(err error) string {
	return decodePrefix.ReplaceAllString(strings.ReplaceAll(err.Error(), "\u00a0", " "), "")
}

// line returns the line on which a field stands, or the nearest to it that is
// known.
func (e *entry) line(field string) int {
	if e.node == nil && field != "" {
		e.node = locate(e.json, e.start)
	}
	line, node := e.start, e.node
	for part := range strings.FieldsFuncSeq(field, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if node == nil {
			break
		}
		node = resolve(node)
		var next *yaml.Node
		if node.Kind == yaml.MappingNode {
			for i := 0; i < len(node.Content); i += 2 {
				if key := node.Content[i]; key.Value == part || len(key.Value) < len(part) && snake(key.Value) == part {
					next, line = node.Content[i+1], key.Line+e.offset
				}
			}
		} else if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(node.Content) {
			next, line = node.Content[i], node.Content[i].Line+e.offset
		}
		node = next
	}
	return line
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// doubts finds what is probably not meant in a valid service.
func (e *entry) doubts(s *federation.Service, found *findings) {
	warn := func(field, rule string) {
		if found.full() {
			found.more++
			return
		}
		found.add(Problem{Line: e.line(field), Service: federation.Quote(s.Name), Field: field, Rule: rule})
	}
	offered, selected := make(map[string]bool), make(map[string]bool)
	for _, endpoint := range s.Endpoints {
		for _, label := range endpoint.Labels {
			offered[label] = true
		}
	}
	everything := false                         // is selected
	labels := make(map[federation.Label]string) // IDs by the names they stand for
	for i, instance := range s.Instances {
		field := fmt.Sprintf("instances[%d]", i)
		matches := false
		for _, label := range instance.EndpointSelector {
			selected[label] = true
			matches = matches || offered[label]
		}
		if !matches {
			// Hamlet: "If there is no matching selector for an Instance, then consumer
			// agent implementors must associate to that Instance all endpoints."
			everything = true
			if len(instance.EndpointSelector) > 0 {
				warn(field+".endpoint_selector", "no endpoint has one of these labels, so the instance gets every endpoint")
			}
		}
		label, err := federation.ParseLabel(instance.ID)
		if err == nil {
			_, err = federation.ParseFQDN(label.String() + "." + s.FQDN.String())
		}
		switch other, taken := labels[label]; {
		case err != nil:
			warn(field+".id", fmt.Sprintf("%s will have no DNS name of its own: %v", federation.Quote(instance.ID), err))
		case taken:
			warn(field+".id", fmt.Sprintf("%s and %s are one DNS name; one of the two instances will have none",
				federation.Quote(other), federation.Quote(instance.ID)))
		default:
			labels[label] = instance.ID
		}
	}
	for j, endpoint := range s.Endpoints {
		if !everything && !slices.ContainsFunc(endpoint.Labels, func(label string) bool { return selected[label] }) {
			warn(fmt.Sprintf("endpoints[%d]", j), fmt.Sprintf("no instance selects %s, so only the name of the service leads to it",
				endpoint.Address))
		}
	}
}
