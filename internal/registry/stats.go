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
	c := Stats{Services: newest.services, Unavailable: newest.unavailable}
	consumers := make(map[consumerView]int)
	behind := make(map[subscriberPosition]int) // subscriptions
	r.mu.Lock()
	shown := r.shown.Load()
	for v, class := range r.classes {
		consumers[v] = len(class)
		for s := range class {
			behind[s.currentPosition()]++
			c.Oldest = moment.Earlier(c.Oldest, s.oldestChange())
		}
	}
	r.mu.Unlock()
	// Without the lock, because that is to look at many services.
	for v, n := range consumers {
		if !v.whole {
			c.Classes = append(c.Classes, ClassStats{Rules: v.class.RuleNumbers(), Consumers: n, Services: shown.countIn(v)})
		}
	}
	for at, n := range behind {
		c.Unsent += n * at.backlogOf(shown)
	}
	slices.SortFunc(c.Classes, func(a, b ClassStats) int { return slices.Compare(a.Rules, b.Rules) })
	return c
}

// LagsOf returns the lag of each of the subscribers. It takes time in proportion to their number.
func (r *Registry) LagsOf(of []*Subscription) []Lag {
	lags, at := make([]Lag, len(of)), make([]subscriberPosition, len(of))
	r.mu.Lock()
	shown := r.shown.Load()
	for i, s := range of {
		lags[i].Since, at[i] = s.oldestChange(), s.currentPosition()
		if !s.marked && !shown.incomplete {
			lags[i].Unsent++
		}
	}
	r.mu.Unlock()
	backlogs := make(map[subscriberPosition]int) // many subscribers have the same position
	for i := range of {
		n, known := backlogs[at[i]]
		if !known {
			n = at[i].backlogOf(shown)
			backlogs[at[i]] = n
		}
		lags[i].Unsent += n
	}
	return lags
}

// Lag is how far a subscriber is behind what it may have: how many services, or the end of the
// catalog, it has yet to take, and when the oldest change of these happened. Since is zero where
// that is not known.
type Lag struct {
	Unsent int
	Since  time.Time
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
