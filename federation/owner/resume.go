package owner

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
)

const (
	// maxViews bounds the views of which a registry keeps digests: some 30 kB each.
	maxViews = 64

	// Digests are taken during one digestShare-th of the time at most, and for
	// digestBurst at once: after a restart, every class of consumers comes back.
	digestShare = 10
	digestBurst = 10 * time.Second

	// manyChanges is from how many changes at once on no name of them is looked at: there
	// are hardly leaves without one.
	manyChanges = 8 * resume.Leaves

	// openTimeout is how long a consumer that resumes may take for its initial request. Its
	// subscription begins before that, and changes are noted for it.
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

// digests are those of a formedView. Those of a leaf hold unless something has changed there
// since they were taken.
type digests struct {
	leaves resume.Digests           // nil before they were taken
	folded map[int]resume.Digests   // leaves, by the number of buckets
	at     [resume.Leaves]uint64    // resumes.changes when that of a leaf was taken
	left   [resume.Leaves][]missing // the services that are withheld
	seen   [resume.Leaves]int       // how many services there are, with these

	touched [resume.Leaves]uint64 // resumes.changes when something that is seen has changed in a leaf last

	busy chan struct{} // while they are taken; closed then
}

// resumes is what a registry keeps once a consumer has wanted to resume.
type resumes struct {
	changes uint64                  // counts those of services
	digests map[formedView]*digests // under the policy in force
	owed    time.Time               // no digests are taken before
}

// stale reports whether the digest of a leaf may not be that of now.
func (d *digests) stale(leaf int) bool {
	return d.leaves == nil || d.touched[leaf] > d.at[leaf]
}

// of returns the digests of a formedView.
func (r *resumes) of(s formedView) *digests {
	d := r.digests[s]
	if d == nil {
		for other := range r.digests { // any one
			if len(r.digests) < maxViews {
				break
			}
			delete(r.digests, other)
		}
		d = &digests{}
		r.digests[s] = d
	}
	return d
}

// spend notes how long it took to take digests.
func (r *resumes) spend(took time.Duration) {
	now := time.Now()
	if least := now.Add(-digestShare * digestBurst); r.owed.Before(least) {
		r.owed = least
	}
	r.owed = r.owed.Add(digestShare * took)
}

// touch notes for each formedView in which leaves something has changed that is seen there: a
// consumer is sent the leaves that are not known anew, and must not learn from them when
// something changes that is hidden from it. Before has the verdicts that there were. It costs
// nothing before a consumer has wanted to resume.
func (r *Registry) touch(d difference, before map[string]policy.Verdict) {
	known := r.resumes
	if known == nil {
		return
	}
	known.changes++
	many := len(d.added)+len(d.changed)+len(d.gone) >= manyChanges
	for s, of := range known.digests {
		switch {
		case many:
			for leaf := range of.touched {
				of.touched[leaf] = known.changes // the consumer is told everything
			}
		case s.whole:
			of.touch(d, known.changes)
		default:
			of.touch(r.seen(s.view, d, before), known.changes)
		}
	}
}

func (d *digests) touch(by difference, changes uint64) {
	for _, names := range [][]string{by.added, by.changed, by.gone} {
		for _, name := range names {
			d.touched[resume.Leaf(name)] = changes
		}
	}
}

// resumption is a subscription that does not begin with the whole catalog.
type resumption struct {
	*Subscription

	selection resume.Selection // the buckets of which the subscriber is told all
	spared    int              // the services that it has already
	withheld  []missing        // the services of the other buckets that it does not get in its form
}

// resume is SubscribeAs for a consumer that holds what has these digests, and is sent
// services in that form. The subscription has only the services of the buckets that
// differ; those of the others count as told. Which they are is decided at the moment that
// the subscription begins with. It returns nil where the consumer has to be told
// everything, once ctx ends, and once the availability ends.
//
// Digests that are not known, or are of what has changed, are taken by the first of
// those that come, and the others wait for it. What has changed again meanwhile counts as
// different.
func (r *Registry) resume(ctx context.Context, availability availability, ids []federation.ID, f form, theirs resume.Digests) *resumption {
	s := &Subscription{ids: ids}
	for round := 0; ; round++ {
		v := r.lockView(s)
		if availability.over() {
			r.mu.Unlock()
			return nil
		}
		if r.resumes == nil {
			r.resumes = &resumes{digests: make(map[formedView]*digests)}
		}
		d := r.resumes.of(formedView{v, f})
		r.sortedNames()
		switch {
		case round == maxRounds:
		case d.busy != nil:
			busy := d.busy
			r.mu.Unlock()
			select {
			case <-busy:
			case <-ctx.Done():
				return nil
			}
			continue
		case time.Now().Before(r.resumes.owed):
		default:
			if digesting := r.digest(formedView{v, f}, d); digesting != nil {
				r.mu.Unlock()
				digesting.run()
				continue
			}
		}
		resumption := r.begin(s, v, d, theirs)
		r.mu.Unlock()
		return resumption
	}
}

// begin begins the subscription with the buckets in which the digests differ. It returns
// nil when these are all, or it is not known which. The registry is locked, and its names
// are sorted.
func (r *Registry) begin(s *Subscription, v view, d *digests, theirs resume.Digests) *resumption {
	if d.leaves == nil || r.leaves == nil {
		return nil
	}
	selection := d.fold(len(theirs)).Differ(theirs)
	var stale [resume.Leaves]bool
	for leaf := range stale {
		if stale[leaf] = d.stale(leaf); stale[leaf] {
			selection.Add(leaf)
		}
	}
	if selection.Len() == selection.Of() {
		return nil
	}
	resumed := &resumption{Subscription: s, selection: selection}
	for leaf, services := range d.left {
		if !selection.HasLeaf(leaf) {
			resumed.withheld = append(resumed.withheld, services...)
		}
	}
	all := r.open(s, v).services
	s.unsent = 0
	if selection.Len() == 0 {
		s.catalog = nil
	} else {
		s.leaves, s.selection = r.leaves, selection
		s.unsent = r.unsent(v, d, selection, &stale)
	}
	resumed.spared = all - s.unsent - len(resumed.withheld)
	return resumed
}

// unsent returns how many services of the view are in the buckets. It looks at services
// only where that may have changed: a consumer can come as often as it likes, with digests
// of which nearly all are wrong. The registry is locked, and its leaves are known.
func (r *Registry) unsent(v view, d *digests, selection resume.Selection, stale *[resume.Leaves]bool) int {
	n, all := 0, true
	for leaf := range stale {
		switch {
		case stale[leaf]:
			all = false
		case selection.HasLeaf(leaf):
			n += d.seen[leaf]
		}
	}
	if all {
		return n
	}
	for i, leaf := range r.leaves {
		if stale[leaf] && (v.whole || r.visible(v, r.names[i]) != nil) {
			n++
		}
	}
	return n
}

// fold returns the digests of so many buckets.
func (d *digests) fold(buckets int) resume.Digests {
	if d.folded[buckets] == nil {
		if d.folded == nil {
			d.folded = make(map[int]resume.Digests)
		}
		d.folded[buckets] = d.leaves.Fold(buckets)
	}
	return d.folded[buckets]
}

// digesting is digests being taken, with what the registry had when that began.
type digesting struct {
	registry *Registry
	digests  *digests
	form     form
	begun    time.Time
	changes  uint64
	names    []string
	leaves   []uint16 // of names; nil if they have to be found out
	wanted   [resume.Leaves]bool
	services []*wire.Encoded // of the wanted leaves at least
}

// digest returns how to take the digests of the leaves where something has changed, and
// to find out the leaves of names where that is not known. It returns nil when there is
// nothing to do. The registry is locked, and its names are sorted.
func (r *Registry) digest(s formedView, d *digests) *digesting {
	t := &digesting{
		registry: r, digests: d, form: s.form, begun: time.Now(), changes: r.resumes.changes, names: r.names, leaves: r.leaves,
	}
	stale := 0
	for leaf := range t.wanted {
		if d.stale(leaf) {
			t.wanted[leaf] = true
			stale++
		}
	}
	if stale == 0 && t.leaves != nil {
		return nil
	}
	for i, name := range t.names {
		if stale < resume.Leaves && (stale == 0 || t.leaves != nil && !t.wanted[t.leaves[i]]) {
			continue
		}
		if e := r.visible(s.view, name); e != nil {
			t.services = append(t.services, e)
		}
	}
	d.busy = make(chan struct{})
	return t
}

// run takes the digests without the lock of the registry, and gives them to it.
func (t *digesting) run() {
	leaves := t.leaves
	if leaves == nil {
		leaves = make([]uint16, len(t.names))
		for i, name := range t.names {
			leaves[i] = uint16(resume.Leaf(name)) //nolint:gosec // it is below Leaves
		}
	}
	var sum resume.Sum
	var left [resume.Leaves][]missing
	var seen [resume.Leaves]int
	for _, e := range t.services {
		leaf := resume.Leaf(e.Name())
		if !t.wanted[leaf] {
			continue
		}
		seen[leaf]++
		if value, err := t.form.value(e); err != nil {
			left[leaf] = append(left[leaf], missing{e.Name(), gapOf(err)})
		} else {
			sum.AddDigest(leaf, resume.Of(value))
		}
	}
	taken := sum.Digests()
	t.registry.pause()

	r, d := t.registry, t.digests
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaves == nil && len(r.names) == len(leaves) && (len(leaves) == 0 || &r.names[0] == &t.names[0]) {
		r.leaves = leaves
	}
	if d.leaves == nil {
		d.leaves = make(resume.Digests, resume.Leaves)
	}
	for leaf, wanted := range t.wanted {
		if wanted {
			d.leaves[leaf], d.left[leaf], d.seen[leaf], d.at[leaf] = taken[leaf], left[leaf], seen[leaf], t.changes
		}
	}
	d.folded = nil
	close(d.busy)
	d.busy = nil
	r.resumes.spend(time.Since(t.begun))
}

// resume lets the consumer go on with what it holds, if it says that in the header of the
// stream and there is a part of it that need not be sent. The stream then has a
// subscription before its initial request. It fails when the availability ends meanwhile.
func (s *session) resume(ctx context.Context, availability availability) error {
	values := metadata.ValueFromIncomingContext(ctx, wire.ResumeHeader)
	if len(values) != 1 {
		return nil
	}
	theirs, err := resume.ParseDigests(values[0])
	if err != nil {
		s.log.Debug("consumer cannot resume: what it says it holds cannot be read", "error", err)
		return nil
	}
	resumed := s.registry.resume(ctx, availability, s.ids, form{s.version, s.server.config.MaxMessage}, theirs)
	if resumed == nil {
		return availability.reason()
	}
	s.resumed = resumed
	for _, m := range resumed.withheld {
		s.withhold(m.name, m.why)
	}
	s.catalog.resumed.Add(1)
	s.catalog.spared.Add(uint64(max(0, resumed.spared)))
	s.regained()
	return nil
}

// leave closes the subscription of a consumer that has resumed.
func (s *session) leave() {
	if s.resumed != nil {
		s.resumed.Close()
	}
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

// start returns the subscription of the stream, which begins now unless the consumer has
// resumed.
func (s *session) start() *Subscription {
	if s.resumed == nil {
		s.log.Info("consumer subscribed")
		return s.registry.SubscribeAs(s.ids)
	}
	resumed := s.resumed
	s.resumed = &resumption{Subscription: resumed.Subscription} // the rest is not needed any more
	s.log.Info("consumer subscribed", "held", resumed.spared)
	if audit := s.server.audit.Load(); audit != nil {
		audit.Info("services held", "catalog", s.catalog.name, "consumer", s.consumer, "held", resumed.spared)
	}
	return resumed.Subscription
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
		if !withheld && s.resumed.has(service) {
			r.accepted(s.consumer, service)
		}
	}
}

// has reports whether the subscriber has the service of that name as it is now.
func (s *Subscription) has(name string) bool {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	_, pending := s.pending[name]
	return !pending && !s.isAhead(name) && s.registry.visible(s.view, name) != nil
}
