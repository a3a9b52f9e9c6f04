package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// catalogPart is the Part of one source: the services of the source, by name, and the state of its
// origin. The source changes it, and the catalog hides and lapses its items, all under the mutex of
// the catalog. The source bounds the number of items; recentlyGone has at most what goes within
// withdrawWindow, or a bit more.
type catalogPart struct {
	// read-only after it was made
	Entry
	catalog *Catalog
	level   int // the place of the source in the list

	// guarded by the mutex of catalog
	complete  bool
	away      error // why the origin cannot be asked; nil when it can
	awaySince time.Time
	lapsed    bool // whether nothing of the part is published because its lifetime is over
	refused   map[string]int
	path      wire.OwnerPath // the owners through which the services have come

	items      map[string]*partItem // services by name
	hidden     int                  // how many items are hidden
	hiddenNews map[string]struct{}  // names of services for which a hiddenNotice is due

	// paused has the names of services that stay although the origin does not have them, and
	// since when. All of them are items.
	paused       map[string]time.Time
	recentlyGone map[string]recentWithdrawal // services that went within withdrawWindow, or a bit before
	pruned       time.Time                   // when older services were removed from recentlyGone
}

func newPart(c *Catalog, level int, e Entry) *catalogPart {
	return &catalogPart{
		Entry: e, catalog: c, level: level,
		items: make(map[string]*partItem), hiddenNews: make(map[string]struct{}), paused: make(map[string]time.Time), recentlyGone: make(map[string]recentWithdrawal),
	}
}

// runSource runs the source until ctx ends.
func (p *catalogPart) runSource(ctx context.Context) {
	if p.Source.Run(ctx, p); ctx.Err() == nil {
		p.SetAway(errors.New("the source has ended by itself"))
	}
}

// Replace implements Part.
func (p *catalogPart) Replace(services []*wire.EncodedService) {
	c := p.catalog
	c.mu.Lock()
	defer c.unlockAndLog()
	has := make(map[string]struct{}, len(services))
	for _, s := range services {
		has[s.Name()] = struct{}{}
	}
	var gone []string
	for name := range p.items {
		if _, stays := has[name]; !stays {
			gone = append(gone, name)
		}
	}
	first := !p.complete
	if first {
		p.complete, p.awaySince = true, time.Now() // the lifetime counts from now for these services
	}
	changed, going := p.pauseWithdrawals(services, gone)
	p.applyChanges(changed, going, first)
	if first {
		c.updateAvailability()
		c.wakeRun()
	}
}

// Update implements Part.
func (p *catalogPart) Update(changed []*wire.EncodedService, gone []string) {
	c := p.catalog
	c.mu.Lock()
	defer c.unlockAndLog()
	changed, going := p.pauseWithdrawals(changed, gone)
	p.applyChanges(changed, going, false)
}

// SetAway implements Part.
func (p *catalogPart) SetAway(reason error) {
	c := p.catalog
	c.mu.Lock()
	defer c.unlockAndLog()
	before := p.away
	if reason == nil && before == nil {
		return
	}
	p.away = reason
	lost := time.Now()
	if reported, ok := errors.AsType[ReportedError](reason); ok && !reported.Lost.IsZero() {
		lost = reported.Lost
	}
	if before == nil || lost.Before(p.awaySince) {
		p.awaySince = lost
	}
	switch {
	case before != nil && reason != nil:
	case before == nil:
		if _, reported := errors.AsType[ReportedError](reason); !reported {
			p.logLater(func(logger *slog.Logger) { logger.Warn("source is away; its published services stay", "error", reason) })
		}
	default:
		if _, reported := errors.AsType[ReportedError](before); !reported {
			after := time.Since(p.awaySince).Round(time.Second)
			p.logLater(func(logger *slog.Logger) { logger.Info("source is back", "after", after) })
		}
	}
	c.updateAvailability()
	c.wakeRun()
}

// SetPath implements Part.
func (p *catalogPart) SetPath(path wire.OwnerPath) error {
	c := p.catalog
	c.mu.Lock()
	defer c.unlockAndLog()
	if err := c.registry.CheckPath(path); err != nil {
		return err
	}
	p.path = slices.Clone(path)
	// Consumers are sent the path of the first source that has one, for all services. With two relays, a
	// loop through the second would not be found, so the list has one relay at most.
	for _, p := range c.parts {
		if path = p.path; len(path) > 0 {
			break
		}
	}
	return c.registry.SetPath(path)
}

// mayClaim reports whether the source may come to have the name or the fqdn of a service.
func (p *catalogPart) mayClaim(s *wire.EncodedService) bool {
	source, ok := p.Source.(NameClaimer)
	if !ok {
		return true
	}
	fqdn, err := federation.ParseFQDN(s.FQDN())
	return err != nil || source.MayClaim(s.Name(), fqdn)
}

// SetRefused implements Part.
func (p *catalogPart) SetRefused(entries map[string]int) {
	p.catalog.mu.Lock()
	defer p.catalog.mu.Unlock()
	p.refused = maps.Clone(entries)
	maps.DeleteFunc(p.refused, func(_ string, n int) bool { return n == 0 }) // else the condition would stand for ever
}

// sourceLogger returns the logger for lines about the source.
func (p *catalogPart) sourceLogger() *slog.Logger { return p.catalog.logger.With("source", p.Name) }

// logLater adds a log line that is written without the lock.
func (p *catalogPart) logLater(line func(*slog.Logger)) {
	logger := p.sourceLogger()
	p.catalog.lines = append(p.catalog.lines, func() { line(logger) })
}

// lifetimeEnd returns when the lifetime of a source that is away ends.
func (p *catalogPart) lifetimeEnd() time.Time { return p.awaySince.Add(max(p.Lifetime, 0)) }

// overdueReason returns a clause, to follow the name of the source, which says that its lifetime is
// over.
func (p *catalogPart) overdueReason() string {
	if p.Lifetime < 0 {
		return "is away"
	}
	return fmt.Sprintf("has been away for more than %v", p.Lifetime)
}

// isOverdue reports whether the source has been away for longer than its lifetime. A source that
// was never complete has published nothing that could be too old.
func (p *catalogPart) isOverdue(now time.Time) bool {
	return p.away != nil && p.Lifetime != 0 && (p.complete || p.Lifetime < 0) && !now.Before(p.lifetimeEnd())
}

// appendNotices returns words with the notices of the part appended.
func (p *catalogPart) appendNotices(words []hiddenNotice) []hiddenNotice {
	if len(p.hiddenNews) == 0 {
		return words
	}
	logger := p.sourceLogger()
	for _, name := range slices.Sorted(maps.Keys(p.hiddenNews)) {
		w := hiddenNotice{source: p.Source, logger: logger, service: name}
		if it := p.items[name]; it != nil {
			w.by = it.hiddenBy
		}
		words = append(words, w)
	}
	p.hiddenNews = make(map[string]struct{}) // a map never gives memory back
	return words
}

// forwardRefusal passes a consumer's refusal to the source that publishes the service.
func (c *Catalog) forwardRefusal(r registry.Refusal) {
	if l, ok := c.publishingSource(r.Service).(OutcomeListener); ok {
		l.RefusedBy(r)
	}
}

// publishingSource returns the source that publishes the service of that name, or nil.
func (c *Catalog) publishingSource(name string) Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it := c.publishedService(name); it != nil {
		return it.part.Source
	}
	return nil
}
