package registry

import (
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

const (
	// maxViews bounds the views for which a row of buckets keeps its counts and sums.
	maxViews = 64

	// Digests are computed during one digestShare-th of the time at most, and for
	// digestBurst at once: after a restart, every class of consumers comes back.
	digestShare = 10
	digestBurst = 10 * time.Second
)

// FitsMessage reports whether a resource of so many bytes fits into a message of at most maxMessage
// bytes.
func FitsMessage(bytes, maxMessage int) bool { return bytes+envelopeBytes <= maxMessage }

// envelopeBytes is room for the parts of a message around the resource: the nonce, the
// context, the types and the name.
const envelopeBytes = 2 << 10

// limitedView is a view in messages of a largest size. It decides byte for byte what a consumer is sent.
type limitedView struct {
	consumerView

	maxMessage int // bytes of the largest message
}

// bucketSum is the content of a bucket for one limitedView.
type bucketSum struct {
	digest   resume.Digest
	services int      // that the view has, including withheld
	withheld []string // names of services for which no message has room
}

// bucketSums returns the sums of the buckets for a limitedView. A sum is nil where it is not known
// and no time is left to compute it. The first caller computes the sums, and the others wait for
// that.
func (r *bucketRow) bucketSums(f limitedView, left *digestAllowance) [rowBuckets]*bucketSum {
	r.mu.Lock()
	defer r.mu.Unlock()
	sums := r.sums[f]
	if sums == nil {
		sums = &[rowBuckets]*bucketSum{}
		rememberFor(&r.sums, f, sums)
	}
	if slices.Contains(sums[:], nil) && left.hasTimeLeft() {
		begun := time.Now()
		for at, b := range r.buckets {
			if sums[at] == nil {
				sums[at] = b.computeSum(f)
			}
		}
		left.spendTime(time.Since(begun))
	}
	return *sums
}

// computeSum returns the sum of the bucket for a limitedView.
func (b bucket) computeSum(f limitedView) *bucketSum {
	s := &bucketSum{services: len(b)}
	digests := make(resume.Digests, 0, s.services)
	for _, e := range b {
		service := e.serviceIn(f.consumerView)
		if service == nil {
			s.services--
		} else if value := service.Resource().GetValue(); !FitsMessage(len(value), f.maxMessage) {
			s.withheld = append(s.withheld, service.Name())
		} else {
			digests = append(digests, resume.DigestOf(value))
		}
	}
	s.digest = digests.LeafDigest()
	return s
}

// resumeRequest is what a consumer that comes back asks of a version.
type resumeRequest struct {
	limitedView
	buckets int // for which the consumer has sent digests
}

// resumeOffer is what a version answers to a request.
type resumeOffer struct {
	sums    [resume.Leaves]*bucketSum // nil where the sum is not known
	digests resume.Digests            // as many as were asked for
}

// offerFor returns the answer of the version to a request. Left bounds the time for digests.
func (v *catalogVersion) offerFor(to resumeRequest, left *digestAllowance) *resumeOffer {
	v.mu.Lock()
	o := v.offers[to]
	v.mu.Unlock()
	if o != nil {
		return o
	}
	o = &resumeOffer{}
	digests := make(resume.Digests, resume.Leaves)
	for i, r := range v.rows {
		sums := r.bucketSums(to.limitedView, left)
		copy(o.sums[i*rowBuckets:], sums[:])
	}
	for leaf, sum := range o.sums {
		if sum != nil {
			digests[leaf] = sum.digest
		}
	}
	o.digests = digests.FoldTo(to.buckets)
	if !slices.Contains(o.sums[:], nil) {
		v.mu.Lock()
		defer v.mu.Unlock()
		rememberFor(&v.offers, to, o)
	}
	return o
}

// digestAllowance bounds the time that a registry spends on digests to a digestShare-th, with
// bursts of digestBurst. Whoever has computed digests spends the time. Nobody waits for more: where
// none is left, the consumer is sent the services of the buckets whose digests are not known.
type digestAllowance struct {
	mu   sync.Mutex
	owed time.Time // until then no digests are computed
}

// hasTimeLeft reports whether digests may be computed now.
func (a *digestAllowance) hasTimeLeft() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !time.Now().Before(a.owed)
}

// spendTime records how long it took to compute digests.
func (a *digestAllowance) spendTime(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if least := time.Now().Add(-digestShare * digestBurst); a.owed.Before(least) {
		a.owed = least
	}
	a.owed = a.owed.Add(digestShare * took)
}

// Resumption says what a subscription skips that does not begin with the whole catalog.
type Resumption struct {
	Selection resume.BucketSelection // the buckets that the subscriber is sent whole
	Spared    int                    // the services that the subscriber has already
	Withheld  []string               // the services of the other buckets for which no message has room
}

// Resume makes a subscription, from which nothing has been taken, begin with what the consumer
// holds already: theirs are the digests of its services, as v1alpha2 sends them in messages of at most
// maxMessage bytes. The buckets whose digests do not differ count as told. Resume returns what is skipped, or nil where the consumer has to be
// sent everything.
func (s *Subscription) Resume(maxMessage int, theirs resume.Digests) *Resumption {
	r := s.registry
	shown := r.shown.Load()
	v := viewOf(shown.policy, s.ids)
	ours := shown.offerFor(resumeRequest{limitedView{v, maxMessage}, len(theirs)}, &r.digesting)
	resumed := &Resumption{Selection: ours.digests.DifferingBuckets(theirs)}
	for leaf, sum := range ours.sums {
		if sum == nil {
			resumed.Selection.AddLeaf(leaf)
		}
	}
	if resumed.Selection.Len() == resumed.Selection.TotalBuckets() {
		return nil
	}
	for leaf, sum := range ours.sums {
		if !resumed.Selection.HasLeaf(leaf) {
			resumed.Spared += sum.services - len(sum.withheld)
			resumed.Withheld = append(resumed.Withheld, sum.withheld...)
		}
	}
	has := shown.withoutBuckets(resumed.Selection)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.told != nil { // the registry has not become unavailable
		s.told, s.toldView = has, v
	}
	return resumed
}

// withoutBuckets returns a version without the buckets of a selection.
func (v *catalogVersion) withoutBuckets(selection resume.BucketSelection) *catalogVersion {
	if selection.Len() == 0 {
		return v
	}
	less := v.mutableCopy()
	for leaf := range resume.Leaves {
		if selection.HasLeaf(leaf) {
			less.setBucket(v, leaf, nil)
		}
	}
	return less
}

// HoldsService reports whether the subscriber resumed with the service of that name. It is called
// before anything is taken.
func (s *Subscription) HoldsService(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.told != nil && s.told.findEntry(name).serviceIn(s.toldView) != nil
}
