package owner

import (
	"cmp"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
)

// Consumers are those of one catalog.
type Consumers struct {
	Behind int // streams that are open, and have something to be told or to acknowledge
	Lost   int // consumers that have lost their last stream, as far as they are remembered

	// Worst has those that are behind and then those that are lost, each the longest first, and
	// then others: MaxConsumers at most.
	Worst []Consumer
}

// Consumer is a stream that is open, or a consumer that has lost its last one.
type Consumer struct {
	Name    string    // its identity
	Address string    // that it is connected from; empty where it is lost
	Behind  int       // services, and the end of the catalog, that it has not acknowledged; 0: it has acknowledged everything
	Since   time.Time // of the oldest change that it has not acknowledged, or of its loss; zero without one, and before it has asked
}

// MaxConsumers bounds Consumers.Worst.
const MaxConsumers = 100

// Of consumers that are lost, so many are remembered, for so long. Where there is no room any one
// of them is forgotten.
const (
	maxLost = 1000
	lostFor = 7 * 24 * time.Hour
)

// lostConsumer is a consumer that may be lost, by the server name of its catalog and its name.
type lostConsumer struct{ catalog, consumer string }

// loseLocked remembers that a session has ended. Its consumer may have others. The caller holds
// the lock.
func (s *Server) loseLocked(session *streamSession, now time.Time) {
	if session.subscription == nil {
		return // it was told nothing
	}
	if len(s.lost) >= maxLost {
		for other := range s.lost {
			delete(s.lost, other)
			break
		}
	}
	s.lost[lostConsumer{session.catalog.name, session.consumer}] = now
}

// Consumers returns those of each catalog, by server name: who has acknowledged all that there is,
// and who has not. It takes time in proportion to their number.
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

// consumerBehind returns where the consumer of a session is that was behind the catalog by lag before.
func (s *streamSession) consumerBehind(lag registry.Lag) Consumer {
	telling := s.telling.Load() // before the window is looked at, to which it passes on what it has taken
	n, oldest := s.window.inFlight()
	c := Consumer{Name: s.consumer, Address: s.address.String(), Behind: lag.Unsent + n, Since: earlierOf(lag.Since, oldest)}
	if telling {
		c.Behind = max(c.Behind, 1)
	}
	return c
}

// withStream adds a stream. Of those that have everything, only as many are kept as may be shown.
func (c Consumers) withStream(of Consumer) Consumers {
	if of.Behind > 0 {
		c.Behind++
	} else if len(c.Worst)-c.Behind >= MaxConsumers {
		return c
	}
	c.Worst = append(c.Worst, of)
	return c
}

// sortRank is less for who matters more.
func (c *Consumer) sortRank() int {
	switch {
	case c.Behind > 0:
		return 0
	case c.Address == "":
		return 1
	}
	return 2
}
