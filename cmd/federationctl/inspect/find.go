package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// Found is a service of a catalog.
type Found struct {
	Of string `json:"of"` // the owner that is followed, or the server name of the catalog

	status.Service

	decoded *federation.Service
}

// Names returns the names of the catalogs to look in: of, or all if it is empty.
func (e *Endpoint) Names(ctx context.Context, of string) ([]string, error) {
	if of != "" {
		return []string{of}, nil
	}
	names, err := e.catalogs(ctx)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has no catalog", e)
	}
	return names, err
}

// Find calls each with the services of a catalog that match all words, in the order of their
// names. It returns how many the catalog has.
func (e *Endpoint) Find(ctx context.Context, of string, words []string, each func(*Found) error) (total int, err error) {
	err = e.services(ctx, of, math.MaxInt64-1, func(s *status.Service) error {
		total++
		catalog, err := parse(s.Service)
		if err == nil && len(catalog.services) != 1 {
			err = errors.New("a line has several")
		}
		switch {
		case err != nil:
			return fmt.Errorf("%s has services that this version does not know: %w", e, err)
		case !s.Matches(words):
			return nil
		}
		return each(&Found{of, *s, catalog.services[0].Service()})
	})
	return total, err
}

// Cells returns the service as cells of a table: name, fqdn, state and endpoints, and before
// them the catalog if it is wanted.
func (f *Found) Cells(withOf bool) []string {
	name, fqdn, _, _ := printable.Cells(f.decoded)
	state := "live"
	if f.Stale {
		state = "stale"
	}
	const most = 8
	cells := []string{name, fqdn, state, printable.Few(f.decoded.Endpoints, most, ", ", printable.Place)}
	if withOf {
		cells = append([]string{status.CatalogName(f.Of)}, cells...)
	}
	return cells
}
