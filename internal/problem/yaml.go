package problem

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// What the aliases of a text expand to is bounded in proportion to it: enough to
// merge common fields into each service.
const (
	maxExpansion = 64
	valueBytes   = 8       // that a value counts for, beside its text
	maxSize      = 1 << 20 // of a text in bytes; what it has beyond does not raise the bound
)

// Expander makes values of the nodes of one text, and bounds what all of their
// aliases expand to.
type Expander struct {
	offset int
	budget int                 // what aliases may still expand to, in bytes
	spent  bool                // whether they have gone beyond it, which is reported once
	within map[*yaml.Node]bool // aliases that are being expanded
	found  List                // in the value that is being made
}

// NewExpander returns an Expander for a text of that size in bytes that has the given
// number of lines of the file before it.
func NewExpander(offset, size int) *Expander {
	return &Expander{offset: offset, budget: maxExpansion * min(size, maxSize), within: make(map[*yaml.Node]bool)}
}

// Offset returns how many lines of the file come before the text.
func (x *Expander) Offset() int { return x.offset }

// Value returns the value of a node, and what is wrong with it. Aliases and merge
// keys are resolved, dates are strings.
func (x *Expander) Value(node *yaml.Node) (any, List) {
	x.found = List{Room: Room}
	return x.value(node), x.found
}

func (x *Expander) problemf(node *yaml.Node, format string, args ...any) {
	x.found.Add(Problem{Line: node.Line + x.offset, Rule: fmt.Sprintf(format, args...)})
}

// spend takes the size of a node from the budget if the node is part of what an alias
// stands for, and reports whether the budget was large enough.
func (x *Expander) spend(node *yaml.Node) bool {
	if len(x.within) == 0 {
		return true
	}
	if x.budget -= valueBytes + len(node.Value); x.budget < 0 && !x.spent {
		x.spent = true
		x.problemf(node, "aliases stand for more than %d times as much as there is text", maxExpansion)
	}
	return x.budget >= 0
}

func (x *Expander) value(node *yaml.Node) any {
	if !x.spend(node) {
		return nil
	}
	switch node.Kind {
	case yaml.AliasNode:
		var value any
		x.enter(node, func() { value = x.value(node.Alias) })
		return value
	case yaml.MappingNode:
		object := make(map[string]any, len(node.Content)/2)
		x.merge(object, node)
		return object
	case yaml.SequenceNode:
		list := make([]any, 0, len(node.Content))
		for _, child := range node.Content {
			list = append(list, x.value(child))
		}
		return list
	default:
		return x.scalar(node)
	}
}

// enter calls expand for what an alias stands for, unless the alias is part of that.
func (x *Expander) enter(alias *yaml.Node, expand func()) {
	if x.within[alias] {
		x.problemf(alias, "anchor %s contains itself", federation.Quote(alias.Value))
		return
	}
	x.within[alias] = true
	expand()
	delete(x.within, alias)
}

// merge adds the entries of a mapping to object, except for keys that are there
// already. Its own entries come before those that it merges (yaml.org/type/merge.html).
func (x *Expander) merge(object map[string]any, node *yaml.Node) {
	lines := make(map[string]int, len(node.Content)/2)
	var merged *yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := Resolve(node.Content[i]), node.Content[i+1]
		if !x.spend(key) {
			return
		}
		if key.Kind != yaml.ScalarNode {
			x.problemf(key, "a key must be a string")
			continue
		}
		if line, ok := lines[key.Value]; ok {
			x.problemf(node.Content[i], "mapping key %s already defined at line %d", federation.Quote(key.Value), line+x.offset)
			continue
		}
		lines[key.Value] = node.Content[i].Line
		if key.ShortTag() == "!!merge" {
			merged = value
			continue
		}
		// The key is taken as it is written, even where YAML reads it as a number or a date.
		if _, ok := object[key.Value]; !ok {
			object[key.Value] = x.value(value)
		}
	}
	if merged == nil {
		return
	}
	sources := []*yaml.Node{merged}
	if merged.Kind == yaml.SequenceNode {
		sources = merged.Content
	}
	for _, source := range sources {
		switch {
		case source.Kind == yaml.MappingNode:
			x.merge(object, source)
		case source.Kind == yaml.AliasNode && source.Alias.Kind == yaml.MappingNode:
			x.enter(source, func() { x.merge(object, source.Alias) })
		default:
			x.problemf(source, "<< merges a mapping or a list of mappings")
		}
	}
}

// scalar returns the value of a scalar. Dates are strings, as JSON has no dates.
func (x *Expander) scalar(node *yaml.Node) any {
	switch tag := node.ShortTag(); tag {
	case "!!str", "!!timestamp":
		return node.Value
	case "!!null":
		return nil
	}
	var value any
	if err := node.Decode(&value); err != nil {
		x.problemf(node, "%s", SyntaxProblem(err).Rule)
		return nil
	}
	if number, ok := value.(float64); ok && (math.IsInf(number, 0) || math.IsNaN(number)) {
		x.problemf(node, "%v is no number that JSON has", number)
		return nil
	}
	return value
}

// Resolve returns the node that an alias stands for, and any other node as it is.
func Resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// syntaxLine finds the line in an error of the YAML package, which is not typed.
var syntaxLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?`)

// SyntaxProblem returns what an error of the YAML package says. The line is that in
// the text which was decoded, or 0.
func SyntaxProblem(err error) Problem {
	text := err.Error()
	match := syntaxLine.FindStringSubmatch(text)
	line, _ := strconv.Atoi(match[1])
	return Problem{Line: line, Rule: text[len(match[0]):]}
}
