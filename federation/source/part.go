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
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// part implements Part for one source of a catalog.
type part struct {
	// read-only after it was made
	Entry
	catalog *Catalog
	level   int // the place in the list

	// guarded by the mutex of catalog
	complete bool
	away     error // why the origin cannot be asked; nil when it can
	since    time.Time
	lapsed   bool // whether nothing of it is published because its lifetime is over
	refused  map[string]int
	path     wire.OwnerPath // through which the services have come

	items  map[string]*item    // what it holds, by name
	hidden int                 // items that are
	news   map[string]struct{} // names of services that are hidden otherwise than was told

	// held has the names of services that stay although the origin does not have them, and
	// since when. All of them are items.
	held   map[string]time.Time
	recent map[string]departure // what went in withdrawWindow, or a bit before
	pruned time.Time            // when what is older was taken out of it
}

func newPart(c *Catalog, level int, e Entry) *part {
	return &part{
		Entry: e, catalog: c, level: level,
		items: make(map[string]*item), news: make(map[string]struct{}), held: make(map[string]time.Time), recent: make(map[string]departure),
	}
}

// run runs the source until ctx ends.
func (p *part) run(ctx context.Context) {
	if p.Source.Run(ctx, p); ctx.Err() == nil {
		p.Away(errors.New("the source has ended by itself"))
	}
}

// Replace implements Part.
func (p *part) Replace(services []*wire.EncodedService) {
	c := p.catalog
	c.mu.Lock()
	defer c.unlock()
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
		p.complete, p.since = true, time.Now() // its lifetime counts for what it has, from now
	}
	changed, going := p.hold(services, gone)
	p.apply(changed, going, first)
	if first {
		c.judge()
		c.rouse()
	}
}

// Update implements Part.
func (p *part) Update(changed []*wire.EncodedService, gone []string) {
	c := p.catalog
	c.mu.Lock()
	defer c.unlock()
	changed, going := p.hold(changed, gone)
	p.apply(changed, going, false)
}

// Away implements Part.
func (p *part) Away(reason error) {
	c := p.catalog
	c.mu.Lock()
	defer c.unlock()
	before := p.away
	if reason == nil && before == nil {
		return
	}
	p.away = reason
	lost := time.Now()
	if reported, ok := errors.AsType[ReportedError](reason); ok && !reported.Lost.IsZero() {
		lost = reported.Lost
	}
	if before == nil || lost.Before(p.since) {
		p.since = lost
	}
	switch {
	case before != nil && reason != nil:
	case before == nil:
		if _, reported := errors.AsType[ReportedError](reason); !reported {
			p.log(func(logger *slog.Logger) { logger.Warn("source is away; its published services stay", "error", reason) })
		}
	default:
		if _, reported := errors.AsType[ReportedError](before); !reported {
			after := time.Since(p.since).Round(time.Second)
			p.log(func(logger *slog.Logger) { logger.Info("source is back", "after", after) })
		}
	}
	c.judge()
	c.rouse()
}

// Through implements Part.
func (p *part) Through(path wire.OwnerPath) error {
	c := p.catalog
	c.mu.Lock()
	defer c.unlock()
	if err := c.registry.CheckPath(path); err != nil {
		return err
	}
	p.path = slices.Clone(path)
	// The path of the first source that has one is told for all services: with two, a loop through
	// the second would not be found, so whoever makes the list has one relay in it.
	for _, p := range c.parts {
		if path = p.path; len(path) > 0 {
			break
		}
	}
	return c.registry.SetPath(path)
}

// mayClaim reports whether the source may come to have the name or the fqdn of a service.
func (p *part) mayClaim(s *wire.EncodedService) bool {
	source, ok := p.Source.(Claimer)
	if !ok {
		return true
	}
	fqdn, err := federation.ParseFQDN(s.FQDN())
	return err != nil || source.MayClaim(s.Name(), fqdn)
}

// Refused implements Part.
func (p *part) Refused(entries map[string]int) {
	p.catalog.mu.Lock()
	defer p.catalog.mu.Unlock()
	p.refused = maps.Clone(entries)
	maps.DeleteFunc(p.refused, func(_ string, n int) bool { return n == 0 }) // else the condition would stand for ever
}

// logger returns the logger for lines about the source.
func (p *part) logger() *slog.Logger { return p.catalog.logger.With("source", p.Name) }

// log has a line written without the lock.
func (p *part) log(line func(*slog.Logger)) {
	logger := p.logger()
	p.catalog.lines = append(p.catalog.lines, func() { line(logger) })
}

// deadline returns when the lifetime of a source that is away ends.
func (p *part) deadline() time.Time { return p.since.Add(max(p.Lifetime, 0)) }

// overdue says, after the name of the source, that its lifetime is over.
func (p *part) overdue() string {
	if p.Lifetime < 0 {
		return "is away"
	}
	return fmt.Sprintf("has been away for more than %v", p.Lifetime)
}

// isOverdue reports whether the source has been away for longer than its lifetime. One that was
// never complete has published nothing that could be too old.
func (p *part) isOverdue(now time.Time) bool {
	return p.away != nil && p.Lifetime != 0 && (p.complete || p.Lifetime < 0) && !now.Before(p.deadline())
}

// words appends what there is to tell of the services of the part.
func (p *part) words(words []word) []word {
	if len(p.news) == 0 {
		return words
	}
	logger := p.logger()
	for _, name := range slices.Sorted(maps.Keys(p.news)) {
		w := word{source: p.Source, logger: logger, service: name}
		if it := p.items[name]; it != nil {
			w.by = it.by
		}
		words = append(words, w)
	}
	p.news = make(map[string]struct{}) // a map never gives memory back
	return words
}

// refused passes on what a consumer says to the source that publishes the service.
func (c *Catalog) refused(r registry.Refusal) {
	if l, ok := c.publisher(r.Service).(Listener); ok {
		l.RefusedBy(r)
	}
}

// publisher returns the source that publishes the service of that name, or nil.
func (c *Catalog) publisher(name string) Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it := c.lookup(name); it != nil {
		return it.part.Source
	}
	return nil
}
