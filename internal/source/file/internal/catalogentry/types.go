package catalogentry

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// fillMessage decodes data, whose value is object, into the message with protojson.
// It reports fields that do not exist or have the wrong type, and returns the paths of
// those that it left out for their type. When protojson refuses data for another
// reason, fillMessage reports that reason and returns false.
func fillMessage(
	message *typespb.FederatedService, data []byte, object map[string]any, report func(at, field, rule string),
) (left map[string]bool, ok bool) {
	descriptor := message.ProtoReflect().Descriptor()
	unknownFields(object, descriptor, "", func(path, key string) {
		report(path+"."+key, path, "there is no field "+safetext.Quote(key))
	})
	options := protojson.UnmarshalOptions{DiscardUnknown: true}
	err := options.Unmarshal(data, message)
	if err == nil {
		return nil, true
	}
	left = make(map[string]bool)
	reportMisfits(object, descriptor, "", func(path, rule string) {
		left[path] = true
		report(path, path, rule)
	})
	rest, failure := json.Marshal(object)
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

// decodePrefix matches what protojson puts before the rule. The line in it is that of our
// own conversion, and its space varies on purpose.
var decodePrefix = regexp.MustCompile(`^proto:\s*(?:syntax error\s*)?(?:\(line \d+:\d+\):)?\s*`)

// decodeRule returns the rule in an error of protojson.
func decodeRule(err error) string {
	return decodePrefix.ReplaceAllString(strings.ReplaceAll(err.Error(), "\u00a0", " "), "")
}

// reportMisfits calls report for each value in object whose type is not that of its
// field, and removes it. protojson would stop at the first one.
func reportMisfits(object map[string]any, message protoreflect.MessageDescriptor, path string, report func(path, rule string)) {
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
						reportMisfits(child, field.Message(), fmt.Sprintf("%s[%d]", path, i), report)
					} else {
						report(fmt.Sprintf("%s[%d]", path, i), "must be a mapping, not "+inWords(element))
						elements[i] = map[string]any{}
					}
				}
				continue
			}
		}
		if rule := misfitRule(field, value); rule != "" {
			report(path, rule)
			delete(object, key)
		}
	}
}

// misfitRule returns the rule that the value breaks if its type is not that of the field, and
// otherwise "".
func misfitRule(field protoreflect.FieldDescriptor, value any) string {
	if value == nil {
		return "" // null counts as absent
	}
	want := "a whole number from 0 on"
	var inside []any // values that must be strings
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
		if text, quoted := value.(string); quoted { // JSON may have a number as a string
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

// fieldOf returns the field that a key names, in either of its forms, or nil.
func fieldOf(message protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(key); field != nil {
		return field
	}
	return message.Fields().ByTextName(key)
}
