package inspect

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Catalog has the services of a catalog, by their names.
type Catalog struct{ services []*wire.Encoded }

// Len returns how many services there are.
func (c *Catalog) Len() int { return len(c.services) }

// parse reads the text of a catalog. Addresses are not judged: whoever has published the
// services has done that.
func parse(data []byte) (*Catalog, error) {
	parsed := catalogfile.Parse(data, wire.AnyAddress())
	if err := parsed.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(parsed.Services, func(a, b *wire.Encoded) int { return strings.Compare(a.Name(), b.Name()) })
	return &Catalog{parsed.Services}, nil
}

// Catalog gets a catalog of the process, as it was at one moment: that of an owner that it
// follows, or with that server name. Of may be empty where there is only one, or a default
// one. More than limit bytes are an error.
func (e *Endpoint) Catalog(ctx context.Context, of string, limit int64) (*Catalog, error) {
	of, err := e.only(ctx, of)
	if err != nil {
		return nil, err
	}
	text := bytes.NewBufferString(`{"services": [`)
	separator := "\n"
	if err := e.services(ctx, of, limit, func(s *status.Service) error {
		text.WriteString(separator)
		text.Write(s.Service)
		separator = ",\n"
		return nil
	}); err != nil {
		return nil, err
	}
	text.WriteString("\n]}\n")
	catalog, err := parse(text.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s has a catalog that cannot be served: %w", e, err)
	}
	return catalog, nil
}

// list returns the first few names, quoted.
func list(names []string) string {
	const most = 20
	var quoted []string
	for _, name := range names[:min(len(names), most)] {
		quoted = append(quoted, federation.Quote(name))
	}
	if len(names) > most {
		quoted = append(quoted, fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(quoted, ", ")
}
