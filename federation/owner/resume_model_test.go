package owner

import (
	"maps"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// plain is how most tests are sent services.
var plain = form{wire.V1Alpha2, defaultMaxMessage}

// sumOf returns the digests of those of the services that are sent in that form.
func sumOf(tb testing.TB, f form, services map[string]*federation.Service) resume.Digests {
	tb.Helper()
	var sum resume.Sum
	for name, s := range services {
		if value, err := f.value(encoded(tb, s)); err == nil {
			sum.Add(name, value)
		}
	}
	return sum.Digests()
}

// resumed is a subscription that does not begin with the whole catalog.
type resumed struct {
	*Subscription
	*resumption
}

// resumeAs subscribes as a consumer that holds what has these digests. It returns nil where
// that has to be told everything.
func resumeAs(r *Registry, ids []federation.ID, f form, theirs resume.Digests) *resumed {
	s := r.SubscribeAs(ids)
	if held := r.resume(s, f, theirs); held != nil {
		return &resumed{s, held}
	}
	s.Close()
	return nil
}

// remembered returns what a consumer may hold that comes back: what another subscriber
// holds or the whole catalog, as it is or with a few services that are different.
func (w *world) remembered() map[string]*federation.Service {
	state := maps.Clone(w.services)
	if n := len(w.holders); n > 0 && w.IntN(3) > 0 {
		state = maps.Clone(w.holders[w.IntN(n)].held)
	}
	for range max(0, w.IntN(5)-2) {
		switch name := w.name(); w.IntN(3) {
		case 0:
			delete(state, name)
		case 1:
			state[name] = w.service(name)
		default:
			state["gone-"+name] = w.service("gone-" + name)
		}
	}
	return state
}

// comeBack returns a subscriber that holds services already. What is in a bucket that is
// not selected counts as held, and all else as not told yet.
func (w *world) comeBack(ids []federation.ID, state map[string]*federation.Service, buckets int) *holder {
	resumed := resumeAs(w.registry, ids, plain, sumOf(w.tb, plain, state).Fold(buckets))
	if resumed == nil {
		return newHolder(w.registry.SubscribeAs(ids))
	}
	w.counts.Lock()
	defer w.counts.Unlock()
	w.resumed++
	h := newHolder(resumed.Subscription)
	for name, s := range state {
		if _, err := plain.value(encoded(w.tb, s)); err == nil && !resumed.selection.Has(name) {
			h.held[name] = s
			w.adopted++
		}
	}
	if resumed.spared != len(h.held) {
		w.tb.Errorf("%d services are said to be spared, expected %d", resumed.spared, len(h.held))
	}
	w.registry.mu.Lock()
	has, view := h.told, h.toldView
	w.registry.mu.Unlock()
	for _, m := range resumed.withheld { // a registry does not know that they are not sent
		name := m.name
		if h.held[name] != nil {
			w.tb.Errorf("%s is said to be withheld, and the subscriber has it", name)
		}
		h.held[name] = &federation.Service{} // a change is to come
		if has == nil {                      // the registry has become unavailable
			continue
		}
		if e := has.find(name).in(view); e != nil {
			h.held[name] = e.Service()
		}
	}
	w.registry.digesting.mu.Lock()
	defer w.registry.digesting.mu.Unlock()
	w.registry.digesting.owed = time.Time{}
	if len(h.held)%3 == 2 { // no digests are taken the next time
		w.registry.digesting.owed = time.Now().Add(time.Hour)
	}
	return h
}
