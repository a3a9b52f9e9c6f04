package owner

import (
	"cmp"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
)

// Consumers are the consumers of one catalog.
type Consumers struct {
	Behind int // open streams with updates that are not sent or not acknowledged
	Lost   int // remembered consumers that have lost their last stream

	// Worst has the consumers that are behind, then those that are lost, each the longest first,
	// and then others: MaxConsumers at most.
	Worst []Consumer
}

// Consumer is an open stream, or a consumer that has lost its last stream.
type Consumer struct {
	Name    string    // its identity
	Address string    // from which the consumer is connected; empty for a lost one
	Behind  int       // services, and the end of the catalog, that the consumer has not acknowledged
	Since   time.Time // when the oldest change happened that is not acknowledged, or when the consumer was lost; zero without one, and before the consumer has asked
}

// MaxConsumers bounds Consumers.Worst.
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

// Consumers returns the consumers of each catalog, by server name: which of them have acknowledged
// everything, and which have not. It takes time in proportion to their number.
func (s *Server) Consumers() map[string]Consumers {
	all := make(map[string]Consumers)
	subscribed := make(map[*registry.Registry][]*streamSession)
	gone := make(map[lostConsumer]time.Time)
	now := time.Now()
	s.mu.Lock()
	for name := range s.catalogs {
		all[name] = Consumers{}
	}
	for who, at := range s.lost {
		if now.Sub(at) < lostFor {
			gone[who] = at
		} else {
			delete(s.lost, who)
		}
	}
	for session := range s.sessions {
		delete(gone, lostConsumer{session.catalog.name, session.consumer})
		if session.subscription != nil { // else it is about to be opened
			subscribed[session.catalog.registry] = append(subscribed[session.catalog.registry], session)
		}
	}
	s.mu.Unlock()
	for r, sessions := range subscribed {
		subscriptions := make([]*registry.Subscription, len(sessions))
		for i, session := range sessions {
			subscriptions[i] = session.subscription
		}
		for i, lag := range r.LagsOf(subscriptions) {
			of := sessions[i]
			all[of.catalog.name] = all[of.catalog.name].withStream(of.consumerBehind(lag))
		}
	}
	for who, at := range gone {
		of := all[who.catalog]
		of.Lost++
		of.Worst = append(of.Worst, Consumer{Name: who.consumer, Since: at})
		all[who.catalog] = of
	}
	for name, of := range all {
		slices.SortFunc(of.Worst, func(a, b Consumer) int {
			return cmp.Or(cmp.Compare(a.sortRank(), b.sortRank()), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address))
		})
		of.Worst = of.Worst[:min(len(of.Worst), MaxConsumers)]
		all[name] = of
	}
	return all
}

// consumerBehind returns how far the consumer of a session is behind. Lag is what the subscription
// had yet to take, which the caller asked before.
func (s *streamSession) consumerBehind(lag registry.Lag) Consumer {
	telling := s.telling.Load() // before the window is read, because updates go from there to the window
	n, oldest := s.window.inFlight()
	c := Consumer{Name: s.consumer, Address: s.address.String(), Behind: lag.Unsent + n, Since: moment.Earlier(lag.Since, oldest)}
	if telling {
		c.Behind = max(c.Behind, 1)
	}
	return c
}

// withStream returns the consumers with one more stream. Of streams that have acknowledged
// everything, only as many are kept as may be shown.
func (c Consumers) withStream(of Consumer) Consumers {
	if of.Behind > 0 {
		c.Behind++
	} else if len(c.Worst)-c.Behind >= MaxConsumers {
		return c
	}
	c.Worst = append(c.Worst, of)
	return c
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
