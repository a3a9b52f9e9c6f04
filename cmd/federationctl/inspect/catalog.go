package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/file"
)

// Catalog has the services of a catalog, by their names.
type Catalog struct{ services []*wire.Encoded }

// Len returns how many services there are.
func (c *Catalog) Len() int { return len(c.services) }

// ReadCatalog reads a catalog file of limit bytes at most, or one in the form that Dump
// writes.
func ReadCatalog(opened string, limit int64) (*Catalog, error) {
	data, _, err := file.Read(opened, limit)
	if errors.Is(err, file.ErrTooLarge) {
		return nil, fmt.Errorf("%w; --max-catalog raises it", err)
	} else if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	catalog, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; find all mistakes with 'federationctl lint %s'", opened, err, opened)
	}
	return catalog, nil
}

// parse reads the text of a catalog. Addresses are not judged: whoever has published the
// services has done that. Nor is the size of YAML: who converts a catalog may have one that
// is too large to be served.
func parse(data []byte) (*Catalog, error) {
	parsed := catalogfile.ParseAnySize(data, wire.AnyAddress())
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
	if err := e.services(ctx, of, limit, func(service []byte) error {
		text.WriteString(separator)
		text.Write(service)
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

// IsURL reports whether the name of a catalog is that of an endpoint and not of a file.
func IsURL(name string) bool {
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		return true
	}
	_, err := os.Stat(name)
	return err != nil && strings.Contains(name, ":") && !strings.ContainsAny(name, `/\`)
}

// plain returns a name of a peer as one word that is safe to print.
func plain(s string) string {
	if s == "" || strings.ContainsAny(s, " \"") {
		return federation.Quote(s)
	}
	return federation.Printable(s)
}
