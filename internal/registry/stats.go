package registry

import (
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Stats is the state of a registry, for metrics.
type Stats struct {
	Services    int    // that it holds
	Unavailable string // why the registry is unavailable, as SetUnavailable has it; empty while it is available

	// Classes are the classes of the subscribers, in the order of their rules. It is empty without
	// a policy.
	Classes []ClassStats

	Unsent int       // services that a subscriber has yet to take, added up over the subscribers
	Oldest time.Time // of the oldest change that some subscriber has not taken; zero when there is none

	Lags map[*Subscription]Lag
}

// ClassStats is the state of one class: consumers to whom the same rules of the policy apply, and
// who are therefore sent the same.
type ClassStats struct {
	Rules     []int // their numbers, from 1, in order; empty for those that are told nothing
	Consumers int   // that are subscribed
	Services  int   // that they may have
}

// Stats returns the state of the registry. It takes time in proportion to the number of
// subscribers.
func (r *Registry) Stats() Stats {
	newest := r.newest.Load()
	c := Stats{Services: newest.services, Unavailable: newest.unavailable, Lags: make(map[*Subscription]Lag)}
	consumers := make(map[consumerView]int)
	behind := make(map[subscriberPosition][]*Subscription) // many have the same position
	r.mu.Lock()
	shown := r.shown.Load()
	for v, class := range r.classes {
		consumers[v] = len(class)
		for s := range class {
			at := s.currentPosition()
			behind[at] = append(behind[at], s)
			c.Lags[s] = Lag{Unended: !s.marked && !shown.incomplete, Since: s.oldestChange()}
			c.Oldest = moment.Earlier(c.Oldest, c.Lags[s].Since)
		}
	}
	r.mu.Unlock()
	// Without the lock, because that is to look at many services.
	for v, n := range consumers {
		if !v.whole {
			c.Classes = append(c.Classes, ClassStats{Rules: v.class.RuleNumbers(), Consumers: n, Services: shown.countIn(v)})
		}
	}
	for at, there := range behind {
		n := at.backlogOf(shown)
		c.Unsent += n * len(there)
		for _, s := range there {
			lag := c.Lags[s]
			lag.Unsent = n
			c.Lags[s] = lag
		}
	}
	slices.SortFunc(c.Classes, func(a, b ClassStats) int { return slices.Compare(a.Rules, b.Rules) })
	return c
}

// Lag is how far a subscriber is behind what it may have. Since is zero where that is not known.
type Lag struct {
	Unsent  int       // services that it has yet to take
	Unended bool      // it has yet to take the end of the catalog
	Since   time.Time // when the oldest change of these happened
}

// Audience is what a class of consumers gets of one service.
type Audience struct {
	ClassStats // without Services; Rules is empty without a policy as well

	Everybody bool                 // there is no policy, and one class
	Rule      int                  // of the policy, that decides; 0: none does
	Service   *wire.EncodedService // in the shape for the class; nil: the service is hidden from it
}

// AudiencesOf returns what each class of subscribed consumers gets of the service of that name, in
// the order of their rules. It returns none while nobody is subscribed. It delays others only for
// as long as it looks at each class.
func (r *Registry) AudiencesOf(name string) []Audience {
	var told []Audience
	r.mu.Lock()
	e := r.shown.Load().findEntry(name)
	for v, class := range r.classes {
		class := ClassStats{Rules: v.class.RuleNumbers(), Consumers: len(class)}
		told = append(told, Audience{ClassStats: class, Everybody: v.whole, Rule: e.ruleIn(v), Service: e.serviceIn(v)})
	}
	r.mu.Unlock()
	slices.SortFunc(told, func(a, b Audience) int { return slices.Compare(a.Rules, b.Rules) })
	return told
}
