// Package catalogentry reads one service of a catalog file: a value of YAML or JSON
// in the protobuf JSON mapping of FederatedService. It returns the service, or
// all mistakes in the service, each with its line. A service that lists no instances
// has one, with the ID default and the protocol that the service names, or TCP.
//
// protojson and package wire read the service. They stop at the first mistake, so once they
// have found one, this package looks for the others itself.
package catalogentry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	whole  []byte       // json with the default instance; nil if the entry lists instances, or before addInstance
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
	if len(e.broken.Kept) == 0 {
		if service := decodeJSON(e.json, policy); service != nil {
			return service
		}
		if e.addInstance(); e.whole != nil {
			if service := decodeJSON(e.whole, policy); service != nil {
				return service
			}
		}
	}
	if found.IsFull() {
		found.More++ // without looking for what it is
	} else {
		e.explainMistakes(place, policy, found)
	}
	return nil
}

// decodeJSON returns the service in data, or nil if a consumer with that policy would not take it.
func decodeJSON(data []byte, policy wire.AddressPolicy) *federation.Service {
	var message typespb.FederatedService
	if protojson.Unmarshal(data, &message) != nil {
		return nil
	}
	service, err := wire.DecodeService(&message, policy)
	if err != nil {
		return nil
	}
	return service
}

// addInstance sets e.whole if the entry lists no instances. It leaves an entry with a key that
// stands twice as it is, because that is a mistake.
func (e *Entry) addInstance() {
	d := json.NewDecoder(bytes.NewReader(e.json))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return
	}
	begin, members, protocol := d.InputOffset(), e.json, json.RawMessage(nil)
	for d.More() {
		from := d.InputOffset()
		key, err := d.Token()
		var value json.RawMessage
		switch failure := d.Decode(&value); {
		case err != nil || failure != nil || key == "instances" || key == "protocol" && protocol != nil:
			return
		case key == "protocol":
			protocol, members = value, slices.Concat(e.json[:from], e.json[d.InputOffset():])
		}
	}
	if _, err := d.Token(); err != nil {
		return // there is no end
	}
	if protocol == nil {
		protocol = json.RawMessage(`"TCP"`)
	}
	e.whole = fmt.Appendf(nil, `{"instances":[{"id":"default","protocol":%s}]`, protocol)
	if members = bytes.TrimLeft(members[begin:], ", \t\r\n"); members[0] != '}' {
		e.whole = append(e.whole, ',')
	}
	e.whole = append(e.whole, members...)
}

// explainMistakes adds the mistakes in the entry to found.
func (e *Entry) explainMistakes(place string, policy wire.AddressPolicy, found *problem.List) {
	broken := e.broken
	var value any
	said := e.json
	if e.whole != nil {
		said = e.whole
	}
	if len(broken.Kept) == 0 {
		if err := json.Unmarshal(said, &value); err != nil { // such as a number that is too large
			rule := err.Error()
			if _, ok := errors.AsType[*json.SyntaxError](err); ok {
				rule += "; a line holds one service" // as in no other form broken JSON becomes an entry
			}
			broken = NewBroken(e.line, rule).broken
		}
	}
	object, ok := value.(map[string]any)
	if len(broken.Kept) == 0 && !ok {
		broken = NewBroken(e.line, "a service must be a mapping").broken
	}
	for _, p := range broken.Kept {
		p.Service = place
		found.Add(p)
	}
	if found.More += broken.More; len(broken.Kept) > 0 {
		return
	}
	label := place
	if name, ok := object["name"].(string); ok && name != "" {
		label = safetext.Quote(name)
	}
	report := func(at, field, rule string) {
		if found.IsFull() {
			found.More++ // without looking for the line
			return
		}
		if e.whole != nil { // the file has the protocol of that instance at the service
			at, field = strings.TrimPrefix(at, "instances[0]."), strings.TrimPrefix(field, "instances[0].")
		}
		found.Add(problem.Problem{Line: e.LineOf(at), Service: label, Field: field, Rule: rule})
	}
	var message typespb.FederatedService
	left, ok := fillMessage(&message, said, object, report)
	if !ok {
		return
	}
	_, err := wire.DecodeService(&message, policy)
	switch {
	case err != nil && found.IsFull():
		found.More++
	case err != nil:
		for _, invalid := range findMistakes(&message, policy, err, found.Room-len(found.Kept)+len(left)) {
			if !isWithinAny(invalid.Field, left) { // what was left out is not missing
				report(invalid.Field, invalid.Field, invalid.Rule)
			}
		}
	}
}

// isWithinAny reports whether the path of a field is one of paths, or below one.
func isWithinAny(field string, paths map[string]bool) bool {
	for i, c := range field {
		if c == '.' && paths[field[:i]] {
			return true
		}
	}
	return paths[field]
}
