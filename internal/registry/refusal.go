package registry

import (
	"hash/maphash"
	"sync"
)

// Refusal is what a consumer says of a service that it does not take.
type Refusal struct {
	Service  string // its name
	Consumer string // the identity by which it was let in, or "without identity"
	Rule     string // the consumer's words, quoted and bounded; empty when it takes the service now
}

// OnRefusal has f called when a consumer refuses a service that is in the registry,
// and once, with an empty Rule, when it then acknowledges that service, a later version of
// it, or that it is withdrawn, or has a whole catalog without it. The service is named as
// in the registry, in whatever shape the consumer was told of it. Consumers of the same
// identity count as one, whose last answer counts. Nothing is told when the consumer
// goes, because its next answer will tell, nor when the service goes.
//
// The same refusal may be told again: a consumer that comes back repeats what it
// refused. At most 65,536 refusals stand at a time, so that consumers cannot fill
// memory; one beyond these is not told.
//
// OnRefusal is called once, before the registry is served. F must not block, as the
// answers of the consumer wait for it. It may be called from several goroutines at
// once, for the streams of several consumers.
func (r *Registry) OnRefusal(f func(Refusal)) {
	r.refusals.listener = f
}

// NoteAnswer notes the answer of a consumer to a service: a refusal, or with an empty Rule that the
// consumer takes it. It reports whether the consumer has not said the same of the service before.
func (r *Registry) NoteAnswer(answer Refusal) (news bool) {
	noted := false
	if answer.Rule == "" {
		noted = r.refusals.removeRefusal(answer.Consumer, answer.Service)
		news = noted
	} else {
		r.mu.Lock() // so that the service cannot go before the refusal is noted
		if r.Lookup(answer.Service) != nil {
			noted, news = r.refusals.addRefusal(answer)
		}
		r.mu.Unlock()
	}
	if noted && r.refusals.listener != nil {
		r.refusals.listener(answer)
	}
	return news
}

// RefusedServices returns the services that a consumer refuses.
func (r *Registry) RefusedServices(consumer string) []string {
	r.refusals.mu.Lock()
	defer r.refusals.mu.Unlock()
	var services []string
	for service, those := range r.refusals.consumers {
		if _, noted := those[consumer]; noted {
			services = append(services, service)
		}
	}
	return services
}

// SeesService reports whether the subscriber may be told the service of that name.
func (s *Subscription) SeesService(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.registry.shown.Load().findEntry(name).serviceIn(s.view) != nil
}

// maxStanding bounds the refusals that a registry remembers, to some 15 megabytes.
const maxStanding = 1 << 16

// standingRefusals are those that have been told and not been taken back. They
// are not forgotten to make room: what has been told must be taken back.
type standingRefusals struct {
	listener func(Refusal) // nil when nobody listens; read-only once the registry is served

	mu        sync.Mutex                   // guards the fields below; may be locked while the registry is, not the other way round
	consumers map[string]map[string]uint64 // that refuse a service, by the name of the service, with a hash of the rule
	standing  int                          // added up over the services
}

// seed is that of the hashes of rules, which a peer must not be able to foresee.
var seed = maphash.MakeSeed() //nolint:gochecknoglobals // it never changes

// addRefusal notes a refusal, and reports whether there was room for it, and whether it is for another
// rule than the last one.
func (r *standingRefusals) addRefusal(refusal Refusal) (noted, news bool) {
	rule := maphash.String(seed, refusal.Rule)
	r.mu.Lock()
	defer r.mu.Unlock()
	those := r.consumers[refusal.Service]
	before, known := those[refusal.Consumer]
	if !known {
		if r.standing >= maxStanding {
			return false, false
		}
		r.standing++
	}
	if r.consumers == nil {
		r.consumers = make(map[string]map[string]uint64)
	}
	if those == nil {
		those = make(map[string]uint64)
		r.consumers[refusal.Service] = those
	}
	those[refusal.Consumer] = rule
	return true, !known || before != rule
}

// removeRefusal forgets a refusal, and reports whether it was noted.
func (r *standingRefusals) removeRefusal(consumer, service string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	those := r.consumers[service]
	if _, noted := those[consumer]; !noted {
		return false
	}
	r.standing--
	delete(those, consumer)
	if len(those) == 0 {
		delete(r.consumers, service)
	}
	return true
}

// forgetService forgets who refuses a service, because it has gone.
func (r *standingRefusals) forgetService(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing -= len(r.consumers[service])
	delete(r.consumers, service)
}
