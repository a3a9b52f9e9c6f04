// Package catalogentry reads one service of a catalog file: a value of YAML or JSON
// in the protobuf JSON mapping of FederatedService. It returns the service, or
// everything that is wrong with it, each with its line.
//
// The mapping is read by hand after protojson or package wire has found a mistake, as
// they stop at the first one. It also is where a YAML file has none: to turn each
// service into JSON for protojson takes 43 % more allocations (BenchmarkParse of
// package catalogfile).
package catalogentry

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// Entry is one element of the list of services.
type Entry struct {
	line   int          // on which it begins
	offset int          // of the lines of node in the file
	node   *yaml.Node   // where its fields stand; in a JSON file nil until someone asks
	value  any          // of the types of encoding/json, and int
	json   []byte       // its text in a JSON file, nil in others
	broken problem.List // why it has no value
}

// FromYAML returns the entry that a node is.
func FromYAML(node *yaml.Node, x *problem.Expander) *Entry {
	value, broken := x.Value(node)
	return &Entry{line: node.Line + x.Offset(), offset: x.Offset(), node: node, value: value, broken: broken}
}

// FromJSON returns the entry that data is, which is valid JSON and begins on the
// line.
func FromJSON(data []byte, line int) *Entry {
	e := &Entry{line: line, json: data}
	if err := json.Unmarshal(data, &e.value); err != nil {
		return Broken(line, err.Error()) // such as a number that is too large
	}
	return e
}

// Broken returns an entry that begins on the line and cannot be read.
func Broken(line int, rule string) *Entry {
	return &Entry{line: line, broken: problem.List{Kept: []problem.Problem{{Line: line, Rule: rule}}}}
}

// Service returns the service that the entry spells, if a consumer with that policy
// would take it. Otherwise it returns nil and adds to found what is wrong, which is
// one thing at least, and everything where there is room. Place names the entry
// where it has no name of its own, such as services[2].
func (e *Entry) Service(place string, policy wire.Policy, found *problem.List) *federation.Service {
	if len(e.broken.Kept) > 0 {
		for _, p := range e.broken.Kept {
			p.Service = place
			found.Add(p)
		}
		found.More += e.broken.More
		return nil
	}
	object, ok := e.value.(map[string]any)
	if !ok {
		found.Add(problem.Problem{Line: e.line, Service: place, Rule: "a service must be a mapping"})
		return nil
	}
	label := place
	if name, ok := object["name"].(string); ok && name != "" {
		label = federation.Quote(name)
	}
	before := len(found.Kept) + found.More
	report := func(at, field, rule string) {
		if found.Full() {
			found.More++ // without looking for the line
			return
		}
		found.Add(problem.Problem{Line: e.Line(at), Service: label, Field: field, Rule: rule})
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
	case err != nil && found.Full():
		found.More++
	case err != nil:
		for _, invalid := range mistakes(&message, policy, err, found.Room-len(found.Kept)+len(left)) {
			if !within(invalid.Field, left) { // what was left out is not missing
				report(invalid.Field, invalid.Field, invalid.Rule)
			}
		}
	}
	if len(found.Kept)+found.More > before {
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
