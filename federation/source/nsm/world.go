package nsm

import (
	"container/heap"
	"maps"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// maxEndpoints bounds what is kept of a registry. Endpoints beyond it are counted.
const maxEndpoints = 100_000

// endpoint is an endpoint that is known.
type endpoint struct {
	content

	key      string
	deadline time.Time // when it goes unless it is renewed; zero for never
	index    int       // in deadlines; -1 when it is not there
	old      bool      // the connection of now has not renewed it
	heard    uint64    // the tick at which the registry spoke of it last
	listed   uint64    // the number of the list that had it last
}

// service is a network service that has endpoints.
type service struct {
	endpoints map[string]*endpoint // by key
	encoded   *wire.Encoded        // as it is published; nil when it is not
	over      int                  // endpoints for which there is no room
}

// world is what is known of a registry. It has no clock of its own.
type world struct {
	endpoints map[string]*endpoint // by key
	services  map[string]*service  // by name of the network service
	deadlines deadlines
	changed   map[string]struct{} // network services that are to be rendered
	refused   map[string]int      // entries that are not published, by rule
	beyond    int                 // endpoints beyond maxEndpoints, since the last list
	news      []refusal           // to be logged
}

// refusal is an entry that is not published.
type refusal struct{ key, rule string }

// maxNews bounds the refusals that are logged at once.
const maxNews = 8

func newWorld() *world {
	return &world{
		endpoints: make(map[string]*endpoint), services: make(map[string]*service),
		changed: make(map[string]struct{}), refused: make(map[string]int),
	}
}

// tell notes what the registry says of an endpoint at now, and returns the endpoint, or
// nil where there is no room for it.
func (w *world) tell(say word, now time.Time) *endpoint {
	e := w.endpoints[say.key]
	expired := !say.until.IsZero() && !say.until.After(now)
	switch {
	case e != nil && e.old && expired && len(e.offers) > 0:
		return e // it could not be refreshed while the registry was away
	case e == nil && len(w.endpoints) >= maxEndpoints:
		w.beyond++
		return nil
	case e == nil:
		e = &endpoint{key: say.key, index: -1}
		w.endpoints[say.key] = e
	}
	e.old = false
	if expired {
		w.replace(e, content{name: say.content.name, refused: []string{ruleExpired}})
	} else {
		w.replace(e, say.content)
	}
	deadline := time.Time{}
	if !say.until.IsZero() && len(e.offers) > 0 {
		deadline = now.Add(say.until.Sub(now)) // a step of the clock does not move it
	}
	w.due(e, deadline)
	return e
}

// due sets the deadline of an endpoint.
func (w *world) due(e *endpoint, deadline time.Time) {
	e.deadline = deadline
	switch {
	case deadline.IsZero() && e.index >= 0:
		heap.Remove(&w.deadlines, e.index)
	case deadline.IsZero():
	case e.index >= 0:
		heap.Fix(&w.deadlines, e.index)
	default:
		heap.Push(&w.deadlines, e)
	}
}

// forget removes an endpoint.
func (w *world) forget(e *endpoint) {
	w.due(e, time.Time{})
	w.replace(e, content{})
	delete(w.endpoints, e.key)
}

// replace makes c what is published of the endpoint.
func (w *world) replace(e *endpoint, c content) {
	if e.equal(&c) {
		return
	}
	for _, o := range e.offers {
		delete(w.services[o.service].endpoints, e.key)
		w.changed[o.service] = struct{}{}
	}
	w.count(e.refused, -1)
	e.content = c
	for _, o := range e.offers {
		s := w.services[o.service]
		if s == nil {
			s = &service{endpoints: make(map[string]*endpoint)}
			w.services[o.service] = s
		}
		s.endpoints[e.key] = e
		w.changed[o.service] = struct{}{}
	}
	w.count(e.refused, 1)
	if len(e.refused) > 0 && len(w.news) < maxNews {
		w.news = append(w.news, refusal{e.key, e.refused[0]})
	}
}

func (w *world) count(rules []string, n int) {
	for _, rule := range rules {
		if w.refused[rule] += n; w.refused[rule] == 0 {
			delete(w.refused, rule)
		}
	}
}

// render returns the services that have changed since it was called last, and the names
// of those that are gone.
func (w *world) render(r *rules) (changed []*wire.Encoded, gone []string) {
	for _, name := range sortedKeys(w.changed) {
		s := w.services[name]
		before := s.encoded
		w.refused[ruleLimit] -= s.over
		if len(s.endpoints) == 0 {
			s.encoded, s.over = nil, 0
			delete(w.services, name)
		} else {
			s.encoded, s.over = r.encode(name, s)
		}
		w.refused[ruleLimit] += s.over
		switch {
		case s.encoded == nil && before != nil:
			gone = append(gone, before.Name())
		case s.encoded != nil && (before == nil || !s.encoded.Equal(before)):
			changed = append(changed, s.encoded)
		}
	}
	if len(w.changed) > 0 {
		w.changed = make(map[string]struct{}) // a map never gives memory back
	}
	return changed, gone
}

// encode returns a service, and how many of its endpoints it has no room for.
func (r *rules) encode(name string, s *service) (*wire.Encoded, int) {
	members, over := chosen(name, s.endpoints)
	encoded, err := wire.NewEncoded(r.service(name, members[0].fqdn, members))
	if err != nil { // cannot happen: each member is valid alone, and they have different IDs
		return nil, len(s.endpoints)
	}
	return encoded, over
}

// all returns every service that is published, in the order of their names.
func (w *world) all() []*wire.Encoded {
	services := make([]*wire.Encoded, 0, len(w.services))
	for _, name := range sortedKeys(w.services) {
		if s := w.services[name]; s.encoded != nil {
			services = append(services, s.encoded)
		}
	}
	return services
}

// counts returns how many entries of the registry are not published, by rule.
func (w *world) counts() map[string]int {
	counts := maps.Clone(w.refused)
	if counts[ruleLimit] += w.beyond; counts[ruleLimit] == 0 {
		delete(counts, ruleLimit)
	}
	return counts
}

// deadlines is a heap of the endpoints that have one, the first one on top.
type deadlines []*endpoint

// next returns the first deadline, or zero where there is none.
func (d *deadlines) next() time.Time {
	if len(*d) == 0 {
		return time.Time{}
	}
	return (*d)[0].deadline
}

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].deadline.Before(d[j].deadline) }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

// Push implements heap.Interface.
func (d *deadlines) Push(x any) {
	e := x.(*endpoint) //nolint:forcetypeassert // there is nothing else
	e.index = len(*d)
	*d = append(*d, e)
}

// Pop implements heap.Interface.
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	e.index = -1
	return e
}
