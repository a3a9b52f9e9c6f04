package registry

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Registry is the catalog of an owner, with the policy that says who is told of what
// in it. It is safe for concurrent use.
//
// Any goroutine may change the catalog, and writers take turns. Whoever fills the catalog bounds it. What
// consumers cause is bounded here: refusals (see OnRefusal), digests (see below), and one earlier
// version for each slow subscriber. A registry has no log of changes and no queue for each
// subscriber, because it compares two versions instead.
//
// # Versions
//
// A registry has one version of the catalog at a time, which never changes. The next version
// shares all buckets but those in which something is different. A [Subscription] is the
// version that its subscriber was told last, and how far it has come on the way to a newer one.
// So subscribing, changes, another policy, resuming and reports are all the same work, which is to
// compare two versions. A slow subscriber keeps the version that it was told, and nothing for
// each change.
//
// # Who is told what
//
// With [Registry.SetPolicy], a registry sends each consumer what a policy lets its
// identities have, in the shape that is for them. For everyone else a hidden
// service does not exist, so a change that hides a service is a deletion. Changes of services, changes
// of the policy and what streams take are in one order. A stream never takes anything
// that the policy in force hides from its consumer; a response that it has taken
// before may still be on its way.
//
// Consumers to whom the same rules apply are a class. A version has one verdict on
// each service, with one encoding for each shape, and no copy of what a class sees.
// The audit log of a server has every service that a consumer is sent, and every service
// that is withdrawn from it.
//
// # Consumers that come back
//
// A consumer that says in the header of its request what it holds already is sent only
// what is different, and the end marker; see package resume. The header of the response answers which
// buckets these are, and the subscription begins with the others. Nothing is remembered of a
// consumer. The digest of a bucket is valid for as long as the bucket exists. At most a tenth of
// the time goes into digests; when that is used up, more services are sent.
type Registry struct {
	refusals standingRefusals
	hop      string // what the registry is called in a path; read-only

	writing sync.Mutex // held while another version is made; locked before mu
	newest  atomic.Pointer[catalogVersion]
	holds   int // calls of HoldChanges that have not been released; guarded by writing

	digesting digestAllowance

	mu      sync.Mutex                       // guards what follows, and every Subscription
	shown   atomic.Pointer[catalogVersion]   // what subscribers are told: the newest version, except during a HoldChanges; read without the lock as well
	classes map[consumerView]subscriptionSet // open subscriptions, by what they may be told
}

type subscriptionSet map[*Subscription]struct{}

// New returns an empty registry.
//
// Fill the registry before consumers can subscribe, because a consumer that gets an empty catalog
// drops the services that the owner published before.
func New() *Registry {
	r := &Registry{hop: rand.Text(), classes: make(map[consumerView]subscriptionSet)}
	first := &catalogVersion{}
	for i := range first.rows {
		first.rows[i] = &bucketRow{}
	}
	r.newest.Store(first)
	r.shown.Store(first)
	return r
}

// Set makes services the whole catalog, and reports whether that changed it. Subscribers are sent only
// the difference. Names must be unique: of two services with one name the last counts. The registry
// may keep the services, which must not be changed afterwards.
//
// Set fails with a [*federation.InvalidError] when a service is not valid (see
// [federation.Service.Validate]), and then changes nothing.
func (r *Registry) Set(services []*federation.Service) (changed bool, err error) {
	want := make(map[string]*wire.EncodedService, len(services))
	for _, s := range services {
		e, err := wire.NewEncoded(s)
		if err != nil {
			return false, err
		}
		want[e.Name()] = e
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	for e := range r.newest.Load().allEntries() {
		if name := e.service.Name(); want[name] == nil {
			want[name] = nil
		}
	}
	return r.applyWanted(want), nil
}

// UpdateEncoded changes a part of the catalog at once, and reports whether that changed it: it adds
// or replaces the services of changed, and removes those with the names of gone. A service that is
// equal to the one in the registry is no change, and neither is a name that the registry does not
// have. A name in both counts as changed; of two services with one name the last counts. The
// registry keeps no other copy. Subscribers are sent what is added, then what is changed, and then
// what is gone.
//
// UpdateEncoded takes time in proportion to its arguments and to the part of the catalog in the
// same buckets.
func (r *Registry) UpdateEncoded(changed []*wire.EncodedService, gone []string) bool {
	want := make(map[string]*wire.EncodedService, len(changed)+len(gone))
	for _, name := range gone {
		want[name] = nil
	}
	for _, s := range changed {
		want[s.Name()] = s
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	return r.applyWanted(want)
}

// applyWanted makes the version in which the services are as wanted, and reports whether one of
// them differs. A nil service is to be removed. The caller holds writing.
func (r *Registry) applyWanted(want map[string]*wire.EncodedService) (changed bool) {
	now := r.newest.Load()
	entries := make(map[string]*serviceEntry, len(want))
	for name, s := range want {
		before := now.findEntry(name)
		switch {
		case before == nil && s == nil, before != nil && before.service == s:
			continue
		case s == nil:
			entries[name] = nil
		default:
			entries[name] = &serviceEntry{s, now.policy.Judge(s)}
		}
		// An equal service is replaced, and nobody is told.
		changed = changed || before == nil || s == nil || !before.service.Equal(s)
	}
	if len(entries) == 0 {
		return false
	}
	r.publishVersion(now.withEntries(entries))
	for name, e := range entries {
		if e == nil {
			r.refusals.forgetService(name)
		}
	}
	return changed
}

// publishVersion makes next the newest version. The caller holds writing.
func (r *Registry) publishVersion(next *catalogVersion) {
	r.mu.Lock() // NoteAnswer looks at it
	r.newest.Store(next)
	r.mu.Unlock()
	if r.holds == 0 {
		r.showVersion(next)
	}
}

// showVersion lets the subscribers have a version. It compares many services, and does that without
// mu. The caller holds writing.
func (r *Registry) showVersion(next *catalogVersion) {
	before := r.shown.Load()
	kinds := byKind(next.pairsSince(before))
	differences := make(map[viewChange][]entryPair)
	difference := func(p viewChange) []entryPair {
		of, known := differences[p]
		if !known {
			of = p.differingOfKinds(kinds)
			differences[p] = of
		}
		return of
	}
	var views map[*Subscription]consumerView
	if before.policy != next.policy {
		views = r.subscriberViews(next.policy)
		for s, to := range views {
			difference(viewChange{s.view, to})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown.Store(next)
	if next.cuts != before.cuts {
		for _, class := range r.classes {
			for s := range class {
				s.endUnavailable(next.lost)
			}
		}
		clear(r.classes)
		return
	}
	now := time.Now()
	classes := r.classes
	if views != nil {
		r.classes = make(map[consumerView]subscriptionSet)
	}
	for v, class := range classes {
		var differs []entryPair
		if views == nil {
			if differs = difference(viewChange{v, v}); len(differs) == 0 && next.incomplete == before.incomplete {
				continue
			}
		}
		for s := range class {
			if views != nil {
				to, known := views[s]
				if !known { // it has come since
					to = viewOf(next.policy, s.ids)
				}
				r.addSubscription(s, to)
				differs = difference(viewChange{v, to})
			}
			s.followVersion(before, v, next, differs, now)
		}
	}
}

// subscriberViews returns what a policy lets each subscriber see. It evaluates the policy without
// mu, because a consumer may have many identities and a policy many patterns.
func (r *Registry) subscriberViews(p *policy.Policy) map[*Subscription]consumerView {
	views := make(map[*Subscription]consumerView)
	r.mu.Lock()
	for _, class := range r.classes {
		for s := range class {
			views[s] = consumerView{}
		}
	}
	r.mu.Unlock()
	for s := range views {
		views[s] = viewOf(p, s.ids)
	}
	return views
}

// addSubscription adds the subscription to those with that view. The caller holds mu.
func (r *Registry) addSubscription(s *Subscription, v consumerView) {
	if r.classes[v] == nil {
		r.classes[v] = make(subscriptionSet)
	}
	r.classes[v][s] = struct{}{}
	s.view = v
}

// removeSubscription removes the subscription, if it is open. The caller holds mu.
func (r *Registry) removeSubscription(s *Subscription) {
	delete(r.classes[s.view], s)
	if len(r.classes[s.view]) == 0 {
		delete(r.classes, s.view)
	}
}

// SetPolicy makes p decide which services each consumer is sent. A nil policy gives everything to
// everyone. SetPolicy may be called at any time. Open subscriptions are sent the difference: first
// what appears for them, then what has another shape, and then what is gone. Once SetPolicy has
// returned, no stream takes anything that p hides from its consumer.
//
// SetPolicy judges every service. This delays changes of services, but not the streams. Until every
// service is judged, the previous policy is in force for all.
func (r *Registry) SetPolicy(p *policy.Policy) {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.publishVersion(r.newest.Load().judgedBy(p))
}

// ErrUnavailable ends the streams of a registry that is not available, or whose path has changed.
// The error does not have the reason: the reason names the sources of the owner, with their paths
// and addresses, and consumers belong to others.
var ErrUnavailable = status.Error(codes.Unavailable, "the catalog is not available just now; the owner's status page and log say why")

// SetUnavailable sets why the catalog cannot be sent as a whole just now, or with "" that it can
// be. Lost is since when the origin of the services has been lost, if that is the reason. A new
// registry is available.
//
// While there is a reason, every stream of the registry ends with the code Unavailable, and
// consumers come back. Stats has the reason, but consumers do not get it. The content of the
// registry may change meanwhile, and no consumer is sent that. Streams end even if the reason is
// gone at once.
//
// A stream that ends in this way has sent a part of the catalog without its end marker, or all of
// the catalog as it was before.
func (r *Registry) SetUnavailable(reason string, lost time.Time) {
	r.writing.Lock()
	defer r.writing.Unlock()
	now := r.newest.Load()
	if now.unavailable == reason && now.lost.Equal(lost) {
		return
	}
	next := now.mutableCopy()
	if next.unavailable, next.lost = reason, lost; reason != "" {
		next.cuts++
	}
	r.publishVersion(next)
}

// SetComplete sets whether the registry has the whole catalog. A new registry is complete.
//
// While it is not complete, its services are sent at once and the end marker waits, so that nobody
// concludes anything from what is missing. A subscriber that does not know end markers has no
// stream meanwhile: see [Consumer].
func (r *Registry) SetComplete(complete bool) {
	r.writing.Lock()
	defer r.writing.Unlock()
	now := r.newest.Load()
	if now.incomplete == !complete {
		return
	}
	next := now.mutableCopy()
	next.incomplete = !complete
	r.publishVersion(next)
}

// IsAvailable reports whether the catalog can be sent: SetUnavailable has set no reason.
func (r *Registry) IsAvailable() bool { return r.newest.Load().unavailable == "" }

// HoldChanges keeps all further changes of the catalog and its policy from subscribers until the
// caller calls release, once. Subscribers stay with the version of before, and are then sent the
// difference. So an edit that changes both catalog and policy is never sent in part.
func (r *Registry) HoldChanges() (release func()) {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.holds++
	return func() {
		r.writing.Lock()
		defer r.writing.Unlock()
		if r.holds--; r.holds == 0 && r.shown.Load() != r.newest.Load() {
			r.showVersion(r.newest.Load())
		}
	}
}

// Lookup returns the service of that name, whatever the policy, or nil.
func (r *Registry) Lookup(name string) *wire.EncodedService {
	return r.newest.Load().findEntry(name).serviceIn(consumerView{whole: true})
}

// Upsert adds the service, or replaces the one of the same name. It reports whether that changes
// the catalog: an equal service does not. The registry may keep s, which must not be changed
// afterwards.
//
// Upsert fails with a [*federation.InvalidError] when s is not valid (see
// [federation.Service.Validate]), and then changes nothing.
func (r *Registry) Upsert(s *federation.Service) (bool, error) {
	e, err := wire.NewEncoded(s)
	if err != nil {
		return false, err
	}
	return r.UpdateEncoded([]*wire.EncodedService{e}, nil), nil
}

// Delete removes the service of that name, and reports whether there was one.
func (r *Registry) Delete(name string) bool {
	return r.UpdateEncoded(nil, []string{name})
}
