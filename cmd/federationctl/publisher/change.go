package publisher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/ownerconfig"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// catalog is what is published under one server name.
type catalog struct {
	registry *owner.Registry
	sources  *source.Catalog
	known    map[string]source.Source // that Set was given last, by key
	stop     context.CancelFunc       // ends its sources; nil before they run
}

// plan is a configuration with everything opened that it needs and that does not run
// yet. Nothing has changed so far.
type plan struct {
	config  ownerconfig.Config
	allowed *allowance                // nil when the file stays the same
	entries map[string][]source.Entry // by server name
}

// prepare opens what a configuration needs beside what runs already.
func (p *Publisher) prepare(ctx context.Context, c ownerconfig.Config) (*plan, error) {
	next := &plan{config: c, entries: make(map[string][]source.Entry)}
	policy := wire.Policy{AllowAddresses: c.AllowAddresses}
	for _, of := range c.Catalogs {
		current := p.catalogs[of.ServerName]
		entries := make([]source.Entry, 0, len(of.Sources))
		for _, s := range of.Sources {
			entry := source.Entry{Key: fmt.Sprintf("%s %v", s.Key(), c.AllowAddresses), Name: s.Name, Lifetime: s.Lifetime}
			if current != nil {
				entry.Source = current.known[entry.Key]
			}
			if entry.Source == nil {
				var err error
				if entry.Source, err = p.openSource(ctx, s, policy); err != nil {
					return nil, Error{"catalogs", err}
				}
			}
			entries = append(entries, entry)
		}
		next.entries[of.ServerName] = entries
	}
	if p.allowed == nil || c.Allow.File != p.config.Allow.File {
		var err error
		if next.allowed, err = openAllowance(ctx, c.Allow.File, p.logger); err != nil {
			return nil, Error{"allow.file", err}
		}
	}
	return next, nil
}

// adopt puts a plan into effect, but for what the server has to be told.
func (p *Publisher) adopt(ctx context.Context, next *plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config, p.applied = next.config, time.Now()
	for name, entries := range next.entries {
		c := p.catalogs[name]
		if c == nil {
			registry := owner.NewRegistry()
			c = &catalog{registry: registry, sources: source.NewCatalog(source.Config{Registry: registry, Logger: p.logger, Name: name})}
			p.catalogs[name] = c
		}
		c.known = make(map[string]source.Source, len(entries))
		for _, e := range entries {
			c.known[e.Key] = e.Source
		}
		c.sources.Set(entries)
		if p.started && c.stop == nil {
			p.run(ctx, c)
		}
	}
}

// run runs the sources of a catalog.
func (p *Publisher) run(ctx context.Context, c *catalog) {
	ctx, c.stop = context.WithCancel(ctx)
	p.running.Go(func() { _ = c.sources.Run(ctx) })
}

// registries returns the registries of the configuration, by server name.
func (p *Publisher) registries() map[string]*owner.Registry {
	registries := make(map[string]*owner.Registry, len(p.catalogs))
	for name, c := range p.catalogs {
		registries[name] = c.registry
	}
	return registries
}

// prepareChange returns the function that applies a new version of the configuration
// file.
func (p *Publisher) prepareChange(ctx context.Context, c ownerconfig.Config) (func(), error) {
	next, err := p.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	return func() { p.change(ctx, next) }, nil
}

// change applies a plan while the server runs. Streams that stay allowed, of catalogs
// that stay, go on.
func (p *Publisher) change(ctx context.Context, next *plan) {
	p.Ready() // what is new must not make an owner unready that was ready
	waiting := p.keep(&next.config)
	p.allow(next.config.Allow, next.allowed) // first: it takes effect where it takes something away
	p.adopt(ctx, next)
	if next.allowed != nil {
		p.follow(ctx, next.allowed)
	}
	p.mu.Lock()
	p.restart = waiting
	var gone []*catalog
	for name, c := range p.catalogs {
		if _, stays := next.entries[name]; !stays {
			gone = append(gone, c)
			delete(p.catalogs, name)
		}
	}
	p.mu.Unlock()
	p.server.SetCatalogs(p.registries())
	for _, c := range gone {
		c.stop()
	}
	sources := 0
	for _, entries := range next.entries {
		sources += len(entries)
	}
	p.logger.Info("configuration applied", "file", p.file, "catalogs", len(next.entries),
		"sources", sources)
	if len(waiting) > 0 {
		p.logger.Warn("configuration has new values that wait for a restart; the others are in effect", "file", p.file, "keys", strings.Join(waiting, ", "))
	}
}

// keep sets the values of a new configuration that a running owner cannot take to
// those in effect, and returns the keys of those that differ.
func (p *Publisher) keep(c *ownerconfig.Config) []string {
	differ := map[string]bool{
		"listen":         c.Listen != p.config.Listen,
		"metrics":        c.Metrics != p.config.Metrics,
		"window":         c.Window != p.config.Window,
		"identity.files": c.Identity != p.config.Identity,
	}
	c.Listen, c.Metrics, c.Window, c.Identity = p.config.Listen, p.config.Metrics, p.config.Window, p.config.Identity
	maps.DeleteFunc(differ, func(_ string, differs bool) bool { return !differs })
	return slices.Sorted(maps.Keys(differ))
}
