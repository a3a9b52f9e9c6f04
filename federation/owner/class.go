package owner

import (
	"iter"
	"maps"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// view is what a subscriber may be told: everything, or what the policy in force tells
// a class of consumers. It is no copy: the registry has a verdict on each service, and
// a verdict has the shape of the service for each class.
type view struct {
	whole bool
	class policy.Class // of the policy in force, unless whole
}

// class is the subscriptions with the same view. What changes is found out once for
// all of them.
type class struct {
	subscriptions map[*Subscription]struct{}
	services      int // that are in the view
}

// judgedCatalog is a catalog, with what a policy says of it.
type judgedCatalog struct {
	services map[string]*wire.Encoded
	verdicts map[string]policy.Verdict // on each of services; nil without a policy
}

// visible returns the service of that name in the shape that the view has of it, or nil.
func (o judgedCatalog) visible(v view, name string) *wire.Encoded {
	if v.whole {
		return o.services[name]
	}
	return o.verdicts[name].For(v.class)
}

// rule returns the rule of the policy by which a service is in the view, or 0.
func (o judgedCatalog) rule(v view, name string) int {
	if v.whole {
		return 0
	}
	return o.verdicts[name].Rule(v.class)
}

// count returns how many services are in the view.
func (o judgedCatalog) count(v view) int {
	if v.whole {
		return len(o.services)
	}
	n := 0
	for _, verdict := range o.verdicts {
		if verdict.For(v.class) != nil {
			n++
		}
	}
	return n
}

// viewOf returns what a policy lets the subscription see.
func (s *Subscription) viewOf(p *policy.Policy) view {
	if p == nil || s.everything {
		return view{whole: true}
	}
	return view{class: p.Class(s.ids)}
}

// lockView locks the registry, and returns what the policy in force lets the
// subscription see. It is found out without the lock, because a consumer may have many
// identities and a policy many patterns.
func (r *Registry) lockView(s *Subscription) view {
	var p *policy.Policy
	for v := s.viewOf(p); ; v = s.viewOf(p) {
		r.pause()
		r.mu.Lock()
		if r.policy == p {
			return v
		}
		p = r.policy
		r.mu.Unlock()
	}
}

// join adds the subscription to those with that view.
func (r *Registry) join(s *Subscription, v view) *class {
	c := r.classes[v]
	if c == nil {
		c = &class{subscriptions: make(map[*Subscription]struct{}), services: r.count(v)}
		r.classes[v] = c
	}
	c.subscriptions[s] = struct{}{}
	s.view = v
	return c
}

// leave removes the subscription, if it is in a class.
func (r *Registry) leave(s *Subscription) {
	c := r.classes[s.view]
	if c == nil {
		return
	}
	delete(c.subscriptions, s)
	if len(c.subscriptions) == 0 {
		delete(r.classes, s.view)
	}
}

// difference is what changes at once for those with the same view, by name.
type difference struct{ added, changed, gone []string }

func (d *difference) sort() {
	slices.Sort(d.added)
	slices.Sort(d.changed)
	slices.Sort(d.gone)
}

// note adds what becomes of one service.
func (d *difference) note(name string, before, after *wire.Encoded) {
	switch {
	case before == after:
	case before == nil:
		d.added = append(d.added, name)
	case after == nil:
		d.gone = append(d.gone, name)
	case !before.Equal(after):
		d.changed = append(d.changed, name)
	}
}

// drop removes names.
func (d *difference) drop(names map[string]bool) {
	dropped := func(name string) bool { return names[name] }
	d.added = slices.DeleteFunc(d.added, dropped)
	d.changed = slices.DeleteFunc(d.changed, dropped)
	d.gone = slices.DeleteFunc(d.gone, dropped)
}

// seen returns what the view has of a difference of the catalog.
func (r *Registry) seen(v view, d difference, before map[string]policy.Verdict) difference {
	var seen difference
	for _, names := range [][]string{d.added, d.changed, d.gone} {
		for _, name := range names {
			seen.note(name, before[name].For(v.class), r.verdicts[name].For(v.class))
		}
	}
	seen.sort()
	return seen
}

// judgement is what a policy says of services.
type judgement struct {
	policy   *policy.Policy
	verdicts map[*wire.Encoded]policy.Verdict
}

// judge adds verdicts.
func (j judgement) judge(services []*wire.Encoded) {
	for _, s := range services {
		j.verdicts[s] = j.policy.Judge(s)
	}
}

// on returns the verdict on a service. It judges the service now if that was not done.
func (j judgement) on(s *wire.Encoded) policy.Verdict {
	if v, judged := j.verdicts[s]; judged {
		return v
	}
	return j.policy.Judge(s)
}

// pause is where a test changes something that has been judged without the lock.
func (r *Registry) pause() {
	if r.meanwhile != nil {
		r.meanwhile()
	}
}

// maxRounds bounds how often something is judged without the lock because of what has
// changed meanwhile. What is then left is judged with it.
const maxRounds = 3

// lock locks the registry, and returns what the policy in force says of those of the
// services that the registry does not hold.
func (r *Registry) lock(services iter.Seq[*wire.Encoded]) judgement {
	var j judgement
	for round := 0; ; round++ {
		r.mu.Lock()
		switch {
		case r.policy == j.policy:
			return j
		case r.policy == nil || round == maxRounds:
			return judgement{policy: r.policy}
		}
		j.policy = r.policy
		var fresh []*wire.Encoded
		for s := range services {
			if r.services[s.Name()] != s {
				fresh = append(fresh, s)
			}
		}
		r.mu.Unlock()
		j.verdicts = make(map[*wire.Encoded]policy.Verdict, len(fresh))
		j.judge(fresh)
		r.pause()
	}
}

// SetPolicy makes p say who is told of what; nil tells everything to everyone. It may be
// called at any time. Open subscriptions are told the difference: first what appears for
// them, then what has another shape, and then what is gone. Once SetPolicy has returned,
// nothing is taken that p does not tell.
//
// It judges every service, which does not hold up the streams. Until it is done with
// all, the policy before is in force for all. One call waits for another.
func (r *Registry) SetPolicy(p *policy.Policy) {
	r.setting.Lock()
	defer r.setting.Unlock()
	for round := 0; ; round++ {
		t := r.prepare(p)
		r.pause()
		r.mu.Lock()
		late := t.late(r.services)
		if fewLate*len(late) > len(r.services) && round < maxRounds {
			r.mu.Unlock()
			continue
		}
		t.catchUp(r.judgedCatalog, late)
		r.change(t)
		r.mu.Unlock()
		return
	}
}

// fewLate is the part of the services, as one in so many, that may change while another
// policy is prepared without that being done anew.
const fewLate = 4

// transition is a change from the policy in force to another one, for the services and the
// subscriptions that there were when it was prepared.
type transition struct {
	judgedCatalog

	policy      *policy.Policy
	views       map[*Subscription]view
	counts      map[view]int            // of the services
	differences map[[2]view]*difference // by the views before and after
}

// prepare prepares the change to a policy. The registry is locked only to copy what it
// knows.
func (r *Registry) prepare(p *policy.Policy) *transition {
	t := &transition{
		policy: p, views: make(map[*Subscription]view), counts: make(map[view]int), differences: make(map[[2]view]*difference),
	}
	r.mu.Lock()
	t.services = maps.Clone(r.services)
	now := judgedCatalog{t.services, maps.Clone(r.verdicts)}
	names := r.sortedNames()
	subscriptions := make(map[*Subscription]view)
	for v, c := range r.classes {
		for s := range c.subscriptions {
			subscriptions[s] = v
		}
	}
	r.mu.Unlock()
	if p != nil {
		t.verdicts = make(map[string]policy.Verdict, len(names))
		for name, s := range t.services {
			t.verdicts[name] = p.Judge(s)
		}
	}
	before, after := now.lineUp(names), t.lineUp(names)
	for s, from := range subscriptions {
		to := s.viewOf(p)
		t.views[s] = to
		if _, known := t.counts[to]; !known {
			t.counts[to] = t.count(to)
		}
		if way := [2]view{from, to}; t.differences[way] == nil {
			t.differences[way] = between(before, after, way)
		}
	}
	return t
}

// sortedCatalog is a judgedCatalog in the order of its names, which many views are compared by.
type sortedCatalog struct {
	names    []string
	services []*wire.Encoded
	verdicts []policy.Verdict // nil without a policy
}

func (o judgedCatalog) lineUp(names []string) sortedCatalog {
	l := sortedCatalog{names: names, services: make([]*wire.Encoded, len(names))}
	if o.verdicts != nil {
		l.verdicts = make([]policy.Verdict, len(names))
	}
	for i, name := range names {
		l.services[i] = o.services[name]
		if o.verdicts != nil {
			l.verdicts[i] = o.verdicts[name]
		}
	}
	return l
}

// visible is that of the catalog, for the name at index i.
func (l sortedCatalog) visible(v view, i int) *wire.Encoded {
	if v.whole {
		return l.services[i]
	}
	return l.verdicts[i].For(v.class)
}

// between returns what changes for those whose view becomes another one.
func between(before, after sortedCatalog, way [2]view) *difference {
	var d difference
	for i, name := range before.names {
		d.note(name, before.visible(way[0], i), after.visible(way[1], i))
	}
	return &d
}

// late returns the names of the services that are not those of the transition.
func (t *transition) late(services map[string]*wire.Encoded) map[string]bool {
	late := make(map[string]bool)
	for name, s := range services {
		if t.services[name] != s {
			late[name] = true
		}
	}
	for name := range t.services {
		if services[name] == nil {
			late[name] = true
		}
	}
	return late
}

// catchUp makes the transition one from the catalog of now, with other services of these
// names.
func (t *transition) catchUp(now judgedCatalog, late map[string]bool) {
	if len(late) == 0 {
		return
	}
	for _, d := range t.differences {
		d.drop(late)
	}
	for name := range late {
		t.add(name, -1)
		delete(t.services, name)
		delete(t.verdicts, name)
		if s := now.services[name]; s != nil {
			t.services[name] = s
			if t.policy != nil {
				t.verdicts[name] = t.policy.Judge(s)
			}
		}
		t.add(name, 1)
		for way, d := range t.differences {
			d.note(name, now.visible(way[0], name), t.visible(way[1], name))
		}
	}
	for _, d := range t.differences {
		d.sort()
	}
}

// add adds n to the counts of the views that have the service of that name.
func (t *transition) add(name string, n int) {
	for v := range t.counts {
		if t.visible(v, name) != nil {
			t.counts[v] += n
		}
	}
}

// change makes the policy of the transition the one in force, and tells every subscription
// the difference.
func (r *Registry) change(t *transition) {
	r.policies.Add(1)
	before, classes := r.judgedCatalog, r.classes
	r.policy, r.verdicts, r.classes = t.policy, t.verdicts, make(map[view]*class)
	if r.resumes != nil {
		clear(r.resumes.digests)
	}
	for v, n := range t.counts {
		r.classes[v] = &class{subscriptions: make(map[*Subscription]struct{}), services: n}
	}
	for from, c := range classes {
		for s := range c.subscriptions {
			to, known := t.views[s]
			if !known {
				to = s.viewOf(t.policy)
			}
			r.join(s, to)
			way := [2]view{from, to}
			if t.differences[way] == nil { // it has come since
				t.differences[way] = between(before.lineUp(r.sortedNames()), r.lineUp(r.sortedNames()), way)
			}
			s.follow(*t.differences[way])
		}
	}
	for v, c := range r.classes {
		if len(c.subscriptions) == 0 { // they have gone since
			delete(r.classes, v)
		}
	}
}
