package registry

import (
	"hash/maphash"
	"sync"
)

// Refusal is what a consumer says of a service that it refuses.
type Refusal struct {
	Service  string // its name
	Consumer string // the identity by which the consumer was let in, or "without identity"
	Rule     string // the consumer's words, quoted and bounded; empty when it accepts the service now
}

// OnRefusal makes the registry call f when a consumer refuses a service that is in the registry.
// The registry calls f once more, with an empty Rule, when that consumer then acknowledges the
// service, a later version of the service or its deletion, or has a whole catalog without it. The
// refusal has the name of the service in the registry, whatever shape the consumer was sent.
// Consumers of the same identity count as one, whose last answer counts. F is not called when the
// consumer goes, because its next answer will tell, nor when the service goes.
//
// F may be called with the same refusal again, because a consumer that comes back repeats what it
// refused. At most 65,536 refusals stand at a time, so that consumers cannot fill memory; f is not
// called for one beyond these.
//
// OnRefusal is called once, before the registry is served. F must not block, because the answers of
// the consumer wait for it. F may be called from several goroutines at once, for the streams of
// several consumers.
func (r *Registry) OnRefusal(f func(Refusal)) {
	r.refusals.listener = f
}

// NoteAnswer records the answer of a consumer to a service: a refusal, or an acceptance where Rule
// is empty. It reports whether the consumer has not given the same answer before.
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

// RefusedServices returns the services that a consumer refuses, in no order.
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

// SeesService reports whether the policy lets the subscriber have the service of that name.
func (s *Subscription) SeesService(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.registry.shown.Load().findEntry(name).serviceIn(s.view) != nil
}

// maxStanding bounds the refusals that a registry remembers. They take some 15 megabytes.
const maxStanding = 1 << 16

// standingRefusals keeps the refusals that were reported to the listener and not taken back since.
// The answers of consumers add and remove them, and a service that goes takes its refusals along.
// At most maxStanding are kept. No refusal is forgotten to make room for another one, because the
// listener would never learn that the consumer accepts the service again.
type standingRefusals struct {
	listener func(Refusal) // nil when nobody listens; read-only once the registry is served

	mu        sync.Mutex                   // guards the fields below; may be locked while the registry is, not the other way round
	consumers map[string]map[string]uint64 // hash of the rule, by the name of the service and by consumer
	standing  int                          // refusals in consumers
}

// seed is the seed for hashes of rules, which a peer must not be able to foresee.
var seed = maphash.MakeSeed() //nolint:gochecknoglobals // it never changes

// addRefusal adds a refusal. It reports whether there was room, and whether the rule is another one
// than the last time.
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

// removeRefusal removes a refusal, and reports whether there was one.
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

// forgetService removes the refusals of a service that has gone.
func (r *standingRefusals) forgetService(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing -= len(r.consumers[service])
	delete(r.consumers, service)
}
