package nsm

import (
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/source/nsm/internal/endpoint"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// maxEndpoints bounds the endpoints of a registry that are kept. Endpoints beyond are counted.
const maxEndpoints = 100_000

// knownEndpoint is an endpoint of the registry.
type knownEndpoint struct {
	endpoint.Endpoint

	key      string
	deadline time.Time // when the endpoint goes unless it is renewed; zero for never
	old      bool      // the current connection has not renewed the endpoint
}

// networkService is a network service that has endpoints.
type networkService struct {
	endpoints map[string]*knownEndpoint // by key
	over      int                       // endpoints for which there is no room
}

// registryState keeps what is known of a registry: its endpoints, and the network services that
// they belong to. Only the session changes it, by reports of the registry and by time, which comes
// in as an argument. It outlives connections, and has maxEndpoints endpoints at most. It publishes
// nothing: changed has the network services that the session has to encode.
type registryState struct {
	endpoints map[string]*knownEndpoint  // by key
	services  map[string]*networkService // by name of the network service
	payloads  map[string]string          // likewise, as the registry said last
	soonest   time.Time                  // no deadline is before that; zero without a deadline
	changed   map[string]struct{}        // network services that are to be encoded
	refused   map[string]int             // entries that are not published, by rule
	beyond    int                        // endpoints beyond maxEndpoints, since the last list
	news      []refusedEntry             // to be logged
}

// refusedEntry is an entry that is not published.
type refusedEntry struct{ key, rule string }

// maxNews bounds the refusals that are logged at once.
const maxNews = 8

func newRegistryState() *registryState {
	return &registryState{
		endpoints: make(map[string]*knownEndpoint), services: make(map[string]*networkService),
		changed: make(map[string]struct{}), refused: make(map[string]int),
	}
}

// endpointReport is what the registry says of one endpoint.
type endpointReport struct {
	key     string // as of endpoint.KeyOf
	deleted bool
	said    endpoint.Endpoint
	until   time.Time // expiration_time; zero for none
}

// noteEndpoint applies a report of an endpoint at now. It counts an endpoint for which there is no
// room.
func (w *registryState) noteEndpoint(say endpointReport, now time.Time) {
	e := w.endpoints[say.key]
	expired := !say.until.IsZero() && !say.until.After(now)
	switch {
	case e != nil && e.old && expired && len(e.Offers) > 0:
		return // nobody could refresh the endpoint while the registry was away
	case e == nil && len(w.endpoints) >= maxEndpoints:
		w.beyond++
		return
	case e == nil:
		e = &knownEndpoint{key: say.key}
		w.endpoints[say.key] = e
	}
	e.old = false
	if expired {
		w.replaceEndpoint(e, endpoint.Endpoint{Refused: []string{endpoint.Expired}})
	} else {
		w.replaceEndpoint(e, say.said)
	}
	deadline := time.Time{}
	if !say.until.IsZero() && len(e.Offers) > 0 {
		deadline = now.Add(say.until.Sub(now)) // a step of the clock does not move it
	}
	w.setDeadline(e, deadline)
}

// setDeadline sets the deadline of an endpoint.
func (w *registryState) setDeadline(e *knownEndpoint, deadline time.Time) {
	e.deadline = deadline
	w.soonest = moment.Earlier(w.soonest, deadline)
}

// nextDeadline returns when the first endpoint is due, or zero where none is. Until then nobody has
// to know whether that endpoint was renewed.
func (w *registryState) nextDeadline(now time.Time) time.Time {
	if w.soonest.IsZero() || w.soonest.After(now) {
		return w.soonest
	}
	w.soonest = time.Time{}
	for _, e := range w.endpoints {
		w.setDeadline(e, e.deadline)
	}
	return w.soonest
}

// removeEndpoint removes an endpoint.
func (w *registryState) removeEndpoint(e *knownEndpoint) {
	w.replaceEndpoint(e, endpoint.Endpoint{})
	delete(w.endpoints, e.key)
}

// replaceEndpoint replaces what is published of the endpoint by say.
func (w *registryState) replaceEndpoint(e *knownEndpoint, say endpoint.Endpoint) {
	if e.Equal(&say) {
		return
	}
	for _, o := range e.Offers {
		delete(w.services[o.Service].endpoints, e.key)
		w.changed[o.Service] = struct{}{}
	}
	w.countRefused(e.Refused, -1)
	e.Endpoint = say
	for _, o := range e.Offers {
		s := w.services[o.Service]
		if s == nil {
			s = &networkService{endpoints: make(map[string]*knownEndpoint)}
			w.services[o.Service] = s
		}
		s.endpoints[e.key] = e
		w.changed[o.Service] = struct{}{}
	}
	w.countRefused(e.Refused, 1)
	if len(e.Refused) > 0 && len(w.news) < maxNews {
		w.news = append(w.news, refusedEntry{e.key, e.Refused[0]})
	}
}

func (w *registryState) countRefused(rules []string, n int) {
	for _, rule := range rules {
		if w.refused[rule] += n; w.refused[rule] == 0 {
			delete(w.refused, rule)
		}
	}
}

// setPayloads replaces the payloads of all network services.
func (w *registryState) setPayloads(payloads map[string]string) {
	for name := range w.services {
		if payloads[name] != w.payloads[name] {
			w.changed[name] = struct{}{}
		}
	}
	w.payloads = payloads
}

// encodeChanged returns the services that may have changed since the last call, and the names of
// those that are gone.
func (w *registryState) encodeChanged(r *endpoint.Rules) (changed []*wire.EncodedService, gone []string) {
	for _, name := range slices.Sorted(maps.Keys(w.changed)) {
		s := w.services[name]
		endpoints := make([]*endpoint.Endpoint, 0, len(s.endpoints))
		for _, e := range s.endpoints {
			endpoints = append(endpoints, &e.Endpoint)
		}
		encoded, over := r.Encode(name, w.payloads[name], endpoints)
		w.refused[endpoint.Limit] += over - s.over
		if s.over = over; len(endpoints) == 0 {
			delete(w.services, name)
		}
		if encoded != nil {
			changed = append(changed, encoded)
		} else {
			gone = append(gone, r.Prefix+name)
		}
	}
	if len(w.changed) > 0 {
		w.changed = make(map[string]struct{}) // a map never gives memory back
	}
	return changed, gone
}

// refusedCounts returns how many entries of the registry are not published, by rule.
func (w *registryState) refusedCounts() map[string]int {
	counts := maps.Clone(w.refused)
	if counts[endpoint.Limit] += w.beyond; counts[endpoint.Limit] == 0 {
		delete(counts, endpoint.Limit)
	}
	return counts
}
