package problem

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// noAlias is the rule that an alias breaks: a few aliases can stand for values that are larger than
// memory.
const noAlias = "aliases (*%s) are not resolved here; write the value again"

// ValueOf returns the value of a node, and its problems. Dates are strings.
func ValueOf(node *yaml.Node) (any, List) {
	v := valueReader{List{Room: Room}}
	return v.readNode(node), v.found
}

// valueReader builds the value of a node, and collects its problems.
type valueReader struct{ found List }

// addProblemf adds a problem on the line of the node.
func (v *valueReader) addProblemf(node *yaml.Node, format string, args ...any) {
	v.found.Add(Problem{Line: node.Line, Rule: fmt.Sprintf(format, args...)})
}

// readNode returns the value of a node, which is nil for an alias.
func (v *valueReader) readNode(node *yaml.Node) any {
	switch node.Kind {
	case yaml.AliasNode:
		v.addProblemf(node, noAlias, safetext.Printable(node.Value))
		return nil
	case yaml.MappingNode:
		return v.readMapping(node)
	case yaml.SequenceNode:
		list := make([]any, 0, len(node.Content))
		for _, child := range node.Content {
			list = append(list, v.readNode(child))
		}
		return list
	default:
		return v.readScalar(node)
	}
}

// readMapping returns the value of a mapping. A key is taken as it is written, even where YAML reads
// it as a number or a date.
func (v *valueReader) readMapping(node *yaml.Node) any {
	object := make(map[string]any, len(node.Content)/2)
	lines := make(map[string]int, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		switch line, twice := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge":
			v.addProblemf(key, "a key must be a plain word")
		case twice:
			v.addProblemf(key, "mapping key %s already defined at line %d", safetext.Quote(key.Value), line)
		default:
			lines[key.Value] = key.Line
			object[key.Value] = v.readNode(node.Content[i+1])
		}
	}
	return object
}

// readScalar returns the value of a scalar. Dates are strings, as JSON has no dates.
func (v *valueReader) readScalar(node *yaml.Node) any {
	switch tag := node.ShortTag(); tag {
	case "!!str", "!!timestamp":
		return node.Value
	case "!!null":
		return nil
	}
	var value any
	if err := node.Decode(&value); err != nil {
		v.addProblemf(node, "%s", syntaxProblem(err).Rule)
		return nil
	}
	if number, ok := value.(float64); ok && (math.IsInf(number, 0) || math.IsNaN(number)) {
		v.addProblemf(node, "%v is no number that JSON has", number)
		return nil
	}
	return value
}

// syntaxLine matches what stands before the rule in an error of the YAML package, with the line.
// The error has no type that has the line.
var syntaxLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?`)

// syntaxProblem returns the problem in an error of the YAML package. Its line is that in the text
// which was decoded, or 0.
func syntaxProblem(err error) Problem {
	text := err.Error()
	match := syntaxLine.FindStringSubmatch(text)
	line, _ := strconv.Atoi(match[1])
	return Problem{Line: line, Rule: text[len(match[0]):]}
}
