package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// tier is a process of the simulation: the origin, which has only a registry, a relay, or
// the last consumer, which has only a copy. It is used by one goroutine, but for the queue
// of its stream.
type tier struct {
	name       string
	simulation *simulation
	relay      bool

	// What ends with the process; nil while it does not run.
	registry *registry.Registry
	catalog  *source.Catalog
	replica  *replica
	end      func()
	serves   []context.CancelCauseFunc // end the streams of its consumers

	persist bool
	saved   *saved // the file; nil without one

	hung  time.Time // since when it is stopped; zero while it runs
	deaf  time.Time // until when it reads nothing, as it has much else to do after a stop
	from  *tier     // whom it subscribes to
	cut   bool      // there is no connection to that
	mute  time.Time // since when nothing comes through the link, either way; zero while it does
	retry time.Time // of the next attempt to open a stream
	tierStream
}

// saved is a catalog in a file.
type saved struct {
	services []packed.Service
	lastUp   time.Time
}

// tierStream is a subscription to another tier as the consumer has it. The zero value is none.
type tierStream struct {
	to    *tier
	close context.CancelCauseFunc
	queue *queue
}

// queue holds what is on its way from an owner to a consumer.
type queue struct {
	mu    sync.Mutex
	items []item
}

// item is a header, an event, or the end of the stream.
type item struct {
	at     time.Time
	header bool
	path   wire.OwnerPath
	event  wire.Event
	err    error
	lost   time.Time // with err: when the origin was
}

func (q *queue) put(i item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i.at = time.Now()
	q.items = append(q.items, i)
}

// take returns what was sent before a time.
func (q *queue) take(before time.Time) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.items) && !q.items[n].at.After(before) {
		n++
	}
	items := q.items[:n:n]
	q.items = q.items[n:]
	return items
}

// pump carries what a subscription says to the queue until either ends. Lost is since when the
// origin is lost, if that ends it.
func (q *queue) pump(ctx context.Context, s *registrytest.Listener, path wire.OwnerPath, lost *atomic.Pointer[time.Time]) {
	defer s.Close()
	for first := true; ; first = false {
		ev, err := s.NextEvent(ctx)
		if err != nil {
			end := item{err: err}
			if at := lost.Load(); at != nil { // ctx may have ended as well
				end.lost = *at
			}
			q.put(end)
			return
		}
		if first {
			q.put(item{header: true, path: path})
		}
		q.put(item{event: ev})
	}
}

// start starts the process.
func (t *tier) start() {
	t.stop(false)
	t.hung, t.deaf = time.Time{}, time.Time{}
	if t.from == nil {
		t.registry = registry.New()
		for _, s := range t.simulation.services {
			t.registry.UpdateEncoded([]*wire.EncodedService{s}, nil)
		}
		t.end = func() {}
		return
	}
	rules := catalog.Rules{Settle: time.Second}
	if !t.relay {
		rules.Retention = t.simulation.retention
		t.replica = newReplica(rules, t.simulation.shown)
		t.end = func() {}
	} else {
		t.startRelay(rules)
	}
	if t.saved != nil && t.persist {
		t.replica.change(func(now time.Time) {
			if t.replica.catalog.BeginRestore(t.saved.lastUp, now) {
				t.replica.catalog.RestoreMore(t.saved.services)
				t.replica.catalog.EndRestore(true)
			}
		})
	}
}

// startRelay starts what turns a copy into a registry.
func (t *tier) startRelay(rules catalog.Rules) {
	t.registry = registry.New()
	r := &driven{
		Source: &Source{turned: make(chan struct{}, 1), first: make(map[string]*wire.EncodedService), refused: newStreamRefusals()},
		begin:  make(chan struct{}), mutant: t.simulation.mutant,
	}
	t.catalog = source.NewCatalog(source.Config{
		Registry: t.registry, Logger: slog.New(slog.DiscardHandler), Sources: []source.Entry{{Name: "relay", Source: r, Lifetime: source.NoLifetime}},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = t.catalog.Run(ctx)
	}()
	<-r.begin
	t.replica = newReplica(rules, r.publish)
	t.replica.accept = r.accept
	t.end = func() {
		cancel()
		<-ended
	}
}

// stop ends the process: on purpose, or as kill -9 does.
func (t *tier) stop(gracefully bool) {
	if t.end == nil {
		return
	}
	if t.replica != nil {
		if gracefully {
			t.save()
		}
		t.lose(nil)
	}
	for _, end := range t.serves {
		end(errReset)
	}
	t.end()
	t.serves, t.end, t.registry, t.catalog, t.replica = nil, nil, nil, nil, nil
}

// save writes the file.
func (t *tier) save() {
	if !t.persist || t.replica == nil {
		return
	}
	if services, lastUp, ok := t.replica.catalog.Snapshot(time.Now()); ok {
		t.saved = &saved{services, lastUp}
	}
}

// runs reports whether the process does anything.
func (t *tier) runs() bool { return t.end != nil && t.hung.IsZero() }

// silence returns since when nothing comes from the other end; zero when something would.
func (t *tier) silence() time.Time {
	s := t.mute
	if other := t.to; other != nil && other.end != nil && !other.hung.IsZero() && (s.IsZero() || other.hung.Before(s)) {
		s = other.hung
	}
	return s
}

// open tries to open a stream.
func (t *tier) open(now time.Time) {
	other := t.from
	if t.cut || !t.mute.IsZero() || !other.runs() || other.registry == nil {
		t.retry = now.Add(step + t.simulation.backoff())
		t.replica.fail(errReset, now)
		return
	}
	t.replica.failure = nil
	t.replica.change(t.replica.catalog.OpenStream)
	ctx, cancel := context.WithCancelCause(context.Background())
	t.tierStream = tierStream{to: other, close: cancel, queue: new(queue)}
	other.serves = append(other.serves, cancel)
	var lost atomic.Pointer[time.Time]
	subscription := registrytest.ListenAs(other.registry, registry.Consumer{Stop: func(at time.Time) { lost.Store(&at) }})
	go t.queue.pump(ctx, subscription, other.registry.Path(), &lost)
}

// lose notes the end of the stream, if there is one; nil: nobody is left to note it.
func (t *tier) lose(err error) { t.loseSince(err, time.Now()) }

// loseSince is lose where the origin was lost before.
func (t *tier) loseSince(err error, since time.Time) {
	if t.to == nil {
		return
	}
	t.close(nil)
	t.tierStream = tierStream{}
	t.retry = time.Now().Add(step + t.simulation.backoff())
	if err != nil {
		t.replica.fail(err, since)
	}
}

// renew replaces the stream by another one on purpose. It reports whether it did.
func (t *tier) renew() bool {
	if !t.runs() || t.to == nil || !t.replica.catalog.IsComplete() {
		return false
	}
	t.lose(errRenewed)
	t.retry = time.Now()
	return true
}

var (
	errSilent  = errors.New("the owner is silent")
	errReset   = errors.New("connection reset")
	errRewired = errors.New("another owner is configured")
	errRenewed = errors.New("another stream takes its place")
)

// work does what the process has to do now, and reports whether it did anything.
func (t *tier) work(now time.Time) bool {
	if !t.runs() || t.replica == nil {
		return false
	}
	t.replica.advance(now)
	if t.to == nil {
		if now.Before(t.retry) {
			return false
		}
		t.open(now)
		return true
	}
	if now.Before(t.deaf) {
		return false
	}
	if since := t.silence(); !since.IsZero() {
		if now.Sub(since) < t.simulation.detect {
			return false
		}
		t.lose(errSilent)
		return true
	}
	items := t.queue.take(now.Add(-t.simulation.delay))
	for _, i := range items {
		switch {
		case !i.lost.IsZero():
			t.loseSince(i.err, i.lost)
			return true
		case i.err != nil:
			t.lose(i.err)
			return true
		case i.header:
			t.replica.change(func(time.Time) { t.replica.catalog.ExpectEndMarker() })
			if !t.follow(i.path) {
				return true
			}
		default:
			t.apply(i.event)
		}
	}
	return len(items) > 0
}

// follow takes the path by which services come, or loses the stream.
func (t *tier) follow(path wire.OwnerPath) bool {
	t.replica.path = path
	err := t.replica.accept(path)
	if err != nil {
		t.lose(err)
	}
	return err == nil
}

// apply has the replica take an event.
func (t *tier) apply(ev wire.Event) {
	t.replica.change(func(now time.Time) {
		if err := t.replica.catalog.ApplyEvent(ev, now); err != nil {
			t.simulation.wrongf("%s refuses an event: %v", t.name, err)
		}
	})
}

// replica is a catalog with the rules by which a mirror publishes it.
type replica struct {
	catalog   *catalog.Catalog
	publish   func(consumer.Changes)
	accept    func(wire.OwnerPath) error
	path      wire.OwnerPath
	failure   error
	outdated  bool // the failure was set since
	published catalog.Summary
}

func newReplica(rules catalog.Rules, publish func(consumer.Changes)) *replica {
	return &replica{catalog: catalog.New(rules), publish: publish, accept: func(wire.OwnerPath) error { return nil }}
}

func (r *replica) change(f func(now time.Time)) {
	f(time.Now())
	c := consumer.Changes{Services: r.catalog.TakeChanges()}
	c.Status.Summary, c.Status.Path = r.catalog.Summary(), r.path.Header()
	if c.Status.State != catalog.Synced {
		c.Status.Failure = r.failure
	}
	if len(c.Services) == 0 && c.Status.Summary == r.published && !r.outdated {
		return
	}
	r.published, r.outdated = c.Status.Summary, false
	r.publish(c)
}

func (r *replica) fail(err error, since time.Time) {
	r.failure, r.outdated = err, true
	r.change(func(now time.Time) { r.catalog.EndStream(since, now) })
}

func (r *replica) advance(now time.Time) {
	if at, ok := r.catalog.NextDeadline(); ok && !at.After(now) {
		r.change(r.catalog.AdvanceTo)
	}
}

// driven is a Source without a mirror: a replica takes its place.
type driven struct {
	*Source

	begin  chan struct{}
	mutant mutant
	away   bool // what was published last was not vouched for
}

// Run implements source.Source.
func (d *driven) Run(ctx context.Context, part source.Part) {
	d.part = part
	close(d.begin)
	<-ctx.Done()
}

// accept is that of the Source. A mutant is not asked when a stream is renewed.
func (d *driven) accept(path wire.OwnerPath) error {
	if d.mutant == trustsRenewals && !d.away && d.first == nil {
		return nil
	}
	return d.acceptPath(path)
}

// publish is that of the Source. A mutant is told that its owner is synced when that is not
// so.
func (d *driven) publish(c consumer.Changes) {
	s := &c.Status
	if d.mutant == staysAvailable && d.first == nil ||
		d.mutant == publishesEarly && s.State == catalog.Syncing ||
		d.mutant == trustsItsFile && s.Generation == 0 && s.Known {
		s.State, s.Failure, s.Stale = catalog.Synced, nil, 0
	}
	d.away = d.unvouchedReason(s) != nil
	d.publishMirror(c)
}
