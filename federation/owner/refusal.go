package owner

import (
	"slices"
	"strings"
	"sync"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// Refusal is what a consumer says of a service that it does not take.
type Refusal struct {
	Service  string // its name
	Consumer string // the identity by which it was let in, or "without identity"
	Field    string // that the consumer blames, as in the metrics
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

// refused tells of a refusal with that rule.
func (r *Registry) refused(consumer, service, rule string) {
	if r.refusals.listener == nil {
		return
	}
	r.mu.Lock() // so that the service cannot go before the refusal is noted
	told := r.Lookup(service) != nil && r.refusals.add(consumer, service)
	r.mu.Unlock()
	if told {
		r.refusals.listener(Refusal{Service: service, Consumer: consumer, Field: blamed(rule), Rule: federation.Quote(rule)})
	}
}

// accepted tells that a consumer takes a service, if it was told that it did not.
func (r *Registry) accepted(consumer, service string) {
	if r.refusals.listener != nil && r.refusals.remove(consumer, service) {
		r.refusals.listener(Refusal{Service: service, Consumer: consumer})
	}
}

// settled tells that a consumer does not refuse any more what the policy has withdrawn
// from it while it was away. It has a whole catalog now.
func (r *Registry) settled(consumer string, ids []federation.ID) {
	if r.refusals.listener == nil {
		return
	}
	var settled []string
	shown := r.shown.Load()
	v := viewOf(shown.policy, &Subscription{ids: ids})
	for _, service := range r.refusals.of(consumer) {
		if shown.find(service).in(v) == nil && r.refusals.remove(consumer, service) {
			settled = append(settled, service)
		}
	}
	for _, service := range settled {
		r.refusals.listener(Refusal{Service: service, Consumer: consumer})
	}
}

// maxStanding bounds the refusals that a registry remembers, to some 15 megabytes.
const maxStanding = 1 << 16

// refusals are those that have been told and not been taken back. Unlike a memory they
// are not forgotten to make room: what has been told must be taken back.
type refusals struct {
	listener func(Refusal) // nil when nobody listens; read-only once the registry is served

	mu        sync.Mutex                     // guards the fields below; may be locked while the registry is, not the other way round
	consumers map[string]map[string]struct{} // that refuse a service, by the name of the service
	standing  int                            // added up over the services
}

// add notes a refusal, and reports whether there was room for it.
func (r *refusals) add(consumer, service string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	those := r.consumers[service]
	if _, noted := those[consumer]; noted {
		return true
	}
	if r.standing >= maxStanding {
		return false
	}
	if r.consumers == nil {
		r.consumers = make(map[string]map[string]struct{})
	}
	if those == nil {
		those = make(map[string]struct{})
		r.consumers[service] = those
	}
	those[consumer] = struct{}{}
	r.standing++
	return true
}

// of returns the services that the consumer refuses.
func (r *refusals) of(consumer string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var services []string
	for service, those := range r.consumers {
		if _, noted := those[consumer]; noted {
			services = append(services, service)
		}
	}
	return services
}

// remove forgets a refusal, and reports whether it was noted.
func (r *refusals) remove(consumer, service string) bool {
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

// forget forgets who refuses a service, because it has gone.
func (r *refusals) forget(service string) {
	if r.listener == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing -= len(r.consumers[service])
	delete(r.consumers, service)
}

// refusalFields are the fields that a refusal can be about: of a service in any
// version of the API, and of a response. All others count as "other", because a
// consumer may write anything, and a metric must have few labels.
var refusalFields = []string{
	"name", "description", "tags", "labels", "fqdn", "endpoints", "sans", "instances",
	"id", "san", "protocols",
	"resource", "resource_url", "resource_id", "operation", "context",
}

// blamed returns the field at the beginning of the rule of a refusal, where consumers
// of this project put it, or "other".
func blamed(rule string) string {
	field := rule
	if end := strings.IndexAny(rule, ".[:"); end >= 0 {
		field = rule[:end]
	}
	if !slices.Contains(refusalFields, field) {
		return "other"
	}
	return field
}
