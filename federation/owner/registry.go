package owner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// Registry is the catalog of an owner, with the policy that says who is told of what
// in it, and the changes that each of its subscribers has yet to be told. It is safe
// for concurrent use.
//
// A change takes time in proportion to the number of subscribers. A subscriber
// takes memory for one name for each service that it has yet to be told, however
// slow it is, and no goroutine. With a policy, a change is also judged once, and
// compared once for each class of subscribers that are told the same.
//
// # Who is told what
//
// With [Registry.SetPolicy], a registry tells each consumer what a policy lets its
// identities have, in the shape that is for them. For everyone else a service that is
// hidden does not exist: a change that hides it is a deletion. Changes of services and of
// the policy, and what a stream takes, are in one order. A stream never takes anything
// that the policy in force does not tell its consumer; a response that it has taken
// before may still be on its way.
//
// Consumers for whom the same rules are made are a class. The registry has one verdict on
// each service, with one encoding for each shape, and no copy of what a class sees.
// SetAudit has every service that a consumer is told written to a log, and every one
// that is withdrawn.
//
// # Consumers that come back
//
// A consumer that says in the header of its stream what it holds already is sent only
// what is different, and the end marker; see package resume. The header of the stream is
// then the answer, and the subscription begins with it. Nothing is remembered of a
// consumer. A registry takes digests of what a class of consumers is told when the first
// of them asks, without holding up the others, and notes what has changed since. At most
// a tenth of the time goes into that; when it is used up, more is sent.
type Registry struct {
	refusals refusals
	setting  sync.Mutex // held by SetPolicy; locked before mu

	meanwhile func() // see pause; nil outside tests
	hop       string // what the registry is called in a path; read-only

	policies atomic.Uint64 // how often the policy has changed; under mu

	mu           sync.Mutex   // guards the fields below, and those of every class and Subscription
	availability availability // of now; over while the registry is unavailable
	unavailable  string       // why; empty while it is available
	hops         wire.Path    // through which the services come
	judgedCatalog
	names   []string        // keys of services in order, as they last were; shared with subscriptions, so never changed
	leaves  []uint16        // of names, as package resume has them; nil while nobody needs them; shared as well
	moved   []string        // names that have come or gone since then
	policy  *policy.Policy  // nil while everything is for everyone
	classes map[view]*class // those that have subscriptions
	resumes *resumes        // nil until a consumer wants to resume
	holds   int             // calls of Hold that have not been released
}

// NewRegistry returns an empty registry.
//
// A consumer that gets an empty catalog drops the services that the owner published
// before. So fill the registry before consumers can subscribe.
func NewRegistry() *Registry {
	return &Registry{
		hop:           rand.Text(),
		availability:  newAvailability(),
		judgedCatalog: judgedCatalog{services: make(map[string]*wire.Encoded)},
		classes:       make(map[view]*class),
	}
}

// Difference counts what a call of Set changed.
type Difference struct{ Added, Changed, Removed int }

// Set makes services the whole catalog. Subscribers are told only of the
// difference. The names must be unique; of two services with one name the last
// counts. The registry may keep the services, which must not be changed afterwards.
//
// Set fails when one of them is not valid (see [federation.Service.Validate]), and
// changes nothing then. The error joins a [*federation.InvalidError] for each of
// the first ten.
func (r *Registry) Set(services []*federation.Service) (Difference, error) {
	keep, err := r.encode(services)
	if err != nil {
		return Difference{}, err
	}
	return r.replace(keep), nil
}

// SetEncoded is Set for services that are encoded already, and so are valid. A source
// that remembers what it has encoded gives the same values again for what has not
// changed, which then costs a look at the name. The registry keeps no other copy.
func (r *Registry) SetEncoded(services []*wire.Encoded) Difference {
	keep := make(map[string]*wire.Encoded, len(services))
	for _, s := range services {
		keep[s.Name()] = s
	}
	return r.replace(keep)
}

// replace makes the services of keep the whole catalog, and takes over the map.
func (r *Registry) replace(keep map[string]*wire.Encoded) Difference {
	judged := r.lock(maps.Values(keep))
	defer r.mu.Unlock()
	before := r.verdicts
	if r.policy != nil {
		r.verdicts = make(map[string]policy.Verdict, len(keep))
	}
	var d difference
	for name, s := range keep {
		old := r.services[name]
		if r.policy != nil {
			r.verdicts[name] = before[name]
			if s != old {
				r.verdicts[name] = judged.on(s)
			}
		}
		switch {
		case old == nil:
			d.added = append(d.added, name)
		case old != s && !old.Equal(s):
			d.changed = append(d.changed, name)
		}
	}
	if len(r.services)+len(d.added) > len(keep) {
		for name := range r.services {
			if keep[name] == nil {
				d.gone = append(d.gone, name)
			}
		}
	}
	r.services = keep
	return r.tell(d, before)
}

// UpdateEncoded changes a part of the catalog at once: it adds or replaces the
// services of changed, and removes those with the names of gone. A service that is
// equal to what the registry holds is no change, and neither is a name that it does not
// know. A name in both counts as changed; of two services with one name the last
// counts. The registry keeps no other copy. Subscribers are told first what is added, then
// what is changed, and then what is gone.
//
// It takes time in proportion to what it is given, whatever the size of the catalog.
func (r *Registry) UpdateEncoded(changed []*wire.Encoded, gone []string) Difference {
	want := make(map[string]*wire.Encoded, len(changed)+len(gone)) // nil for what goes
	for _, name := range gone {
		want[name] = nil
	}
	for _, s := range changed {
		want[s.Name()] = s
	}
	judged := r.lock(slices.Values(changed))
	defer r.mu.Unlock()
	var before map[string]policy.Verdict
	if r.policy != nil {
		before = make(map[string]policy.Verdict, len(want))
	}
	var d difference
	for name, s := range want {
		old := r.services[name]
		if s == old {
			continue
		}
		if r.policy != nil {
			before[name] = r.verdicts[name]
		}
		if s == nil {
			delete(r.services, name)
			delete(r.verdicts, name)
			d.gone = append(d.gone, name)
			continue
		}
		r.services[name] = s
		if r.policy != nil {
			r.verdicts[name] = judged.on(s)
		}
		switch {
		case old == nil:
			d.added = append(d.added, name)
		case !old.Equal(s):
			d.changed = append(d.changed, name)
		}
	}
	return r.tell(d, before)
}

// tell notes the difference for all that remembers services, and counts it. Before has
// the verdicts that there were, on these services at least.
func (r *Registry) tell(d difference, before map[string]policy.Verdict) Difference {
	for _, name := range d.added {
		r.move(name)
	}
	for _, name := range d.gone {
		r.move(name)
		r.refusals.forget(name)
	}
	r.touch(d, before)
	count := Difference{len(d.added), len(d.changed), len(d.gone)}
	if len(r.classes) == 0 || count == (Difference{}) {
		return count
	}
	d.sort() // the same difference is told in the same order
	for v, c := range r.classes {
		seen := d
		if !v.whole {
			seen = r.seen(v, d, before)
		}
		c.services += len(seen.added) - len(seen.gone)
		for s := range c.subscriptions {
			s.follow(seen)
		}
	}
	return count
}

// maxInvalid bounds the services that the error of Set spells out.
const maxInvalid = 10

// encode returns the services by name, or an error when one of them is not valid.
// One that is equal to what the registry holds was validated when that came. The
// registry is locked for a look at each service only, so streams go on meanwhile.
func (r *Registry) encode(services []*federation.Service) (map[string]*wire.Encoded, error) {
	keep := make(map[string]*wire.Encoded, len(services))
	var errs []error
	more := 0
	for _, s := range services {
		if s != nil {
			if old := r.Lookup(s.Name); old != nil && old.Encodes(s) {
				keep[s.Name] = old
				continue
			}
		}
		switch e, err := wire.NewEncoded(s); {
		case err == nil:
			keep[s.Name] = e
		case len(errs) < maxInvalid:
			errs = append(errs, err)
		default:
			more++
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("and %d more services", more))
	}
	return keep, errors.Join(errs...)
}

// Hold keeps what changes from now on, in the catalog and in its policy, from all subscribers
// until release is called, once. Then they are told the difference. So an edit that changes
// both is never told in part.
func (r *Registry) Hold() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.holds--; r.holds > 0 {
			return
		}
		for _, c := range r.classes {
			for s := range c.subscriptions {
				s.rouse()
			}
		}
	}
}

// Lookup returns the service of that name, whoever is told of it, or nil.
func (r *Registry) Lookup(name string) *wire.Encoded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.services[name]
}

// Upsert adds the service, or replaces the one of the same name. It reports
// whether that changes the catalog: an equal service does not. The registry may keep
// s, which must not be changed afterwards.
//
// It fails with a [*federation.InvalidError] when s is not valid (see
// [federation.Service.Validate]), and changes nothing then.
func (r *Registry) Upsert(s *federation.Service) (bool, error) {
	e, err := wire.NewEncoded(s)
	if err != nil {
		return false, err
	}
	return r.UpdateEncoded([]*wire.Encoded{e}, nil) != Difference{}, nil
}

// Delete removes the service of that name, and reports whether there was one.
func (r *Registry) Delete(name string) bool {
	return r.UpdateEncoded(nil, []string{name}) != Difference{}
}

// Len returns the number of services.
func (r *Registry) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.services)
}

// stats adds what the registry knows: the number of services, the classes, what
// subscribers have yet to be told, and since when the first of that has been waiting.
func (r *Registry) stats(c CatalogStats) CatalogStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Services, c.Unavailable = len(r.services), r.unavailable
	for v, class := range r.classes {
		if !v.whole {
			c.Classes = append(c.Classes, ClassStats{Rules: v.class.Rules(), Consumers: len(class.subscriptions), Services: class.services})
		}
		for s := range class.subscriptions {
			c.Unsent += s.unsent + len(s.pending)
			switch {
			case !s.ended:
				c.Oldest = earlier(c.Oldest, s.begun)
			case len(s.pending) > 0:
				c.Oldest = earlier(c.Oldest, s.changes.next.since)
			}
		}
	}
	slices.SortFunc(c.Classes, func(a, b ClassStats) int { return slices.Compare(a.Rules, b.Rules) })
	return c
}

// move notes that a name has come or gone. When these are many, the names are sorted
// anew instead.
func (r *Registry) move(name string) {
	switch {
	case r.names == nil:
	case len(r.moved) < len(r.names)/4:
		r.moved = append(r.moved, name)
	default:
		r.names, r.leaves, r.moved = nil, nil, nil
	}
}

// sortedNames returns the names of the services in order. To sort a million of them
// for each consumer that comes while services come and go would hold up the others.
func (r *Registry) sortedNames() []string {
	if r.names == nil {
		r.names, r.leaves = slices.Sorted(maps.Keys(r.services)), nil
	}
	if len(r.moved) == 0 {
		return r.names
	}
	slices.Sort(r.moved)
	names, rest := make([]string, 0, len(r.services)), r.names
	var leaves, restLeaves []uint16
	if r.leaves != nil {
		leaves, restLeaves = make([]uint16, 0, len(r.services)), r.leaves
	}
	keep := func(i int) {
		names, rest = append(names, rest[:i]...), rest[i:]
		if restLeaves != nil {
			leaves, restLeaves = append(leaves, restLeaves[:i]...), restLeaves[i:]
		}
	}
	for _, name := range slices.Compact(r.moved) {
		i, known := slices.BinarySearch(rest, name)
		keep(i)
		if known {
			rest = rest[1:]
			if restLeaves != nil {
				restLeaves = restLeaves[1:]
			}
		}
		if r.services[name] != nil {
			names = append(names, name)
			if leaves != nil {
				leaves = append(leaves, uint16(resume.Leaf(name))) //nolint:gosec // it is below Leaves
			}
		}
	}
	keep(len(rest))
	r.names, r.leaves, r.moved = names, leaves, nil
	return names
}
