package owner

import (
	"cmp"
	"maps"
	"slices"
	"time"

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
	Behind    int                     // of these, with updates that are not sent or not acknowledged
	Lost      int                     // remembered consumers that have lost their last stream
	// Worst has the consumers that are behind, then those that are lost, each the longest first,
	// and then others: MaxConsumers at most.
	Worst []Consumer

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
	catalogs := make(map[string]*CatalogStats)
	s.mu.Lock()
	for name, c := range s.catalogs {
		catalogs[name] = &CatalogStats{
			Acknowledged: c.acknowledged.Load(), Refused: maps.Clone(c.refused), Ended: maps.Clone(c.ended),
			Resumed: c.resumed.Load(), Spared: c.spared.Load(),
		}
	}
	lost := s.lostLocked(time.Now())
	open := make(map[*streamSession]*registry.Subscription)
	for session := range s.sessions {
		open[session] = session.subscription
	}
	s.mu.Unlock()
	// Without the lock, because a registry may be busy.
	lags := make(map[*registry.Subscription]registry.Lag)
	for name, c := range s.catalogs {
		if c.registry != nil {
			of := catalogs[name]
			of.Stats = c.registry.Stats()
			maps.Copy(lags, of.Lags)
			of.Lags = nil // Worst has the consumers
		}
	}
	for session, subscription := range open {
		catalogs[session.catalog.name].addStream(session, subscription, lags[subscription])
	}
	for who, at := range lost {
		catalogs[who.catalog].addLost(who.consumer, at)
	}
	for name, of := range catalogs {
		of.sortWorst()
		stats.Catalogs[name] = *of
	}
	return stats
}

// addStream adds an open stream. Lag is what its subscription had yet to take, which the caller asked
// before. The subscription is nil where it is about to be opened.
func (c *CatalogStats) addStream(s *streamSession, subscription *registry.Subscription, lag registry.Lag) {
	if c.Consumers == nil {
		c.Consumers, c.Withheld = make(map[wire.APIVersion]int), make(map[wire.APIVersion]int)
	}
	c.Consumers[s.version]++
	if n := int(s.missing[tooLarge].Load() + s.missing[inexpressible].Load()); n > c.Withheld[s.version] {
		c.Withheld[s.version] = n
	}
	telling := s.telling.Load() // before the window is read, because updates go from there to the window
	n, oldest := s.window.inFlight()
	c.InFlight += n
	c.Oldest = moment.Earlier(c.Oldest, oldest)
	if subscription == nil {
		return
	}
	of := Consumer{Name: s.consumer, Address: s.address.String(), Behind: lag.Unsent + n, Since: moment.Earlier(lag.Since, oldest)}
	if lag.Unended {
		of.Behind++
	}
	if telling {
		of.Behind = max(of.Behind, 1)
	}
	if of.Behind > 0 {
		c.Behind++
	} else if len(c.Worst)-c.Behind >= MaxConsumers {
		return // no more than may be shown
	}
	c.Worst = append(c.Worst, of)
}

// addLost adds a consumer that has lost its last stream.
func (c *CatalogStats) addLost(consumer string, at time.Time) {
	c.Lost++
	c.Worst = append(c.Worst, Consumer{Name: consumer, Since: at})
}

// sortWorst sorts the consumers, and removes those beyond MaxConsumers.
func (c *CatalogStats) sortWorst() {
	slices.SortFunc(c.Worst, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(a.sortRank(), b.sortRank()), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address))
	})
	c.Worst = c.Worst[:min(len(c.Worst), MaxConsumers)]
}
