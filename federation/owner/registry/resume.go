package registry

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

const (
	// maxViews bounds the views of which a bucket keeps what was found out.
	maxViews = 64

	// Digests are taken during one digestShare-th of the time at most, and for
	// digestBurst at once: after a restart, every class of consumers comes back.
	digestShare = 10
	digestBurst = 10 * time.Second
)

// Form is how a server sends services.
type Form struct {
	Version    wire.Version
	MaxMessage int // bytes of the largest message
}

// Value returns the value of the resource in the message for a service. It fails where
// there is no such message.
func (f Form) Value(e *wire.Encoded) ([]byte, error) {
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
	return value, f.Check(len(value))
}

// Check returns a [TooLargeError] where a resource of so many bytes does not fit into a
// message.
func (f Form) Check(bytes int) error {
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
	view
	Form
}

// sum is what a bucket is for a formedView.
type sum struct {
	digest   resume.Digest
	services int        // that are seen, with these:
	withheld []Withheld // of them
}

// sum returns the sums of the buckets for a formedView: nil where one is not known and there
// is no time left to find it out. The first that wants them does that, and the others wait.
func (r *row) sum(f formedView, left *allowance) [rowBuckets]*sum {
	r.mu.Lock()
	defer r.mu.Unlock()
	sums := r.sums[f]
	if sums == nil {
		sums = &[rowBuckets]*sum{}
		keep(&r.sums, f, sums)
	}
	if slices.Contains(sums[:], nil) && left.any() {
		begun := time.Now()
		for at, b := range r.buckets {
			if sums[at] == nil {
				sums[at] = b.sum(f)
			}
		}
		left.spend(time.Since(begun))
	}
	return *sums
}

// sum finds out the sum of the bucket for a formedView.
func (b *bucket) sum(f formedView) *sum {
	s := &sum{services: b.len()}
	digests := make(resume.Digests, 0, s.services)
	for e := range b.all() {
		service := e.in(f.view)
		if service == nil {
			s.services--
		} else if value, err := f.Value(service); err != nil {
			s.withheld = append(s.withheld, Withheld{service.Name(), err})
		} else {
			digests = append(digests, resume.Of(value))
		}
	}
	s.digest = digests.Sum()
	return s
}

// request is what a consumer that comes back asks a version for.
type request struct {
	formedView
	buckets int // of which it has digests
}

// offer is what a version has for a request.
type offer struct {
	sums    [resume.Leaves]*sum // nil where it is not known
	digests resume.Digests      // as many as were asked for
}

// offer returns what the version has for a request.
func (v *version) offer(to request, left *allowance) *offer {
	v.mu.Lock()
	o := v.offers[to]
	v.mu.Unlock()
	if o != nil {
		return o
	}
	o = &offer{}
	digests := make(resume.Digests, resume.Leaves)
	for i, r := range v.rows {
		sums := r.sum(to.formedView, left)
		copy(o.sums[i*rowBuckets:], sums[:])
	}
	for leaf, sum := range o.sums {
		if sum != nil {
			digests[leaf] = sum.digest
		}
	}
	o.digests = digests.Fold(to.buckets)
	if !slices.Contains(o.sums[:], nil) {
		v.mu.Lock()
		defer v.mu.Unlock()
		keep(&v.offers, to, o)
	}
	return o
}

// allowance is the time that a registry spends on digests.
type allowance struct {
	mu   sync.Mutex
	owed time.Time // until then no digests are taken
}

// any reports whether there is some left.
func (a *allowance) any() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !time.Now().Before(a.owed)
}

// spend notes how long it took to take digests.
func (a *allowance) spend(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if least := time.Now().Add(-digestShare * digestBurst); a.owed.Before(least) {
		a.owed = least
	}
	a.owed = a.owed.Add(digestShare * took)
}

// Resumption is what a subscription has that does not begin with the whole catalog.
type Resumption struct {
	Selection resume.Selection // the buckets of which the subscriber is told all
	Spared    int              // the services that it has already
	Withheld  []Withheld       // the services of the other buckets that it does not get in its form
}

// Withheld is a service that a consumer does not get.
type Withheld struct {
	Name string
	Err  error // of Form.Value
}

// Resume has a subscription, of which nothing has been taken, begin with what a consumer
// holds that is sent services in that form, and whose services have these digests: the
// buckets that do not differ count as told. It returns nil where the consumer has to be told
// everything.
func (s *Subscription) Resume(f Form, theirs resume.Digests) *Resumption {
	r := s.registry
	shown := r.shown.Load()
	v := viewOf(shown.policy, s)
	ours := shown.offer(request{formedView{v, f}, len(theirs)}, &r.digesting)
	resumed := &Resumption{Selection: ours.digests.Differ(theirs)}
	for leaf, sum := range ours.sums {
		if sum == nil {
			resumed.Selection.Add(leaf)
		}
	}
	if resumed.Selection.Len() == resumed.Selection.Of() {
		return nil
	}
	for leaf, sum := range ours.sums {
		if !resumed.Selection.HasLeaf(leaf) {
			resumed.Spared += sum.services - len(sum.withheld)
			resumed.Withheld = append(resumed.Withheld, sum.withheld...)
		}
	}
	has := shown.without(resumed.Selection)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.told != nil { // the registry has not become unavailable
		s.told, s.toldView = has, v
	}
	return resumed
}

// without returns a version that lacks the buckets of a selection.
func (v *version) without(selection resume.Selection) *version {
	if selection.Len() == 0 {
		return v
	}
	less := v.copied()
	for leaf := range resume.Leaves {
		if selection.HasLeaf(leaf) {
			less.set(v, leaf, nil)
		}
	}
	return less
}

// Holds reports whether the subscriber has been told the service of that name before anything
// was taken.
func (s *Subscription) Holds(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.told != nil && s.told.find(name).in(s.toldView) != nil
}
