package registry

import (
	"cmp"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
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
	if s.everything {
		return view{whole: true}
	}
	return viewFor(p, s.ids)
}

// viewFor returns what a policy lets a consumer with these identities see.
func viewFor(p *policy.Policy, ids []federation.ID) view {
	if p == nil {
		return view{whole: true}
	}
	return view{class: p.Class(ids)}
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

// rowBuckets is how many buckets are in a row, and rows how many rows a version has: a
// version is made by copying about as many pointers as both.
const (
	rowBuckets = 16
	rows       = resume.Leaves / rowBuckets
)

// row has the buckets of a few leaves. They never change; what has been found out of them is
// kept for those who ask next, and for the next version.
type row struct {
	buckets [rowBuckets]*bucket // nil for an empty one

	mu     sync.Mutex                       // guards the fields below
	counts map[view]int                     // services that are in the view
	sums   map[formedView]*[rowBuckets]*sum // nil where it is not known
}

// empty is a row of nothing.
var empty = &row{} //nolint:gochecknoglobals // it never changes

// count returns how many of the services are in the view.
func (r *row) count(v view) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, known := r.counts[v]
	if known {
		return n
	}
	for _, b := range r.buckets {
		n += b.count(v)
	}
	keep(&r.counts, v, n)
	return n
}

func (b *bucket) count(v view) (n int) {
	for e := range b.all() {
		if e.in(v) != nil {
			n++
		}
	}
	return n
}

// keep remembers what was found out of a view, of which there may be any number.
func keep[V comparable, T any](known *map[V]T, of V, found T) {
	if *known == nil || len(*known) >= maxViews {
		*known = make(map[V]T)
	}
	(*known)[of] = found
}

// inherit has the row keep the sums of another one, but for those of buckets that are not the
// same to the consumer: it is sent the buckets whose digests are not known, and must not learn
// from them when something changes that is hidden from it.
func (r *row) inherit(from *row) {
	from.mu.Lock()
	defer from.mu.Unlock()
	if len(from.sums) == 0 {
		return
	}
	r.sums = make(map[formedView]*[rowBuckets]*sum, len(from.sums))
	for f, known := range from.sums {
		sums := *known
		r.sums[f] = &sums
	}
	for at, b := range r.buckets {
		pairs := differ(from.buckets[at], b)
		if len(pairs) == 0 {
			continue
		}
		for f, sums := range r.sums {
			if len((passage{f.view, f.view}).of(pairs)) > 0 {
				sums[at] = nil
			}
		}
	}
}

// version is the catalog of a registry as it is at some time. It never changes. The next
// version shares the buckets in which nothing is different, and the rows of those:
//
//	version 7   [ r0 | r1 | ... | r31 ]    policy, path, whether it is available
//	               |    |           |
//	              ...  [ b16 | b17 | ... | b31 ]
//	                       |     |           |
//	                      ...  e1,e2,e3     ...      entries: service and verdict
//	                             |
//	version 8   [ r0 | r1' | ... | r31 ]
//	                    |
//	                   [ b16 | b17' | ... | b31 ]
//	                             |
//	                           e1,e4,e3              one entry is another
//
// So what changes from one version to any other is found by comparing pointers, for each
// view of it.
type version struct {
	rows        [rows]*row
	services    int
	policy      *policy.Policy // nil while everything is for everyone
	path        wire.Path      // through which the services come
	unavailable string         // why the catalog cannot be told as a whole; empty while it can
	lost        time.Time      // since when its origin is lost, if that is why; else zero
	cuts        int            // how often all streams had to end
	incomplete  bool           // whether the end marker waits

	mu     sync.Mutex         // guards the field below
	offers map[request]*offer // in which all digests are known
}

// nothing is what a new subscriber has been told.
var nothing = func() *version { //nolint:gochecknoglobals // it never changes
	v := &version{}
	for i := range v.rows {
		v.rows[i] = empty
	}
	return v
}()

// copied returns a version that is the same, to be changed before others see it.
func (v *version) copied() *version {
	return &version{
		rows: v.rows, services: v.services, policy: v.policy, path: v.path,
		unavailable: v.unavailable, lost: v.lost, cuts: v.cuts, incomplete: v.incomplete,
	}
}

// bucket returns the bucket of a leaf.
func (v *version) bucket(leaf int) *bucket { return v.rows[leaf/rowBuckets].buckets[leaf%rowBuckets] }

// find returns the entry of that name, or nil.
func (v *version) find(name string) *entry { return v.bucket(resume.Leaf(name)).find(name) }

// entries returns those of all services.
func (v *version) entries() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for leaf := range resume.Leaves {
			for e := range v.bucket(leaf).all() {
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
	for _, r := range v.rows {
		n += r.count(in)
	}
	return n
}

// set makes a bucket that of a leaf, in a version that was copied of another one.
func (v *version) set(of *version, leaf int, b *bucket) {
	in := &v.rows[leaf/rowBuckets]
	if *in == of.rows[leaf/rowBuckets] {
		*in = &row{buckets: (*in).buckets}
	}
	(*in).buckets[leaf%rowBuckets] = b
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
		old := v.bucket(leaf)
		b := old.with(in)
		next.set(v, leaf, b)
		next.services += b.len() - old.len()
	}
	for i, r := range next.rows {
		if r != v.rows[i] {
			r.inherit(v.rows[i])
		}
	}
	return next
}

// judged returns a version in which another policy is in force.
func (v *version) judged(p *policy.Policy) *version {
	next := v.copied()
	next.policy = p
	for leaf := range resume.Leaves {
		old := v.bucket(leaf)
		entries := make([]*entry, 0, old.len())
		for e := range old.all() {
			entries = append(entries, &entry{e.service, p.Judge(e.service)})
		}
		b := &bucket{}
		b.add(entries)
		next.set(v, leaf, b)
	}
	return next
}

// told returns an entry that is in every view, in that shape.
func told(as *wire.Encoded) *entry {
	var everyone *policy.Policy
	return &entry{as, everyone.Judge(as)}
}

// passage is from one view to another one.
type passage struct{ before, after view }

// pairs returns what becomes of the services of another version, in any view.
func (v *version) pairs(from *version) []pair {
	var pairs []pair
	for i, r := range v.rows {
		if old := from.rows[i]; old != r {
			for at, b := range r.buckets {
				pairs = append(pairs, differ(old.buckets[at], b)...)
			}
		}
	}
	return pairs
}

// of returns those pairs that are different in a passage: additions first, and removals last,
// so that an fqdn that moves to a service of another name has an answer all the time. Each of
// the three is in the order of the names.
func (p passage) of(pairs []pair) []pair {
	var added, changed, gone []pair
	for _, of := range pairs {
		before, after := of.before.in(p.before), of.after.in(p.after)
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

// kind is what pairs have in common of which the same rules decide.
type kind struct{ before, after any }

// byKind groups pairs: a class for which no rule decides of one of a kind is told none of them,
// and then they need not be looked at once more for each class.
func byKind(pairs []pair) map[kind][]pair {
	kinds := make(map[kind][]pair)
	for _, of := range pairs {
		k := kind{of.before.met(), of.after.met()}
		kinds[k] = append(kinds[k], of)
	}
	return kinds
}

// met returns a value that is the same where the same rules are met; nil without a service.
func (e *entry) met() any {
	if e == nil {
		return nil
	}
	return e.verdict.Met()
}

// ofKinds is what of returns of all the pairs, which are of two versions that were published.
func (p passage) ofKinds(kinds map[kind][]pair) []pair {
	var pairs []pair
	for _, alike := range kinds {
		if p.before.whole || p.after.whole || alike[0].before.rule(p.before) > 0 || alike[0].after.rule(p.after) > 0 {
			pairs = append(pairs, alike...)
		}
	}
	return p.of(pairs)
}

// distance returns how many services have changed since another version.
func (v *version) distance(from *version, p passage) int {
	n := 0
	for i, r := range v.rows {
		switch old := from.rows[i]; old {
		case r:
		case empty:
			n += r.count(p.after)
		default:
			for at, b := range r.buckets {
				if old.buckets[at] == nil {
					n += b.count(p.after)
				} else {
					n += len(p.of(differ(old.buckets[at], b)))
				}
			}
		}
	}
	return n
}
