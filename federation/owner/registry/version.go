package registry

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

// view is what a subscriber may be told: everything, or what the policy of a version tells
// a class of consumers. It is no copy: an entry has a verdict, and that has the shape of the
// service for each class.
type view struct {
	whole bool
	class policy.Class // unless whole
}

// viewOf returns what a policy lets a consumer with these identities see.
func viewOf(p *policy.Policy, s *Subscription) view {
	if p == nil || s.everything {
		return view{whole: true}
	}
	return view{class: p.Class(s.ids)}
}

// entry is a service of a version, with what the policy of the version says of it. It never
// changes, and nil stands for a service that there is not.
type entry struct {
	service *wire.Encoded
	verdict policy.Verdict
}

// in returns the service in the shape that the view has of it, or nil.
func (e *entry) in(v view) *wire.Encoded {
	switch {
	case e == nil:
		return nil
	case v.whole:
		return e.service
	default:
		return e.verdict.For(v.class)
	}
}

// rule returns the rule of the policy by which the service is in the view, or 0.
func (e *entry) rule(v view) int {
	if e == nil || v.whole {
		return 0
	}
	return e.verdict.Rule(v.class)
}

// bucket has the entries of the names that package resume has in one leaf. They never
// change; what has been found out of them is kept for those who ask next.
type bucket struct {
	entries []*entry // in the order of their names

	mu     sync.Mutex // guards the fields below
	counts map[view]int
	sums   map[formedView]*sum
}

// all returns the entries. A bucket that is nil is empty.
func (b *bucket) all() []*entry {
	if b == nil {
		return nil
	}
	return b.entries
}

// find returns the entry of that name, or nil.
func (b *bucket) find(name string) *entry {
	entries := b.all()
	i, found := slices.BinarySearchFunc(entries, name, func(e *entry, name string) int { return cmp.Compare(e.service.Name(), name) })
	if !found {
		return nil
	}
	return entries[i]
}

// count returns how many of the services are in the view.
func (b *bucket) count(v view) int {
	switch {
	case b == nil:
		return 0
	case v.whole:
		return len(b.entries)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n, known := b.counts[v]
	if known {
		return n
	}
	for _, e := range b.entries {
		if e.in(v) != nil {
			n++
		}
	}
	if b.counts == nil || len(b.counts) >= maxViews {
		b.counts = make(map[view]int)
	}
	b.counts[v] = n
	return n
}

// edit is another entry for a name; nil for one that goes.
type edit struct {
	name  string
	entry *entry
}

// with returns a bucket with other entries, which are in the order of their names. A digest
// holds on where nothing of what changes is seen.
func (b *bucket) with(edits []edit) *bucket {
	old := b.all()
	entries := make([]*entry, 0, len(old)+len(edits))
	pairs := make([]pair, 0, len(edits))
	for _, e := range edits {
		i, known := slices.BinarySearchFunc(old, e.name, func(e *entry, name string) int { return cmp.Compare(e.service.Name(), name) })
		entries = append(entries, old[:i]...)
		before := pair{nil, e.entry}
		if old = old[i:]; known {
			before.before, old = old[0], old[1:]
		}
		pairs = append(pairs, before)
		if e.entry != nil {
			entries = append(entries, e.entry)
		}
	}
	return &bucket{entries: append(entries, old...), sums: b.sumsAfter(pairs)}
}

// version is the catalog of a registry as it is at some time. It never changes. The next
// version shares the buckets in which nothing is different:
//
//	version 7   [ b0 | b1 | b2  | ... | b511 ]    policy, path, whether it is available
//	               |    |    |            |
//	              ...  ...  e1,e2,e3     ...      entries: service and verdict
//	               |    |                 |
//	version 8   [ b0 | b1 | b2' | ... | b511 ]
//	                         |
//	                        e1,e4,e3              one entry is another
//
// So what changes from one version to any other is found by comparing pointers, for each
// view of it.
type version struct {
	buckets     [resume.Leaves]*bucket // nil stands for an empty one that was told to one subscriber alone
	services    int
	policy      *policy.Policy // nil while everything is for everyone
	path        wire.Path      // through which the services come
	unavailable string         // why the catalog cannot be told as a whole; empty while it can
	outages     int            // how often that has been so

	// number is how many versions there were before, counted from 1. What was told to one
	// subscriber alone has none.
	number uint64

	mu          sync.Mutex                           // guards the field below
	differences map[passage]weak.Pointer[difference] // from other versions
}

// emptyVersion returns the first version of a registry.
func emptyVersion() *version {
	v := &version{number: 1}
	for leaf := range v.buckets {
		v.buckets[leaf] = &bucket{}
	}
	return v
}

// nothing is what a new subscriber has been told.
var nothing = &version{} //nolint:gochecknoglobals // it never changes

// copied returns a version that is the same, to be changed before others see it.
func (v *version) copied() *version {
	return &version{
		buckets: v.buckets, services: v.services, policy: v.policy, path: v.path,
		unavailable: v.unavailable, outages: v.outages,
	}
}

// find returns the entry of that name, or nil.
func (v *version) find(name string) *entry { return v.buckets[resume.Leaf(name)].find(name) }

// entries returns those of all services.
func (v *version) entries() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, b := range v.buckets {
			for _, e := range b.all() {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// count returns how many services are in the view.
func (v *version) count(in view) int {
	if in.whole {
		return v.services
	}
	n := 0
	for _, b := range v.buckets {
		n += b.count(in)
	}
	return n
}

// with returns a version with other entries; nil for those that go.
func (v *version) with(entries map[string]*entry) *version {
	next := v.copied()
	edits := make(map[int][]edit)
	for name, e := range entries {
		leaf := resume.Leaf(name)
		edits[leaf] = append(edits[leaf], edit{name, e})
	}
	for leaf, in := range edits {
		slices.SortFunc(in, func(a, b edit) int { return cmp.Compare(a.name, b.name) })
		old := v.buckets[leaf]
		next.buckets[leaf] = old.with(in)
		next.services += len(next.buckets[leaf].all()) - len(old.all())
	}
	return next
}

// judged returns a version in which another policy is in force.
func (v *version) judged(p *policy.Policy) *version {
	next := v.copied()
	next.policy = p
	for leaf, old := range v.buckets {
		entries := make([]*entry, len(old.entries))
		for i, e := range old.entries {
			entries[i] = &entry{e.service, p.Judge(e.service)}
		}
		next.buckets[leaf] = &bucket{entries: entries}
	}
	return next
}

// told returns an entry that is in every view, in that shape.
func told(as *wire.Encoded) *entry {
	var everyone *policy.Policy
	return &entry{as, everyone.Judge(as)}
}

// pair is what becomes of a service: its entries in one version and in another one, which
// are not the same.
type pair struct{ before, after *entry }

func (p pair) name() string {
	if p.after != nil {
		return p.after.service.Name()
	}
	return p.before.service.Name()
}

// differ returns what becomes of the services of one bucket in another one.
func differ(before, after *bucket) []pair {
	if before == after {
		return nil
	}
	var pairs []pair
	a, b := before.all(), after.all()
	if len(a) == 0 || len(b) == 0 {
		pairs = make([]pair, 0, len(a)+len(b))
	}
	for len(a) > 0 || len(b) > 0 {
		switch order := compareFirst(a, b); {
		case order == 0 && a[0] == b[0]:
			a, b = a[1:], b[1:]
		case order == 0:
			pairs = append(pairs, pair{a[0], b[0]})
			a, b = a[1:], b[1:]
		case order < 0:
			pairs, a = append(pairs, pair{before: a[0]}), a[1:]
		default:
			pairs, b = append(pairs, pair{after: b[0]}), b[1:]
		}
	}
	return pairs
}

// compareFirst compares the names of the first entries. What is at its end comes last.
func compareFirst(a, b []*entry) int {
	switch {
	case len(b) == 0:
		return -1
	case len(a) == 0:
		return 1
	case a[0] == b[0]:
		return 0
	default:
		return cmp.Compare(a[0].service.Name(), b[0].service.Name())
	}
}

// passage is from one view of a version to a view of another version.
type passage struct {
	from          uint64 // number of the version
	before, after view
}

// difference is what changes in a passage: additions first, and removals last, so that an
// fqdn that moves to a service of another name has an answer all the time. Each of the three is
// in the order of the names.
type difference struct {
	once  sync.Once
	pairs []pair
}

// since returns what has changed since another version. That is found out once for all who
// ask while one of them has it.
func (v *version) since(from *version, before, after view) *difference {
	if from.number == 0 {
		return &difference{pairs: in(before, after, v.pairs(from))}
	}
	p := passage{from.number, before, after}
	v.mu.Lock()
	d := v.differences[p].Value()
	if d == nil {
		d = &difference{}
		maps.DeleteFunc(v.differences, func(_ passage, d weak.Pointer[difference]) bool { return d.Value() == nil })
		if v.differences == nil {
			v.differences = make(map[passage]weak.Pointer[difference])
		}
		v.differences[p] = weak.Make(d)
	}
	v.mu.Unlock()
	d.once.Do(func() { d.pairs = in(before, after, v.pairs(from)) })
	return d
}

// pairs returns what becomes of the services of another version, in any view.
func (v *version) pairs(from *version) []pair {
	var pairs []pair
	for leaf, b := range v.buckets {
		pairs = append(pairs, differ(from.buckets[leaf], b)...)
	}
	return pairs
}

// in returns those pairs that are different in a view before and a view after.
func in(from, to view, pairs []pair) []pair {
	var added, changed, gone []pair
	for _, of := range pairs {
		before, after := of.before.in(from), of.after.in(to)
		switch {
		case before == after:
		case before == nil:
			added = append(added, of)
		case after == nil:
			gone = append(gone, of)
		case !before.Equal(after):
			changed = append(changed, of)
		}
	}
	for _, of := range [][]pair{added, changed, gone} {
		slices.SortFunc(of, func(a, b pair) int { return cmp.Compare(a.name(), b.name()) })
	}
	return slices.Concat(added, changed, gone)
}

// distance returns how many services have changed since another version.
func (v *version) distance(from *version, before, after view) int {
	n := 0
	for leaf, b := range v.buckets {
		if old := from.buckets[leaf]; old == nil {
			n += b.count(after)
		} else {
			n += len(in(before, after, differ(old, b)))
		}
	}
	return n
}
