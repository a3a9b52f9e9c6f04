package owner

import (
	"iter"
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
	services      int // that are in the view, unless it is the whole
}

// visible returns the service of that name in the shape that the view has of it, or nil.
func (r *Registry) visible(v view, name string) *wire.Encoded {
	if v.whole {
		return r.services[name]
	}
	return r.verdicts[name].For(v.class)
}

// rule returns the rule of the policy by which a service is in the view, or 0.
func (r *Registry) rule(v view, name string) int {
	if v.whole {
		return 0
	}
	return r.verdicts[name].Rule(v.class)
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
		c = &class{subscriptions: make(map[*Subscription]struct{})}
		r.classes[v] = c
		if !v.whole {
			for _, verdict := range r.verdicts {
				if verdict.For(v.class) != nil {
					c.services++
				}
			}
		}
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
	j, views := r.lockFor(p)
	defer r.mu.Unlock()
	names := r.sortedNames()
	was := r.scene(names)
	r.policy, r.verdicts = p, nil
	if p != nil {
		r.verdicts = make(map[string]policy.Verdict, len(names))
		for name, s := range r.services {
			r.verdicts[name] = j.on(s)
		}
	}
	is := r.scene(names)
	old := r.classes
	r.classes = make(map[view]*class)
	differences := make(map[[2]view]difference)
	for from, c := range old {
		for s := range c.subscriptions {
			to, known := views[s]
			if !known {
				to = s.viewOf(p)
			}
			r.join(s, to)
			d, known := differences[[2]view{from, to}]
			if !known {
				for i, name := range names {
					d.note(name, was.visible(from, i), is.visible(to, i))
				}
				differences[[2]view{from, to}] = d
			}
			s.follow(d)
		}
	}
}

// lockFor locks the registry, and returns what a policy says of nearly all services, and
// what it lets nearly all subscriptions see: all but the last to come, if they never end.
func (r *Registry) lockFor(p *policy.Policy) (judgement, map[*Subscription]view) {
	j := judgement{p, make(map[*wire.Encoded]policy.Verdict)}
	views := make(map[*Subscription]view)
	for round := 0; ; round++ {
		var services []*wire.Encoded
		var subscriptions []*Subscription
		r.mu.Lock()
		if p == nil || round == maxRounds {
			return j, views
		}
		for _, s := range r.services {
			if _, judged := j.verdicts[s]; !judged {
				services = append(services, s)
			}
		}
		for _, c := range r.classes {
			for s := range c.subscriptions {
				if _, known := views[s]; !known {
					subscriptions = append(subscriptions, s)
				}
			}
		}
		if len(services)+len(subscriptions) == 0 {
			return j, views
		}
		r.mu.Unlock()
		j.judge(services)
		for _, s := range subscriptions {
			views[s] = s.viewOf(p)
		}
		r.pause()
	}
}

// scene is a catalog with what a policy says of it, in the order of its names.
type scene struct {
	services []*wire.Encoded
	verdicts []policy.Verdict // nil without a policy
}

func (r *Registry) scene(names []string) scene {
	var sc scene
	for _, name := range names {
		sc.services = append(sc.services, r.services[name])
		if r.policy != nil {
			sc.verdicts = append(sc.verdicts, r.verdicts[name])
		}
	}
	return sc
}

func (sc scene) visible(v view, i int) *wire.Encoded {
	if v.whole {
		return sc.services[i]
	}
	return sc.verdicts[i].For(v.class)
}
