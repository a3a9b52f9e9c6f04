package owner

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Stats is the state of a Server, for metrics.
type Stats struct {
	Services  int                  // of the registry
	Consumers map[wire.Version]int // streams that are open

	Unsent   int       // services that a consumer has yet to be sent, added up over the consumers
	InFlight int       // responses that are not acknowledged yet
	Oldest   time.Time // of the oldest change that some consumer has not acknowledged; zero when there is none

	Connections int // that are open, including those in their handshake

	// Since New.

	TurnedAway map[string]uint64 // connections that were closed, by the limit of Limits that was reached

	Acknowledged uint64                // responses that were accepted
	Refused      map[string]uint64     // responses that were refused, by the field that the consumer blames, or "other"
	Ended        map[codes.Code]uint64 // streams that have ended, by the code of their status
}

// Stats returns the state of the server. It takes time in proportion to the number
// of consumers.
func (s *Server) Stats() Stats {
	stats := Stats{Consumers: make(map[wire.Version]int), Acknowledged: s.acknowledged.Load()}
	s.mu.Lock()
	stats.Refused, stats.Ended = maps.Clone(s.refused), maps.Clone(s.ended)
	for session := range s.sessions {
		stats.Consumers[session.version]++
		n, oldest := session.window.inFlight()
		stats.InFlight += n
		stats.Oldest = earlier(stats.Oldest, oldest)
	}
	s.mu.Unlock()
	stats.Connections, stats.TurnedAway = s.gate.stats()
	services, unsent, oldest := s.config.Registry.stats()
	stats.Services, stats.Unsent, stats.Oldest = services, unsent, earlier(stats.Oldest, oldest)
	return stats
}

// earlier returns the earlier of two times; zero stands for no time.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// refusalFields are the fields that a refusal can be about: of a service in any
// version of the API, and of a response. All others count as "other", because a
// consumer may write anything, and a metric must have few labels.
var refusalFields = []string{
	"name", "description", "tags", "labels", "fqdn", "endpoints", "sans", "instances",
	"id", "san", "protocols",
	"resource", "resource_url", "resource_id", "operation", "context",
}

// countRefusal counts a refusal by the field at the beginning of its rule, where
// consumers of this project put it.
func (s *Server) countRefusal(rule string) {
	field := rule
	if end := strings.IndexAny(rule, ".[:"); end >= 0 {
		field = rule[:end]
	}
	if !slices.Contains(refusalFields, field) {
		field = "other"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[field]++
}
