package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

// reader makes values of nodes, and keeps all that is wrong with them.
type reader struct{ found problem.List }

// value is a node at its place in the file.
type value struct {
	node  *yaml.Node
	field string // its path, such as rules[0].services; empty for the whole file
	line  int    // on which it begins, or its key does
}

func (r *reader) wrongf(v value, format string, args ...any) {
	r.found.Add(problem.Problem{Line: v.line, Field: v.field, Rule: problem.Printable(fmt.Sprintf(format, args...))})
}

// is reports whether a value is of a kind, and otherwise says that it is not.
func (r *reader) is(v value, kind yaml.Kind, what string) bool {
	switch {
	case v.node.Kind == yaml.AliasNode:
		r.wrongf(v, "aliases (*%s) are not resolved here; write the value again", v.node.Value)
	case v.node.ShortTag() == "!!null":
		r.wrongf(v, "has no value, must be %s", what)
	case v.node.Kind == kind:
		return true
	default:
		r.wrongf(v, "must be %s", what)
	}
	return false
}

// mapping hands the value of each key to its function. It returns the lines of the
// keys, and whether the value is a mapping.
func (r *reader) mapping(v value, known map[string]func(v value)) (lines map[string]int, ok bool) {
	if !r.is(v, yaml.MappingNode, "a mapping") {
		return nil, false
	}
	lines = make(map[string]int)
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		at := value{node: v.node.Content[i+1], line: key.Line, field: below(v.field, problem.Printable(key.Value))}
		readKey, isKnown := known[key.Value]
		switch first, twice := lines[key.Value]; {
		case !isKnown || key.Kind != yaml.ScalarNode:
			r.wrongf(at, "there is no such key; those that there are: %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case twice:
			r.wrongf(at, "is there twice, first on line %d", first)
		default:
			lines[key.Value] = key.Line
			readKey(at)
		}
	}
	return lines, true
}

// below returns the path of a key in a mapping.
func below(field, key string) string { return strings.TrimPrefix(field+"."+key, ".") }

// require says which of the keys are missing in a mapping with these lines of keys.
func (r *reader) require(v value, lines map[string]int, keys ...string) {
	for _, key := range keys {
		if _, ok := lines[key]; !ok {
			r.wrongf(value{line: v.line, field: below(v.field, key)}, "required")
		}
	}
}

// list calls each for the elements of a list, of which there may be so many.
func (r *reader) list(v value, most int, each func(v value)) {
	if !r.is(v, yaml.SequenceNode, "a list") {
		return
	}
	if len(v.node.Content) > most {
		r.wrongf(v, "has %d entries, more than %d", len(v.node.Content), most)
		return
	}
	for i, node := range v.node.Content {
		each(value{node: node, field: fmt.Sprintf("%s[%d]", v.field, i), line: node.Line})
	}
}

// unique returns a function that says when a text comes a second time.
func (r *reader) unique() func(v value, text string) {
	lines := make(map[string]int)
	return func(v value, text string) {
		if first, twice := lines[text]; twice {
			r.wrongf(v, "%s is there twice, first on line %d", federation.Quote(text), first)
			return
		}
		lines[text] = v.line
	}
}

// read stores what parse makes of a scalar, and reports whether it is right.
func read[T any](r *reader, v value, target *T, parse func(text string) (T, error)) bool {
	if !r.is(v, yaml.ScalarNode, "a single value") {
		return false
	}
	parsed, err := parse(v.node.Value)
	if err != nil {
		r.wrongf(v, "%v", err)
		return false
	}
	*target = parsed
	return true
}
