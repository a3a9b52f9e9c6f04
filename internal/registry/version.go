package registry

import (
	"cmp"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// consumerView is what a subscriber may have: everything, or what the policy of a version lets a
// class of consumers have. A view has no copy of services: each entry has a verdict, which has the
// shape of the service for each class.
type consumerView struct {
	whole bool
	class policy.ConsumerClass // unless whole
}

// viewOf returns what a policy lets a consumer with these identities see.
func viewOf(p *policy.Policy, ids []federation.ID) consumerView {
	if p == nil {
		return consumerView{whole: true}
	}
	return consumerView{class: p.ClassOf(ids)}
}

// serviceEntry is a service of a version, with the verdict of the version's policy. It never
// changes, and nil stands for a service that does not exist.
type serviceEntry struct {
	service *wire.EncodedService
	verdict policy.Verdict
}

// serviceIn returns the service in the shape of the view, or nil where the view does not have it.
func (e *serviceEntry) serviceIn(v consumerView) *wire.EncodedService {
	switch {
	case e == nil:
		return nil
	case v.whole:
		return e.service
	default:
		return e.verdict.ServiceFor(v.class)
	}
}

// ruleIn returns the rule of the policy by which the view has the service, or 0.
func (e *serviceEntry) ruleIn(v consumerView) int {
	if e == nil || v.whole {
		return 0
	}
	return e.verdict.DecidingRule(v.class)
}

// rowBuckets is how many buckets are in a row, and rows is how many rows a version has. To make a
// version costs about as many copies of pointers as their sum.
const (
	rowBuckets = 16
	rows       = resume.Leaves / rowBuckets
)

// bucketRow has the buckets of a few leaves, which never change. Beside them it keeps what was
// counted for views, so that the next caller and the next version need not count again. Readers add
// to these counts under mu. MaxViews bounds the views: at that number all counts are dropped and
// made anew when needed.
type bucketRow struct {
	buckets [rowBuckets]bucket

	mu     sync.Mutex                              // guards the fields below
	counts map[consumerView]int                    // services that the view has
	sums   map[limitedView]*[rowBuckets]*bucketSum // nil where a sum is not known
}

// emptyRow is a row without services.
var emptyRow = &bucketRow{} //nolint:gochecknoglobals // it never changes

// countIn returns how many services of the row the view has.
func (r *bucketRow) countIn(v consumerView) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, known := r.counts[v]
	if known {
		return n
	}
	for _, b := range r.buckets {
		n += b.countIn(v)
	}
	rememberFor(&r.counts, v, n)
	return n
}

// countIn returns how many services of the bucket the view has.
func (b bucket) countIn(v consumerView) (n int) {
	for _, e := range b {
		if e.serviceIn(v) != nil {
			n++
		}
	}
	return n
}

// rememberFor stores a value for a view. There may be any number of views, so at maxViews all are
// forgotten.
func rememberFor[V comparable, T any](known *map[V]T, of V, found T) {
	if *known == nil || len(*known) >= maxViews {
		*known = make(map[V]T)
	}
	(*known)[of] = found
}

// inheritSums copies the sums of another row, except those of buckets that differ for the consumer.
// A consumer is sent the buckets whose digests are not known, and must not learn from them that
// something hidden from it has changed.
func (r *bucketRow) inheritSums(from *bucketRow) {
	from.mu.Lock()
	defer from.mu.Unlock()
	if len(from.sums) == 0 {
		return
	}
	r.sums = make(map[limitedView]*[rowBuckets]*bucketSum, len(from.sums))
	for f, known := range from.sums {
		sums := *known
		r.sums[f] = &sums
	}
	for at, b := range r.buckets {
		pairs := diffBuckets(from.buckets[at], b)
		if len(pairs) == 0 {
			continue
		}
		for f, sums := range r.sums {
			if len((viewChange{f.consumerView, f.consumerView}).differingPairs(pairs)) > 0 {
				sums[at] = nil
			}
		}
	}
}

// catalogVersion is the catalog of a registry at some moment. It never changes once others see it. The next
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
// So the difference of any two versions is found by comparing pointers, for each view of them.
type catalogVersion struct {
	rows        [rows]*bucketRow
	services    int
	policy      *policy.Policy // nil while everything is for everyone
	path        wire.OwnerPath // through which the services come
	unavailable string         // why the catalog cannot be told as a whole; empty while it can
	lost        time.Time      // since when its origin is lost, if that is the reason; else zero
	cuts        int            // how often all streams had to end
	incomplete  bool           // whether the end marker waits

	mu     sync.Mutex                     // guards the field below
	offers map[resumeRequest]*resumeOffer // in which all digests are known
}

// emptyVersion is the version that a new subscriber has been told.
var emptyVersion = func() *catalogVersion { //nolint:gochecknoglobals // it never changes
	v := &catalogVersion{}
	for i := range v.rows {
		v.rows[i] = emptyRow
	}
	return v
}()

// mutableCopy returns a copy that may be changed before others see it.
func (v *catalogVersion) mutableCopy() *catalogVersion {
	return &catalogVersion{
		rows: v.rows, services: v.services, policy: v.policy, path: v.path,
		unavailable: v.unavailable, lost: v.lost, cuts: v.cuts, incomplete: v.incomplete,
	}
}

// bucketOf returns the bucket of a leaf.
func (v *catalogVersion) bucketOf(leaf int) bucket {
	return v.rows[leaf/rowBuckets].buckets[leaf%rowBuckets]
}

// findEntry returns the entry of that name, or nil.
func (v *catalogVersion) findEntry(name string) *serviceEntry {
	return v.bucketOf(resume.LeafOf(name)).findEntry(name)
}

// allEntries returns the entries of all services.
func (v *catalogVersion) allEntries() iter.Seq[*serviceEntry] {
	return func(yield func(*serviceEntry) bool) {
		for leaf := range resume.Leaves {
			for _, e := range v.bucketOf(leaf) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// countIn returns how many services the view has.
func (v *catalogVersion) countIn(in consumerView) int {
	if in.whole {
		return v.services
	}
	n := 0
	for _, r := range v.rows {
		n += r.countIn(in)
	}
	return n
}

// setBucket replaces the bucket of a leaf. V is a copy of the version of.
func (v *catalogVersion) setBucket(of *catalogVersion, leaf int, b bucket) {
	in := &v.rows[leaf/rowBuckets]
	if *in == of.rows[leaf/rowBuckets] {
		*in = &bucketRow{buckets: (*in).buckets}
	}
	(*in).buckets[leaf%rowBuckets] = b
}

// withEntries returns a version with other entries. A nil entry removes the service.
func (v *catalogVersion) withEntries(entries map[string]*serviceEntry) *catalogVersion {
	next := v.mutableCopy()
	edits := make(map[int][]entryEdit)
	for name, e := range entries {
		leaf := resume.LeafOf(name)
		edits[leaf] = append(edits[leaf], entryEdit{name, e})
	}
	for leaf, in := range edits {
		slices.SortFunc(in, func(a, b entryEdit) int { return cmp.Compare(a.name, b.name) })
		old := v.bucketOf(leaf)
		b := old.withEdits(in)
		next.setBucket(v, leaf, b)
		next.services += len(b) - len(old)
	}
	for i, r := range next.rows {
		if r != v.rows[i] {
			r.inheritSums(v.rows[i])
		}
	}
	return next
}

// judgedBy returns a version with another policy, in which each service has a verdict of that
// policy.
func (v *catalogVersion) judgedBy(p *policy.Policy) *catalogVersion {
	next := v.mutableCopy()
	next.policy = p
	for leaf := range resume.Leaves {
		old := v.bucketOf(leaf)
		b := make(bucket, 0, len(old))
		for _, e := range old {
			b = append(b, &serviceEntry{e.service, p.Judge(e.service)})
		}
		next.setBucket(v, leaf, b)
	}
	return next
}

// universalEntry returns an entry that every view has, in that shape.
func universalEntry(as *wire.EncodedService) *serviceEntry {
	var everyone *policy.Policy
	return &serviceEntry{as, everyone.Judge(as)}
}

// viewChange is a change from one view to another.
type viewChange struct{ before, after consumerView }

// pairsSince returns a pair for each service that differs between the version from and v, in any
// view.
func (v *catalogVersion) pairsSince(from *catalogVersion) []entryPair {
	var pairs []entryPair
	for i, r := range v.rows {
		if old := from.rows[i]; old != r {
			for at, b := range r.buckets {
				pairs = append(pairs, diffBuckets(old.buckets[at], b)...)
			}
		}
	}
	return pairs
}

// differingPairs returns those pairs that differ in a change of views: additions first, then
// changes, and removals last, so that an fqdn that moves to a service of another name has an answer
// all the time. Each of the three is in the order of the names.
func (p viewChange) differingPairs(pairs []entryPair) []entryPair {
	var added, changed, gone []entryPair
	for _, of := range pairs {
		before, after := of.before.serviceIn(p.before), of.after.serviceIn(p.after)
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
	for _, of := range [][]entryPair{added, changed, gone} {
		slices.SortFunc(of, func(a, b entryPair) int { return cmp.Compare(a.serviceName(), b.serviceName()) })
	}
	return slices.Concat(added, changed, gone)
}

// pairKind is the same for all pairs about which the same rules of the policy decide.
type pairKind struct{ before, after any }

// byKind groups pairs by their kind. A class for which no rule decides about one pair of a kind is
// sent none of them, so that these pairs need not be looked at again for each class.
func byKind(pairs []entryPair) map[pairKind][]entryPair {
	kinds := make(map[pairKind][]entryPair)
	for _, of := range pairs {
		k := pairKind{of.before.metRules(), of.after.metRules()}
		kinds[k] = append(kinds[k], of)
	}
	return kinds
}

// metRules returns a value that is equal for entries that meet the same rules, or nil without a
// service.
func (e *serviceEntry) metRules() any {
	if e == nil {
		return nil
	}
	return e.verdict.MetRules()
}

// differingOfKinds returns what differingPairs returns for all the pairs, which are of two versions
// that were published.
func (p viewChange) differingOfKinds(kinds map[pairKind][]entryPair) []entryPair {
	var pairs []entryPair
	for _, alike := range kinds {
		if p.before.whole || p.after.whole || alike[0].before.ruleIn(p.before) > 0 || alike[0].after.ruleIn(p.after) > 0 {
			pairs = append(pairs, alike...)
		}
	}
	return p.differingPairs(pairs)
}

// countChangedSince returns how many services differ between the version from and v, in a change of
// views.
func (v *catalogVersion) countChangedSince(from *catalogVersion, p viewChange) int {
	n := 0
	for i, r := range v.rows {
		switch old := from.rows[i]; old {
		case r:
		case emptyRow:
			n += r.countIn(p.after)
		default:
			for at, b := range r.buckets {
				if len(old.buckets[at]) == 0 {
					n += b.countIn(p.after)
				} else {
					n += len(p.differingPairs(diffBuckets(old.buckets[at], b)))
				}
			}
		}
	}
	return n
}
