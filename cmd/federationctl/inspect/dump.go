package inspect

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"time"

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
	return printable.YAML("[" + string(bytes.Join(services, []byte(","))) + "]") //nolint:wrapcheck // it says what is wrong
}
