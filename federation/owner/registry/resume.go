package registry

import (
	"fmt"
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

// sumsAfter returns what holds on of the sums of a bucket when the pairs change in it: a
// consumer is sent the buckets whose digests are not known, and must not learn from them when
// something changes that is hidden from it.
func (b *bucket) sumsAfter(pairs []pair) map[formedView]*sum {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var after map[formedView]*sum
	for f, s := range b.sums {
		if len(in(f.view, f.view, pairs)) > 0 {
			continue
		}
		if after == nil {
			after = make(map[formedView]*sum)
		}
		after[f] = s
	}
	return after
}

// sum returns the sum of the bucket for a formedView, or nil where it is not known and there is
// no time left to find it out. The first that wants it does that, and the others wait.
func (b *bucket) sum(f formedView, left *allowance) *sum {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.sums[f]; known != nil || !left.any() {
		return known
	}
	begun := time.Now()
	found := b.take(f)
	if b.sums == nil || len(b.sums) >= maxViews {
		b.sums = make(map[formedView]*sum)
	}
	b.sums[f] = found
	left.spend(time.Since(begun))
	return found
}

// take finds out the sum of the bucket for a formedView.
func (b *bucket) take(f formedView) *sum {
	var s sum
	var digests resume.Digests
	for _, e := range b.entries {
		service := e.in(f.view)
		if service == nil {
			continue
		}
		s.services++
		if value, err := f.Value(service); err != nil {
			s.withheld = append(s.withheld, Withheld{service.Name(), err})
		} else {
			digests = append(digests, resume.Of(value))
		}
	}
	s.digest = digests.Sum()
	return &s
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
	v := formedView{viewOf(shown.policy, s), f}
	var sums [resume.Leaves]*sum
	ours := make(resume.Digests, resume.Leaves)
	for leaf, b := range shown.buckets {
		if sums[leaf] = b.sum(v, &r.digesting); sums[leaf] != nil {
			ours[leaf] = sums[leaf].digest
		}
	}
	resumed := &Resumption{Selection: ours.Differ(theirs)}
	for leaf, sum := range sums {
		if sum == nil {
			resumed.Selection.Add(leaf)
		}
	}
	if resumed.Selection.Len() == resumed.Selection.Of() {
		return nil
	}
	has := shown.copied()
	for leaf, sum := range sums {
		if resumed.Selection.HasLeaf(leaf) {
			has.buckets[leaf] = nil
			continue
		}
		resumed.Spared += sum.services - len(sum.withheld)
		resumed.Withheld = append(resumed.Withheld, sum.withheld...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.told != nil { // the registry has not become unavailable
		s.told, s.toldView = has, v.view
	}
	return resumed
}

// Holds reports whether the subscriber has been told the service of that name before anything
// was taken.
func (s *Subscription) Holds(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.told != nil && s.told.find(name).in(s.toldView) != nil
}
