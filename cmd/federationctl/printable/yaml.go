package printable

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML returns JSON as YAML, with keys in the same order. Of what a terminal obeys nothing
// comes out but as an escape.
func YAML(text string) (string, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	root, err := node(decoder)
	if err != nil {
		return "", fmt.Errorf("JSON of YAML: %w", err)
	}
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return "", fmt.Errorf("YAML: %w", err)
	}
	return EscapeControls(out.String()), nil
}

// Objects writes objects in a format for programs, which means the same for every command:
// json is JSON, an object a line where there may be several; yaml is the same as documents of
// YAML; name has the names alone, one a line.
type Objects struct {
	Format string
	begun  bool
}

// IsTable reports whether a format is the one for people, which it is by default.
func IsTable(format string) bool { return format == "" || format == "table" }

// Text returns the text of the next object. Its names are those that other commands take.
func (o *Objects) Text(object string, names ...string) (string, error) {
	switch o.Format {
	case "name":
		if len(names) == 0 {
			return "", nil
		}
		return strings.Join(names, "\n") + "\n", nil
	case "yaml":
		text, err := YAML(object)
		if o.begun {
			text = "---\n" + text
		}
		o.begun = true
		return text, err
	}
	return object, nil
}

// oldBooleans are texts that are truth values for readers of YAML 1.1, as in its type
// repository at bool.
var oldBooleans = []string{"y", "n", "yes", "no", "on", "off"}

// node returns the next value of JSON as one of YAML, with the keys in the same order.
func node(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	switch value := token.(type) {
	case string:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
		if EscapeControls(value) != value || strings.ContainsAny(value, "\r\t") || slices.Contains(oldBooleans, strings.ToLower(value)) {
			n.Style = yaml.DoubleQuotedStyle // the only one that has escapes
		}
		return n, nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: value.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: strconv.FormatBool(value)}, nil
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if value == '{' {
			n.Kind = yaml.MappingNode
		}
		for decoder.More() {
			item, err := node(decoder) // of a mapping, keys and values in turn
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, item)
		}
		_, err := decoder.Token() // the end
		return n, err             //nolint:wrapcheck // the caller does
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: "null"}, nil
}
