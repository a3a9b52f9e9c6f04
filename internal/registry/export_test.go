package registry

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// What the tests of this package look at.

const (
	MaxSkipped  = maxSkipped
	MaxStanding = maxStanding
	MaxViews    = maxViews
	DigestShare = digestShare
	DigestBurst = digestBurst
)

// State implements registrytest.Hooks.
func (s *Subscription) State() (current bool, ahead int) { return s.told == nil, len(s.newerTold) }

// WasTold implements registrytest.Hooks.
func (s *Subscription) WasTold(name string) *federation.Service {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if s.told != nil { // the registry has not become unavailable
		if e := s.told.findEntry(name).serviceIn(s.toldView); e != nil {
			return e.Service()
		}
	}
	return nil
}

// Backlog returns how many services the subscriber has yet to be told, and of how many it is
// kept on its way that they have changed.
func (s *Subscription) Backlog() (n, ahead int) {
	n = s.currentPosition().backlogOf(s.registry.shown.Load())
	if s.cursor != nil {
		ahead = len(s.cursor.newerTold)
	}
	return n, ahead
}

// Digest implements registrytest.Hooks.
func (r *Registry) Digest(left bool) {
	r.digesting.mu.Lock()
	defer r.digesting.mu.Unlock()
	r.digesting.owed = time.Time{}
	if !left {
		r.digesting.owed = time.Now().Add(time.Hour)
	}
}

// SpendOnDigests has digests cost so much time.
func (r *Registry) SpendOnDigests(took time.Duration) { r.digesting.spendTime(took) }

// MostSums returns of how many forms and views at most a row has sums, or a version offers.
func (r *Registry) MostSums() int {
	shown := r.shown.Load()
	most := len(shown.offers)
	for _, row := range shown.rows {
		most = max(most, len(row.sums))
	}
	return most
}

// ForgetSums has all digests be taken anew.
func (r *Registry) ForgetSums() {
	shown := r.shown.Load()
	shown.offers = nil
	for _, row := range shown.rows {
		row.sums = nil
	}
}

// Standing returns the refusals that stand, by service, and how many are counted.
func (r *Registry) Standing() (consumers map[string]map[string]uint64, counted int) {
	return r.refusals.consumers, r.refusals.standing
}

// Classes returns in how many classes subscribers are.
func (r *Registry) Classes() int { return len(r.classes) }

// Held returns the services by name.
func (r *Registry) Held() map[string]*wire.EncodedService {
	services := make(map[string]*wire.EncodedService)
	for e := range r.newest.Load().allEntries() {
		services[e.service.Name()] = e.service
	}
	return services
}
