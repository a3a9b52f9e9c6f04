package inspect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// Formats are the formats of a dump: jsonl is one service a line.
var Formats = []string{"yaml", "json", "jsonl"}

// chunk is how many services are encoded at once: an encoder of YAML has large buffers.
const chunk = 256

// Dump writes a catalog as a catalog file, sorted by name: the same text for the same
// services. Of what a terminal obeys nothing comes out.
func (c *Catalog) Dump(w io.Writer, format string) error {
	form, begin, between, end := yamlText, "services:\n", "", ""
	switch {
	case format == "json":
		form, begin, between, end = joined(",\n", ""), "{\"services\": [\n", ",\n", "\n]}\n"
	case len(c.services) == 0 && format == "jsonl":
		begin = "{\"services\": []}\n" // as no line at all is a file that is not written yet
	case format == "jsonl":
		form, begin = joined("\n", "\n"), ""
	case len(c.services) == 0:
		begin = "services: []\n"
	}
	out := bufio.NewWriter(w) // keeps the first error
	_, _ = out.WriteString(begin)
	separator := ""
	for services := range slices.Chunk(c.services, chunk) {
		texts := make([][]byte, 0, chunk)
		for _, encoded := range services {
			service, err := status.NewService(encoded.Service(), time.Time{}, false)
			if err != nil {
				return err //nolint:wrapcheck // it names the service
			}
			texts = append(texts, service.Service)
		}
		text, err := form(texts)
		if err != nil {
			return err
		}
		if _, err := out.WriteString(separator + printable.EscapeControls(text)); err != nil {
			return err //nolint:wrapcheck // of the caller's own writer
		}
		separator = between
	}
	_, _ = out.WriteString(end)
	return out.Flush() //nolint:wrapcheck // of the caller's own writer
}

// joined returns services with a separator between them and an end behind them.
func joined(separator, end string) func(services [][]byte) (string, error) {
	return func(services [][]byte) (string, error) {
		return string(bytes.Join(services, []byte(separator))) + end, nil
	}
}

// yamlText returns services as items of a list.
func yamlText(services [][]byte) (string, error) {
	all := &yaml.Node{Kind: yaml.SequenceNode}
	for _, service := range services {
		decoder := json.NewDecoder(bytes.NewReader(service))
		decoder.UseNumber()
		one, err := node(decoder)
		if err != nil {
			return "", fmt.Errorf("JSON of a service: %w", err)
		}
		all.Content = append(all.Content, one)
	}
	var text strings.Builder
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(all); err != nil {
		return "", fmt.Errorf("YAML of services: %w", err)
	}
	return text.String(), nil
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
		if printable.EscapeControls(value) != value || strings.ContainsAny(value, "\r\t") || slices.Contains(oldBooleans, strings.ToLower(value)) {
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
