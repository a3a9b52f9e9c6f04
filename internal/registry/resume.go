package registry

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

const (
	// maxViews bounds the views of which a bucket keeps what was found out.
	maxViews = 64

	// Digests are taken during one digestShare-th of the time at most, and for
	// digestBurst at once: after a restart, every class of consumers comes back.
	digestShare = 10
	digestBurst = 10 * time.Second
)

// MessageForm is how a server sends services.
type MessageForm struct {
	Version    wire.APIVersion
	MaxMessage int // bytes of the largest message
}

// ResourceValue returns the value of the resource in the message for a service. It fails where
// there is no such message.
func (f MessageForm) ResourceValue(e *wire.EncodedService) ([]byte, error) {
	var value []byte
	if f.Version == wire.V1Alpha1 {
		event := federation.Event{Operation: federation.Upsert, Name: e.Name(), Service: e.Service()}
		response, err := wire.EncodeV1Alpha1(event, "", false)
		if err != nil {
			return nil, err
		}
		value = response.GetResource().GetValue()
	} else {
		value = e.Resource().GetValue()
	}
	return value, f.CheckSize(len(value))
}

// CheckSize returns a [TooLargeError] where a resource of so many bytes does not fit into a
// message.
func (f MessageForm) CheckSize(bytes int) error {
	if bytes+envelopeBytes > f.MaxMessage {
		return TooLargeError{bytes, f.MaxMessage}
	}
	return nil
}

// envelopeBytes is room for the parts of a message around the resource: the nonce, the
// context, the types and the name.
const envelopeBytes = 2 << 10

// TooLargeError says that a resource does not fit into a message.
type TooLargeError struct{ Bytes, MaxMessage int }

// Error implements error.
func (e TooLargeError) Error() string {
	return fmt.Sprintf("it takes %d bytes, and a message has no more than %d", e.Bytes, e.MaxMessage)
}

// formedView is a view in a form: what a consumer is told, byte for byte.
type formedView struct {
	consumerView
	MessageForm
}

// bucketSum is what a bucket is for a formedView.
type bucketSum struct {
	digest   resume.Digest
	services int               // that are seen, with these:
	withheld []WithheldService // of them
}

// bucketSums returns the sums of the buckets for a formedView: nil where one is not known and there
// is no time left to find it out. The first that wants them does that, and the others wait.
func (r *bucketRow) bucketSums(f formedView, left *digestAllowance) [rowBuckets]*bucketSum {
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

// computeSum finds out the sum of the bucket for a formedView.
func (b *bucket) computeSum(f formedView) *bucketSum {
	s := &bucketSum{services: b.len()}
	digests := make(resume.Digests, 0, s.services)
	for e := range b.allEntries() {
		service := e.serviceIn(f.consumerView)
		if service == nil {
			s.services--
		} else if value, err := f.ResourceValue(service); err != nil {
			s.withheld = append(s.withheld, WithheldService{service.Name(), err})
		} else {
			digests = append(digests, resume.DigestOf(value))
		}
	}
	s.digest = digests.LeafDigest()
	return s
}

// resumeRequest is what a consumer that comes back asks a version for.
type resumeRequest struct {
	formedView
	buckets int // of which it has digests
}

// resumeOffer is what a version has for a request.
type resumeOffer struct {
	sums    [resume.Leaves]*bucketSum // nil where it is not known
	digests resume.Digests            // as many as were asked for
}

// offerFor returns what the version has for a request.
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
		sums := r.bucketSums(to.formedView, left)
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

// digestAllowance is the time that a registry spends on digests.
type digestAllowance struct {
	mu   sync.Mutex
	owed time.Time // until then no digests are taken
}

// hasTimeLeft reports whether there is some left.
func (a *digestAllowance) hasTimeLeft() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !time.Now().Before(a.owed)
}

// spendTime notes how long it took to take digests.
func (a *digestAllowance) spendTime(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if least := time.Now().Add(-digestShare * digestBurst); a.owed.Before(least) {
		a.owed = least
	}
	a.owed = a.owed.Add(digestShare * took)
}

// Resumption is what a subscription has that does not begin with the whole catalog.
type Resumption struct {
	Selection resume.BucketSelection // the buckets of which the subscriber is told all
	Spared    int                    // the services that it has already
	Withheld  []WithheldService      // the services of the other buckets that it does not get in its form
}

// WithheldService is a service that a consumer does not get.
type WithheldService struct {
	Name string
	Err  error // of MessageForm.ResourceValue
}

// Resume has a subscription, of which nothing has been taken, begin with what a consumer
// holds that is sent services in that form, and whose services have these digests: the
// buckets that do not differ count as told. It returns nil where the consumer has to be told
// everything.
func (s *Subscription) Resume(f MessageForm, theirs resume.Digests) *Resumption {
	r := s.registry
	shown := r.shown.Load()
	v := viewOf(shown.policy, s)
	ours := shown.offerFor(resumeRequest{formedView{v, f}, len(theirs)}, &r.digesting)
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

// withoutBuckets returns a version that lacks the buckets of a selection.
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

// HoldsService reports whether the subscriber has been told the service of that name before anything
// was taken.
func (s *Subscription) HoldsService(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.told != nil && s.told.findEntry(name).serviceIn(s.toldView) != nil
}
