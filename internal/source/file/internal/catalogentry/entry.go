// Package catalogentry reads one service of a catalog file: a value of YAML or JSON
// in the protobuf JSON mapping of FederatedService. It returns the service, or
// all mistakes in the service, each with its line. A service that lists no instances
// has one, with the ID default and the protocol that the service names, or TCP.
//
// protojson and package wire read the service. They stop at the first mistake, so once they
// have found one, this package looks for the others itself.
package catalogentry

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// Entry is one element of the list of services, as it stands in the file.
type Entry struct {
	line   int          // on which it begins
	node   *yaml.Node   // where its fields stand; in a JSON file nil until LineOf needs it
	json   []byte       // the entry as JSON; nil if there is anything in broken
	broken problem.List // why the entry cannot be read
}

// FromYAML returns the entry in a YAML node.
func FromYAML(node *yaml.Node) *Entry {
	e := &Entry{line: node.Line, node: node}
	value, broken := problem.ValueOf(node)
	if e.broken = broken; len(broken.Kept) > 0 {
		return e
	}
	var err error
	if e.json, err = json.Marshal(value); err != nil {
		return NewBroken(e.line, err.Error())
	}
	return e
}

// FromJSON returns the entry in data, which begins on the line.
func FromJSON(data []byte, line int) *Entry { return &Entry{line: line, json: data} }

// NewBroken returns an entry that begins on the line and cannot be read for breaking the rule.
func NewBroken(line int, rule string) *Entry {
	return &Entry{line: line, broken: problem.List{Kept: []problem.Problem{{Line: line, Rule: rule}}}}
}

// JSON returns the entry as JSON, or nil if the entry cannot be read. Entries with the same JSON
// have the same service.
func (e *Entry) JSON() []byte { return e.json }

// DecodeService returns the service of the entry, if a consumer with that policy would take it.
// Otherwise it returns nil and adds the mistakes to found: one at least, and all where there is
// room. Place names an entry that has no name of its own, such as services[2].
func (e *Entry) DecodeService(place string, policy wire.AddressPolicy, found *problem.List) *federation.Service {
	object, broken := map[string]any(nil), e.broken
	if len(broken.Kept) == 0 {
		if service, err := decodeJSON(e.json, policy); err == nil {
			return service
		}
		object, broken = e.readObject()
	}
	if len(broken.Kept) > 0 {
		for _, p := range broken.Kept {
			p.Service = place
			found.Add(p)
		}
		found.More += broken.More
		return nil
	}
	alone := addInstance(object)
	service, err := decodeValue(object, policy)
	// What protojson refuses in the file, and not in the object, is a field that is there twice.
	twice := protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(e.json, new(typespb.FederatedService))
	if err != nil && !isInvalid(err) {
		twice = nil
	}
	switch {
	case err == nil && twice == nil:
		return service
	case found.IsFull():
		found.More++ // without looking for what it is
		return nil
	}
	if name, ok := object["name"].(string); ok && name != "" {
		place = safetext.Quote(name)
	}
	report := func(at, field, rule string) {
		if found.IsFull() {
			found.More++ // without looking for the line
			return
		}
		if alone { // the file has the protocol of that instance at the service
			at, field = strings.TrimPrefix(at, "instances[0]."), strings.TrimPrefix(field, "instances[0].")
		}
		found.Add(problem.Problem{Line: e.LineOf(at), Service: place, Field: field, Rule: rule})
	}
	if twice != nil {
		report("", "", decodeRule(twice))
		return nil
	}
	p := prober{policy: policy, report: report, most: found.Room - len(found.Kept), told: make(map[string]bool)}
	if p.findMistakes(object); p.found > 0 {
		return nil
	}
	if invalid, ok := errors.AsType[*federation.InvalidError](err); ok {
		report(invalid.Field, invalid.Field, invalid.Rule)
	} else {
		report("", "", decodeRule(err))
	}
	return nil
}

// readObject returns the entry as an object, or why it is none.
func (e *Entry) readObject() (map[string]any, problem.List) {
	var value any
	if err := json.Unmarshal(e.json, &value); err != nil { // such as a number that is too large
		rule := err.Error()
		if _, ok := errors.AsType[*json.SyntaxError](err); ok {
			rule += "; a line holds one service" // as in no other form broken JSON becomes an entry
		}
		return nil, NewBroken(e.line, rule).broken
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, NewBroken(e.line, "a service must be a mapping").broken
	}
	return object, problem.List{}
}

// addInstance adds the instance default to a service that lists no instances, with the protocol that
// the service names, and reports whether it did.
func addInstance(object map[string]any) bool {
	if _, ok := object["instances"]; ok {
		return false
	}
	protocol, ok := object["protocol"]
	if !ok {
		protocol = "TCP"
	}
	delete(object, "protocol")
	object["instances"] = []any{map[string]any{"id": "default", "protocol": protocol}}
	return true
}

// isInvalid reports whether package wire has returned the error, and not protojson.
func isInvalid(err error) bool {
	_, ok := errors.AsType[*federation.InvalidError](err)
	return ok
}

// decodePrefix matches what protojson puts before the rule. The line in it is that of our
// own conversion, and its space varies on purpose.
var decodePrefix = regexp.MustCompile(`^proto:\s*(?:syntax error\s*)?(?:\(line \d+:\d+\):)?\s*`)

// decodeRule returns the rule in an error of protojson.
func decodeRule(err error) string {
	return decodePrefix.ReplaceAllString(strings.ReplaceAll(err.Error(), "\u00a0", " "), "")
}
