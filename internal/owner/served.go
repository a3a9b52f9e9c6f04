package owner

import (
	"log/slog"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
)

// servedCatalog is what a server serves under one server name, with counts of what happened there.
// The counts only grow. The fields of a refusal and the codes of gRPC bound the maps.
type servedCatalog struct {
	// read-only after New
	name     string             // the server name; empty for the default
	registry *registry.Registry // nil where there is no default
	log      *slog.Logger       // names the catalog, unless it is the default

	acknowledged atomic.Uint64
	resumed      atomic.Uint64 // streams
	spared       atomic.Uint64 // services that resumed streams were not sent

	// Guarded by the mutex of the server.

	refused map[string]uint64     // responses, by field
	ended   map[codes.Code]uint64 // streams, by the code of their status
}

// newServedCatalogs returns the served catalogs by server name. There is always one under "".
func newServedCatalogs(registries map[string]*registry.Registry, log *slog.Logger) map[string]*servedCatalog {
	catalogs := make(map[string]*servedCatalog)
	add := func(name string, r *registry.Registry) {
		c := &servedCatalog{name: name, registry: r, log: log, refused: make(map[string]uint64), ended: make(map[codes.Code]uint64)}
		if name != "" {
			c.log = log.With("catalog", name)
		}
		catalogs[name] = c
	}
	add("", nil)
	for name, r := range registries {
		add(canonicalName(name), r)
	}
	return catalogs
}

// canonicalName returns the one form of all spellings of a server name that mean the same.
func canonicalName(serverName string) string {
	return strings.ToLower(strings.TrimSuffix(serverName, "."))
}
