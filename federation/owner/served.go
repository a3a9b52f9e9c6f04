package owner

import (
	"log/slog"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// errReplaced ends the streams of a catalog that is not served any more under the
// server name that they asked for. Consumers come back, and get the one of then.
var errReplaced = status.Error(codes.Unavailable, "the catalog for the server name of your handshake has been replaced")

// catalog is what a server serves under one server name, and what became of it.
type catalog struct {
	name         string       // the server name; empty for the default
	log          *slog.Logger // names the catalog, unless it is the default
	refusals     memory       // that have been logged
	withheld     memory       // services that a version of the API cannot express, and that have been logged
	acknowledged atomic.Uint64
	resumed      atomic.Uint64 // streams
	spared       atomic.Uint64 // services that they were not sent

	// Guarded by the mutex of the server.

	registry *registry.Registry    // nil for a default that there is not
	refused  map[string]uint64     // responses, by field
	ended    map[codes.Code]uint64 // streams, by the code of their status
}

// SetCatalogs replaces the catalogs, by server name: a consumer gets the one with the
// server name of its TLS handshake (in a Corefile, tls_servername), and the one
// under "" if there is none or it sends no name. Names are in lower case and without
// a final dot. A nil registry is as none. Without a catalog for its name, a consumer
// gets the code Unavailable, and comes back.
//
// A stream ends with Unavailable when another catalog, or none, is now the one for the
// server name that it asked for. The others go on. A catalog that keeps its server name
// keeps its figures in [Stats].
func (s *Server) SetCatalogs(catalogs map[string]*registry.Registry) {
	wanted := map[string]*registry.Registry{"": nil}
	for name, r := range catalogs {
		if r != nil {
			wanted[canonical(name)] = r
		}
	}
	var lost []*session
	s.mu.Lock()
	old := s.catalogs
	s.catalogs = make(map[string]*catalog, len(wanted))
	for name, r := range wanted {
		c := old[name]
		if c == nil {
			c = s.newCatalog(name)
		}
		c.registry = r
		s.catalogs[name] = c
	}
	for session := range s.sessions {
		if !s.servesLocked(session) {
			lost = append(lost, session)
		}
	}
	s.mu.Unlock()
	s.turnedAway.reset()
	for _, session := range lost {
		session.cancel(errReplaced)
	}
}

func (s *Server) newCatalog(name string) *catalog {
	c := &catalog{name: name, log: s.log, refused: make(map[string]uint64), ended: make(map[codes.Code]uint64)}
	if name != "" {
		c.log = s.log.With("catalog", name)
	}
	return c
}

// chooseLocked returns the catalog for a server name. The caller holds the lock.
func (s *Server) chooseLocked(serverName string) *catalog {
	if c, ok := s.catalogs[serverName]; ok {
		return c
	}
	return s.catalogs[""]
}

// servesLocked reports whether the catalog of the session is still the one for its
// server name. The caller holds the lock.
func (s *Server) servesLocked(session *session) bool {
	c := s.chooseLocked(session.serverName)
	return c == session.catalog && c.registry == session.registry
}

// canonical returns the form of a server name in which names are equal that mean the
// same.
func canonical(serverName string) string {
	return strings.ToLower(strings.TrimSuffix(serverName, "."))
}
