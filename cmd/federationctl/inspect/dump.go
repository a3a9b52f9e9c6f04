package inspect

import (
	"bufio"
	"io"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// Dump writes a catalog as a catalog file in JSON, a service a line, sorted by name: the same
// text for the same services. Of what a terminal obeys nothing comes out.
func (c *Catalog) Dump(w io.Writer) error {
	out := bufio.NewWriter(w) // keeps the first error
	separator := "{\"services\": [\n"
	for _, encoded := range c.services {
		service, err := status.NewService(encoded.Service(), time.Time{}, false)
		if err != nil {
			return err //nolint:wrapcheck // it names the service
		}
		_, _ = out.WriteString(separator + printable.EscapeControls(string(service.Service)))
		separator = ",\n"
	}
	if len(c.services) == 0 {
		_, _ = out.WriteString(separator)
	}
	_, _ = out.WriteString("\n]}\n")
	return out.Flush() //nolint:wrapcheck // of the caller's own writer
}
