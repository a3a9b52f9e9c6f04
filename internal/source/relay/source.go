// Package relay is the source of another owner: its catalog is the part, as it is.
//
// The part is published exactly while a stream of the owner vouches for its whole catalog, or has
// done so until a moment ago ([catalog.Grace]), because a stream that replaces another one is
// no loss. After that the source is away, before anything else is published. It is back once the owner
// has sent its catalog again, and the relay has published that. With [source.NoLifetime], the
// catalog is unavailable meanwhile, and consumers learn since when the origin is lost. So their own
// retention counts from there, through any number of relays, and never adds up.
//
// The relay keeps what it knows of an owner that is away, so that the owner need not send it again, and
// publishes none of it. The same holds for a catalog from the file of the subscription, which outlives
// the process.
//
// An owner that does not mark the end of its catalog, and comes back without most of its
// services, may still be reading them; package catalog says when that is so. The source is
// away until the owner has sent them again, or an hour has passed since the owner was lost.
//
// Services stay as they came: package consumer checks and packs what the owner sends,
// and [wire.EncodedOf] makes messages for consumers out of the same octets.
package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Config says which owner is relayed, and what of it.
type Config struct {
	Subscription consumer.Subscription

	Name string // of the owner, in logs and in Subscription.File; default: the addresses

	Settle     time.Duration      // see catalog.Rules, as the next one
	MaxCatalog int64              // octets; 0 for no limit
	Zones      []federation.FQDN  // that the owner may publish in; none for everywhere
	Policy     wire.AddressPolicy // of the consumers, as far as this owner knows it

	Logger *slog.Logger // nil: nothing is logged
}

// pauseTime is how long the source waits, from the loss of the owner, for services that the
// owner has come back without and that it has not withdrawn.
const pauseTime = time.Hour

// errPaused is why a complete catalog may not be published.
var errPaused = errors.New("the owner has come back without most of its services")

// errSyncing is why the source is away while a stream is open.
var errSyncing = errors.New("the owner has not yet sent its whole catalog")

// Source is the catalog of another owner, and implements [source.Source]. The mirror keeps the
// services, and the part publishes them; the source itself keeps services only until the first
// Replace. Publish of the mirror changes it, under mu. The limits are those of the mirror's rules:
// it queues no changes for an owner that is away.
type Source struct {
	// read-only after New
	mirror *consumer.Mirror
	rules  catalog.Rules
	turned chan struct{} // has room for one value: paused has changed

	// read-only after Run has begun
	part source.Part

	mu      sync.Mutex                      // guards the fields below; taken after that of mirror
	first   map[string]*wire.EncodedService // what is known before the first Replace; nil after it
	paused  bool                            // whether services wait for pauseTime
	refused streamRefusals                  // by the owner's services
}

var _ source.Source = (*Source)(nil)

// New returns a source that is not connected yet, or an error that names a field of the
// configuration.
func New(c Config) (*Source, error) {
	s := &Source{
		turned: make(chan struct{}, 1), first: make(map[string]*wire.EncodedService), refused: newStreamRefusals(),
		rules: catalog.Rules{
			Retention: catalog.Forever, Settle: c.Settle, MaxCatalog: c.MaxCatalog,
			Admit: func(s *federation.Service) *federation.InvalidError {
				return cmp.Or(wire.CheckZones(c.Zones, s), c.Policy.Check(s))
			},
		},
	}
	var err error
	s.mirror, err = consumer.New(consumer.Config{
		Subscription: c.Subscription, Rules: s.rules, Name: c.Name,
		Publish: s.publishMirror, Accept: s.acceptPath, Observer: refusalObserver{source: s}, Logger: c.Logger,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Status returns the state of the subscription.
func (s *Source) Status() consumer.Status { return s.mirror.Status() }

// Retry tries at once to reach the owner if there is no stream with it.
func (s *Source) Retry() { s.mirror.Retry() }

// Run implements [source.Source].
func (s *Source) Run(ctx context.Context, part source.Part) {
	s.part = part
	var waiting sync.WaitGroup
	defer waiting.Wait()
	waiting.Go(func() { s.expirePaused(ctx) })
	_ = s.mirror.Run(ctx) // it returns nil when ctx ends, and not before
}

// expirePaused removes, when their time is over, services that the owner has come back without,
// until ctx ends.
func (s *Source) expirePaused(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.turned:
		}
		s.mu.Lock()
		rules := s.rules
		if s.paused {
			rules.Retention = pauseTime
		}
		s.mu.Unlock()
		s.mirror.Configure(rules)
	}
}

// acceptPath returns why services of that path are not wanted: they have come through this catalog
// already, and two relays that feed each other would keep them alive for ever.
func (s *Source) acceptPath(path wire.OwnerPath) error { return s.part.SetPath(path) }

// publishMirror passes the changes of the mirror to the part.
func (s *Source) publishMirror(c consumer.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := s.unvouchedReason(&c.Status)
	if reason != nil {
		s.part.SetAway(source.ReportedError{Reason: reason, Lost: c.Status.Lost}) // before what follows, which is not for consumers yet
	}
	s.refused.forgetEarlier(c.Status.Generation)
	s.applyServices(c.Services)
	if reason == nil {
		s.publishVouched()
	}
	s.part.SetRefused(s.refused.counts)
	if paused := c.Status.Paused > 0; paused != s.paused {
		s.paused = paused
		wake.Up(s.turned)
	}
}

// unvouchedReason returns why no stream vouches for the whole catalog, or nil. A stream counts for
// the grace after its loss.
func (s *Source) unvouchedReason(status *consumer.Status) error {
	switch {
	case status.State == catalog.Synced && status.Stale > 0:
		return errPaused
	case status.State == catalog.Synced:
		return nil
	case status.Failure != nil:
		return status.Failure
	}
	return errSyncing
}

// publishVouched publishes what is known, if that was not published before.
func (s *Source) publishVouched() {
	s.part.SetAway(nil) // before a first Replace nothing is available
	if s.first != nil {
		services := slices.SortedFunc(maps.Values(s.first), func(a, b *wire.EncodedService) int { return cmp.Compare(a.Name(), b.Name()) })
		s.first = nil
		s.part.Replace(services)
	}
}

// applyServices applies the changes of the catalog to the part, or to first before the first
// Replace.
func (s *Source) applyServices(changes []catalog.Change) {
	last := make(map[string]*wire.EncodedService, len(changes)) // nil for what is gone
	for i := range changes {
		change := &changes[i]
		s.refused.forgetService(change.Name)
		switch change.Kind() {
		case catalog.Gone:
			last[change.Name] = nil
		case catalog.Offered:
			last[change.Name] = wire.EncodedOf(change.Packed)
		}
	}
	if s.first != nil {
		for name, service := range last {
			if service != nil {
				s.first[name] = service
			} else {
				delete(s.first, name)
			}
		}
		return
	}
	var changed []*wire.EncodedService
	var gone []string
	for name, service := range last {
		if service != nil {
			changed = append(changed, service)
		} else {
			gone = append(gone, name)
		}
	}
	if len(last) > 0 {
		s.part.Update(changed, gone)
	}
}
