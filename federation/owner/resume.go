package owner

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

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

	// openTimeout is how long a consumer that resumes may take for its initial request. Its
	// subscription keeps a version from before that.
	openTimeout = time.Minute
)

// errNoRequest ends a stream that is not asked for anything.
var errNoRequest = status.Error(codes.Unavailable, "the stream has resumed, and no initial request came within a minute")

// form is how a server sends services.
type form struct {
	version wire.Version
	most    int // bytes of the largest message
}

// value returns the value of the resource in the message for a service. It fails where
// the service is withheld.
func (f form) value(e *wire.Encoded) ([]byte, error) {
	var value []byte
	if f.version == wire.V1Alpha1 {
		event := federation.Event{Operation: federation.Upsert, Name: e.Name(), Service: e.Service()}
		response, err := wire.EncodeV1Alpha1(event, "", false)
		if err != nil {
			return nil, err
		}
		value = response.GetResource().GetValue()
	} else {
		value = e.Resource().GetValue()
	}
	return value, checkSize(len(value), f.most)
}

// formedView is a view in a form: what a consumer is told, byte for byte.
type formedView struct {
	view
	form
}

// sum is what a bucket is for a formedView.
type sum struct {
	digest   resume.Digest
	services int       // that are seen, with these:
	withheld []missing // of them
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
		if value, err := f.value(service); err != nil {
			s.withheld = append(s.withheld, missing{service.Name(), gapOf(err)})
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

// resumption is what a subscription has that does not begin with the whole catalog.
type resumption struct {
	selection resume.Selection // the buckets of which the subscriber is told all
	spared    int              // the services that it has already
	withheld  []missing        // the services of the other buckets that it does not get in its form
}

// resume has a subscription, of which nothing has been taken, begin with what a consumer
// holds that is sent services in that form, and whose services have these digests: the
// buckets that do not differ count as told. It returns nil where the consumer has to be told
// everything.
func (r *Registry) resume(s *Subscription, f form, theirs resume.Digests) *resumption {
	shown := r.shown.Load()
	v := formedView{viewOf(shown.policy, s), f}
	var sums [resume.Leaves]*sum
	ours := make(resume.Digests, resume.Leaves)
	for leaf, b := range shown.buckets {
		if sums[leaf] = b.sum(v, &r.digesting); sums[leaf] != nil {
			ours[leaf] = sums[leaf].digest
		}
	}
	resumed := &resumption{selection: ours.Differ(theirs)}
	for leaf, sum := range sums {
		if sum == nil {
			resumed.selection.Add(leaf)
		}
	}
	if resumed.selection.Len() == resumed.selection.Of() {
		return nil
	}
	has := shown.copied()
	for leaf, sum := range sums {
		if resumed.selection.HasLeaf(leaf) {
			has.buckets[leaf] = nil
			continue
		}
		resumed.spared += sum.services - len(sum.withheld)
		resumed.withheld = append(resumed.withheld, sum.withheld...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.told != nil { // the registry has not become unavailable
		s.told, s.toldView = has, v.view
	}
	return resumed
}

// resume lets the consumer go on with what it holds, if it says that in the header of the
// stream and there is a part of it that need not be sent.
func (s *session) resume(ctx context.Context) {
	values := metadata.ValueFromIncomingContext(ctx, wire.ResumeHeader)
	if len(values) != 1 {
		return
	}
	theirs, err := resume.ParseDigests(values[0])
	if err != nil {
		s.log.Debug("consumer cannot resume: what it says it holds cannot be read", "error", err)
		return
	}
	s.resumed = s.registry.resume(s.subscription, form{s.version, s.server.config.MaxMessage}, theirs)
	if s.resumed == nil {
		return
	}
	for _, m := range s.resumed.withheld {
		s.withhold(m.name, m.why)
	}
	s.catalog.resumed.Add(1)
	s.catalog.spared.Add(uint64(max(0, s.resumed.spared)))
	s.regained()
}

// await waits for the initial request. It sends the answers to what the consumer
// publishes.
func (s *session) await(ctx context.Context, opened <-chan wire.Request) (wire.Request, error) {
	var overdue <-chan time.Time
	if s.resumed != nil {
		timer := time.NewTimer(openTimeout)
		defer timer.Stop()
		overdue = timer.C
	}
	for {
		select {
		case first := <-opened:
			return first, nil
		case answer := <-s.answers:
			if err := s.decline(answer); err != nil {
				return wire.Request{}, err
			}
		case <-overdue:
			return wire.Request{}, errNoRequest
		case <-ctx.Done():
			return wire.Request{}, context.Cause(ctx)
		}
	}
}

// start tells that the consumer has subscribed.
func (s *session) start() {
	s.subscription.ask()
	if s.resumed == nil {
		s.log.Info("consumer subscribed")
		return
	}
	s.log.Info("consumer subscribed", "held", s.resumed.spared)
	if audit := s.server.audit.Load(); audit != nil {
		audit.Info("services held", "catalog", s.catalog.name, "consumer", s.consumer, "held", s.resumed.spared)
	}
	s.resumed = nil // it is not needed any more
}

// checkSize returns an error where a resource of so many bytes does not fit into a
// message of at most so many.
func checkSize(bytes, most int) error {
	if bytes+envelopeBytes > most {
		return tooLargeError{bytes, most}
	}
	return nil
}

// regained tells that the consumer does not refuse any more what it holds. It may have
// refused a version of a service that was not the last one.
func (s *session) regained() {
	r := s.registry
	if r.refusals.listener == nil {
		return
	}
	for _, service := range r.refusals.of(s.consumer) {
		_, withheld := s.withheld[service]
		if !withheld && s.subscription.has(service) {
			r.accepted(s.consumer, service)
		}
	}
}

// has reports whether the subscriber has been told the service of that name before anything
// was taken.
func (s *Subscription) has(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.told != nil && s.told.find(name).in(s.toldView) != nil
}
