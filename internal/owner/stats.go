package owner

import (
	"maps"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Stats is the state of a Server, for metrics.
type Stats struct {
	// Catalogs has the served catalogs by server name, and always one under "":
	// the default, which also counts the streams for which there is no catalog.
	Catalogs map[string]CatalogStats

	Postponed uint64 // streams since New whose consumers were told to come back, because too many waited for the catalog

	// Of the gate, and so of other ports as well where it is shared.

	Connections int               // that are open, including those in their handshake
	TurnedAway  map[string]uint64 // connections that were closed since New, by the limit of Limits that was reached
}

// CatalogStats is the state of one catalog of a Server.
type CatalogStats struct {
	registry.Stats // in which Oldest is that of what is in flight as well

	Consumers map[wire.APIVersion]int // streams that are open

	// Withheld is, by version, the most services of any open stream that its consumer may have and
	// does not get, because its version of the API or the largest message has no room for them.
	Withheld map[wire.APIVersion]int

	InFlight int // responses that are not acknowledged yet

	// Since New.

	Acknowledged uint64                // responses that were accepted
	Refused      map[string]uint64     // responses that were refused, by the field that the consumer blames, or "other"
	Ended        map[codes.Code]uint64 // streams that have ended, by the code of their status

	// Streams whose consumers had a part of the catalog already, and the services that
	// they were not sent therefore. In metrics these are
	// federation_owner_resumed_streams_total and
	// federation_owner_resume_spared_services_total.
	Resumed, Spared uint64
}

// Stats returns the state of the server. It takes time in proportion to the number of consumers.
// Where two catalogs have the same registry, Unsent counts both.
func (s *Server) Stats() Stats {
	stats := Stats{Catalogs: make(map[string]CatalogStats), Postponed: s.postponed.Load()}
	stats.Connections, stats.TurnedAway = s.gate.Stats()
	s.mu.Lock()
	open := make(map[*servedCatalog]CatalogStats)
	for session := range s.sessions {
		of, known := open[session.catalog]
		if !known {
			of.Consumers = make(map[wire.APIVersion]int)
		}
		of.Consumers[session.version]++
		if n := int(session.missing[tooLarge].Load() + session.missing[inexpressible].Load()); n > of.Withheld[session.version] {
			if of.Withheld == nil {
				of.Withheld = make(map[wire.APIVersion]int)
			}
			of.Withheld[session.version] = n
		}
		n, oldest := session.window.inFlight()
		of.InFlight += n
		of.Oldest = moment.Earlier(of.Oldest, oldest)
		open[session.catalog] = of
	}
	for name, c := range s.catalogs {
		of := open[c]
		of.Acknowledged, of.Refused, of.Ended = c.acknowledged.Load(), maps.Clone(c.refused), maps.Clone(c.ended)
		of.Resumed, of.Spared = c.resumed.Load(), c.spared.Load()
		stats.Catalogs[name] = of
	}
	s.mu.Unlock()
	// Without the lock, because a registry may be busy.
	for name, c := range s.catalogs {
		if c.registry != nil {
			of := stats.Catalogs[name]
			oldest := of.Oldest
			of.Stats = c.registry.Stats()
			of.Oldest = moment.Earlier(oldest, of.Oldest)
			stats.Catalogs[name] = of
		}
	}
	return stats
}
