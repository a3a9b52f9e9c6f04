package inspect

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// DumpCatalog returns a catalog of the process, as it was at one moment, as a catalog file in JSON, a
// service a line, sorted by name: the same text for the same services. It is that of an owner that
// the process follows, or with that server name. Of may be empty where there is only one, or a
// default one. More than limit bytes are an error. Of what a terminal obeys nothing comes out.
func (e *Endpoint) DumpCatalog(ctx context.Context, of string, limit int64) (string, error) {
	of, err := e.onlyCatalog(ctx, of)
	if err != nil {
		return "", err
	}
	var lines []string
	err = e.readServices(ctx, of, limit, func(s *status.CatalogService) error {
		lines = append(lines, printable.EscapeControls(string(s.Service)))
		return nil
	})
	return "{\"services\": [\n" + strings.Join(lines, ",\n") + "\n]}\n", err
}

// FoundService is a service of a catalog.
type FoundService struct {
	Of string `json:"of"` // the owner that is followed, or the server name of the catalog

	status.CatalogService
}

// CatalogNames returns the names of the catalogs to look in: of, or all if it is empty.
func (e *Endpoint) CatalogNames(ctx context.Context, of string) ([]string, error) {
	if of != "" {
		return []string{of}, nil
	}
	names, err := e.listCatalogs(ctx)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has no catalog", e)
	}
	return names, err
}

// FindServices calls each with the services of a catalog that match all words, in the order of their
// names. It returns how many the catalog has.
func (e *Endpoint) FindServices(ctx context.Context, of string, words []string, each func(*FoundService) error) (total int, err error) {
	err = e.readServices(ctx, of, math.MaxInt64-1, func(s *status.CatalogService) error {
		if total++; !s.MatchesWords(words) {
			return nil
		}
		return each(&FoundService{of, *s})
	})
	return total, err
}

// FormatLine returns the service as a line: the catalog if it is wanted, the name, the fqdn, the state and
// the endpoints.
func (f *FoundService) FormatLine(withOf bool) string {
	state := "live"
	if f.Stale {
		state = "stale"
	}
	const most = 8
	return formatRow(withOf, status.CatalogName(f.Of), printable.QuoteText(f.Name), printable.QuoteText(strings.TrimSuffix(f.FQDN, ".")), state,
		printable.JoinFew(f.Endpoints(), most, ",", printable.QuoteText))
}

// TableHeading returns what stands above the lines.
func TableHeading(withOf bool) string {
	return formatRow(withOf, "CATALOG", "NAME", "FQDN", "STATE", "ENDPOINTS")
}

// formatRow lays out a line. The columns have widths of their own, as lines come one by one.
func formatRow(withOf bool, of string, cells ...any) string {
	line := fmt.Sprintf("%-20s  %-32s  %-5s  %s\n", cells...)
	if withOf {
		return fmt.Sprintf("%-24s  %s", of, line)
	}
	return line
}
