package owner

import (
	"maps"
	"time"
)

// Consumer is an open stream, or a consumer that has lost its last stream.
type Consumer struct {
	Name    string    // its identity
	Address string    // from which the consumer is connected; empty for a lost one
	Behind  int       // services, and the end of the catalog, that the consumer has not acknowledged
	Since   time.Time // when the oldest change happened that is not acknowledged, or when the consumer was lost; zero without one, and before the consumer has asked
}

// MaxConsumers bounds CatalogStats.Worst.
const MaxConsumers = 100

// The bounds of the lost consumers that a server remembers. Where there is no room, any one of them is
// forgotten.
const (
	maxLost = 1000
	lostFor = 7 * 24 * time.Hour
)

// lostConsumer names a consumer that may be lost: the server name of its catalog, and its own name.
type lostConsumer struct{ catalog, consumer string }

// loseLocked remembers that a session has ended, whose consumer may have others. The caller holds
// the lock.
func (s *Server) loseLocked(session *streamSession, now time.Time) {
	if session.subscription == nil {
		return // the consumer was sent nothing
	}
	if len(s.lost) >= maxLost {
		for other := range s.lost {
			delete(s.lost, other)
			break
		}
	}
	s.lost[lostConsumer{session.catalog.name, session.consumer}] = now
}

// lostLocked returns when the consumers were lost that have no stream, and forgets those that were lost
// long ago. The caller holds the lock.
func (s *Server) lostLocked(now time.Time) map[lostConsumer]time.Time {
	maps.DeleteFunc(s.lost, func(_ lostConsumer, at time.Time) bool { return now.Sub(at) >= lostFor })
	lost := maps.Clone(s.lost)
	for session := range s.sessions {
		delete(lost, lostConsumer{session.catalog.name, session.consumer})
	}
	return lost
}

// sortRank returns a smaller number for a consumer that matters more.
func (c *Consumer) sortRank() int {
	switch {
	case c.Behind > 0:
		return 0
	case c.Address == "":
		return 1
	}
	return 2
}
