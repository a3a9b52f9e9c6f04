package catalogentry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// LineOf returns the line on which a field stands, such as endpoints[0].port, or the line of the
// nearest field around it. The field "" stands for the entry itself.
func (e *Entry) LineOf(field string) int {
	if e.node == nil && field != "" {
		e.node = parseNodes(e.json, e.line)
	}
	line, node := e.line, e.node
	for part := range strings.FieldsFuncSeq(field, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if node == nil {
			break
		}
		var next *yaml.Node
		if node.Kind == yaml.MappingNode {
			for i := 0; i < len(node.Content); i += 2 {
				if key := node.Content[i]; key.Value == part || len(key.Value) < len(part) && snakeCase(key.Value) == part {
					next, line = node.Content[i+1], key.Line
				}
			}
		} else if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(node.Content) {
			next, line = node.Content[i], node.Content[i].Line
		}
		node = next
	}
	return line
}

// parseNodes returns the nodes of data, which is valid JSON and begins on the given line, because
// encoding/json does not say on which line a value stands. The nodes hold kinds, texts and lines
// only.
func parseNodes(data []byte, start int) *yaml.Node {
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

// snakeCase returns the text form of a field's JSON name.
func snakeCase(name string) string {
	var text strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			text.WriteByte('_')
		}
		text.WriteRune(unicode.ToLower(r))
	}
	return text.String()
}
