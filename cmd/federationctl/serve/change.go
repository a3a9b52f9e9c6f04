package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// catalog is what is published under one server name.
type catalog struct {
	registry *registry.Registry
	sources  *source.Catalog
	exports  config.Catalog           // whose exports are in effect
	known    map[string]source.Source // that Set was given last, by key
	stop     context.CancelFunc       // ends its sources; nil before they run

	registered []*registered // of known, in the order of the configuration
	running    []*registered // these, and those that have left it and run on until the next list is complete
}

// plan is a configuration with everything opened that it needs and that does not run
// yet. Nothing has changed so far.
type plan struct {
	config  config.Config
	allowed *allowance                // nil when the file stays the same
	entries map[string][]source.Entry // by server name
	anew    map[string]bool           // the catalogs that are replaced although they stay, by server name

	opened  []*registered            // registrations that are new
	rules   map[*registered]*ruleset // of registrations that stay, and have another file of rules
	waiting []string                 // keys whose new values wait for a restart
}

// prepare opens what a configuration needs beside what runs already.
func (p *Publisher) prepare(ctx context.Context, c config.Config) (*plan, error) {
	if p.pending != nil {
		p.discard(p.pending) // it was not applied, as the file had changed again
	}
	next := &plan{
		config: c, entries: make(map[string][]source.Entry), anew: make(map[string]bool),
		rules: make(map[*registered]*ruleset),
	}
	if p.allowed == nil || c.Allow.File != p.config.Allow.File {
		var err error
		if next.allowed, err = openAllowance(ctx, c.Allow.File, p.logger, p.edits); err != nil {
			return nil, Error{"allow.file", err}
		}
	}
	widened := p.widens(c.Allow, next.allowed)
	for i := range c.Catalogs {
		if err := p.prepareCatalog(ctx, next, i, widened); err != nil {
			p.discard(next)
			return nil, err
		}
	}
	p.pending = next
	return next, nil
}

// prepareCatalog opens what a catalog of the plan needs.
func (p *Publisher) prepareCatalog(ctx context.Context, next *plan, i int, widened bool) error {
	of, policy := next.config.Catalogs[i], wire.Policy{AllowAddresses: next.config.AllowAddresses}
	current := p.catalogs[of.ServerName]
	entries, waiting := p.entries(current, of, policy)
	if current != nil && current.mayReveal(of, entries, widened) {
		next.anew[of.ServerName], current = true, nil
		entries, waiting = p.entries(current, of, policy)
	}
	for _, j := range waiting {
		next.waiting = append(next.waiting, keyOf(i, j, of.Sources[j]))
	}
	for j, s := range of.Sources {
		entry := &entries[j]
		if entry.Source == nil && current != nil {
			entry.Source = current.known[entry.Key]
		}
		stays := entry.Source != nil
		if !stays {
			var err error
			if entry.Source, err = p.openSource(ctx, s, of.ServerName, policy); err != nil {
				key := keyOf(i, j, s)
				if _, ok := errors.AsType[*net.OpError](err); ok {
					key += ".listen"
				}
				return Error{key, err}
			}
		}
		g, ok := entry.Source.(*registered)
		switch {
		case ok && !stays:
			g.key = entry.Key
			next.opened = append(next.opened, g)
		case ok && g.rules.path != s.Registration.Rules:
			changed, err := p.openRules(ctx, s.Registration.Rules)
			if err != nil {
				return Error{keyOf(i, j, s), fmt.Errorf("source %s: %w", s.Name, err)}
			}
			next.rules[g] = changed
		}
	}
	next.entries[of.ServerName] = entries
	return nil
}

// keyOf returns the key of the configuration that describes a source.
func keyOf(catalog, i int, s config.Source) string {
	if s.Registration == nil {
		return "catalogs"
	}
	return fmt.Sprintf("catalogs[%d].sources[%d].registration", catalog, i)
}

// entries returns the entries of a catalog when its next configuration is of, and the
// indices of its sources that stay as they are until a restart. The catalog is nil where
// it is new.
func (p *Publisher) entries(c *catalog, of config.Catalog, policy wire.Policy) (entries []source.Entry, waiting []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var taken []*registered
	for i, s := range of.Sources {
		entry := source.Entry{Key: fmt.Sprintf("%s %v", s.Key(), policy.AllowAddresses), Name: s.Name, Lifetime: s.Lifetime, MaxWithdraw: s.MaxWithdraw, WithdrawAfter: s.WithdrawAfter}
		if c != nil && s.Registration != nil {
			if g := c.inPlaceOf(entry.Key, *s.Registration, taken); g != nil {
				taken, entry.Source = append(taken, g), g
				if g.key != entry.Key {
					entry.Key, entry.Name = g.key, g.name
					waiting = append(waiting, i)
				}
			}
		}
		entries = append(entries, entry)
	}
	return entries, waiting
}

// mayReveal reports whether the next configuration of the catalog may tell more than the
// one in effect, and leaves out a source. It may where it has other exports, or where
// widened says that others may subscribe. What is published of that source stays until the
// next list of sources is complete, and the new exports were not written for it.
func (c *catalog) mayReveal(next config.Catalog, entries []source.Entry, widened bool) bool {
	if !widened && (c.exports.Policy == nil || sameExports(c.exports, next)) {
		return false
	}
	if slices.ContainsFunc(c.sources.Status().Sources, func(s source.SourceStatus) bool { return s.Published && !s.Staying }) {
		return true // an earlier change has left it out
	}
	stays := make(map[string]bool, len(entries))
	for _, e := range entries {
		stays[e.Key] = true
	}
	for key := range c.known {
		if !stays[key] {
			return true
		}
	}
	return false
}

// sameExports reports whether two catalogs have the same rules.
func sameExports(a, b config.Catalog) bool {
	return (a.Policy == nil) == (b.Policy == nil) && slices.EqualFunc(a.Exports, b.Exports, func(a, b config.Export) bool {
		return reflect.DeepEqual(a.Rule, b.Rule)
	})
}

// export makes the exports of a catalog those in effect, for its open streams as well.
func (c *catalog) export(next config.Catalog) {
	if !sameExports(c.exports, next) {
		c.registry.SetPolicy(next.Policy)
	}
	c.exports = next
}

// adopt puts a plan into effect, but for what the server has to be told. It returns the
// catalogs that others have replaced.
func (p *Publisher) adopt(ctx context.Context, next *plan) (replaced []*catalog) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config, p.applied, p.pending = next.config, time.Now(), nil
	for _, of := range next.config.Catalogs {
		name, entries := of.ServerName, next.entries[of.ServerName]
		c := p.catalogs[name]
		if c != nil && next.anew[name] {
			replaced, c = append(replaced, c), nil
		}
		if c == nil {
			registry := registry.New()
			c = &catalog{registry: registry, sources: source.NewCatalog(source.Config{Registry: registry, Logger: p.logger, Name: name, Observer: p.observer(name)})}
			p.catalogs[name] = c
		}
		c.export(of) // before there is anything new to tell
		c.known = make(map[string]source.Source, len(entries))
		for _, e := range entries {
			c.known[e.Key] = e.Source
		}
		c.register(entries)
		for _, g := range c.registered {
			if g.port != nil {
				g.port.source = g
			}
		}
		c.sources.Set(entries)
		if p.started && c.stop == nil {
			p.run(ctx, c)
		}
	}
	return replaced
}

// observer returns what observes a catalog, or nil.
func (p *Publisher) observer(serverName string) source.Observer {
	if p.observe == nil {
		return nil
	}
	return p.observe(serverName)
}

// run runs the sources of a catalog.
func (p *Publisher) run(ctx context.Context, c *catalog) {
	ctx, c.stop = context.WithCancel(ctx)
	p.running.Go(func() { _ = c.sources.Run(ctx) })
}

// registries returns the registries of the configuration, by server name.
func (p *Publisher) registries() map[string]*registry.Registry {
	registries := make(map[string]*registry.Registry, len(p.catalogs))
	for name, c := range p.catalogs {
		registries[name] = c.registry
	}
	return registries
}

// setRules gives registrations that stay the rules that a plan has for them, and lets those
// begin that are new.
func (p *Publisher) setRules(ctx context.Context, next *plan) {
	for g, changed := range next.rules {
		p.mu.Lock()
		g.rules.stop()
		g.rules = changed
		p.mu.Unlock()
		g.enforce(changed, changed.rules)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attend(ctx)
}

// prepareChange returns the function that applies a new version of the configuration
// file.
func (p *Publisher) prepareChange(ctx context.Context, c config.Config) (func(), error) {
	next, err := p.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	return func() { p.change(ctx, next) }, nil
}

// apply calls what puts an edit in force. Whatever that changes, of who is told of what and of
// what there is to be told, consumers are told when all of it has changed. So none is told
// of a service that neither the files of before nor those of now let it see.
func (p *Publisher) apply(edit func()) {
	p.mu.Lock()
	held := slices.Collect(maps.Values(p.registries()))
	p.mu.Unlock()
	for _, registry := range held {
		defer registry.Hold()()
	}
	edit()
}

// change applies a plan while the server runs. Streams that stay allowed, of catalogs
// that stay, go on.
//
// It is a part of an edit, in which nobody is told of anything: see apply. What the plan takes
// away comes first all the same, and who may subscribe newly last.
func (p *Publisher) change(ctx context.Context, next *plan) {
	p.Ready() // what is new must not make an owner unready that was ready
	waiting := slices.Concat(p.keep(&next.config), next.waiting)
	p.narrow(next.config.Allow, next.allowed)
	p.identity.SetGrace(next.config.Grace)
	p.audit(next.config.Audit)
	for _, of := range next.config.Catalogs {
		if c := p.catalogs[of.ServerName]; c != nil && !next.anew[of.ServerName] {
			c.export(of)
		}
	}
	gone := p.adopt(ctx, next)
	p.mu.Lock()
	p.restart = waiting
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
	p.setRules(ctx, next)
	p.allow(next.config.Allow, next.allowed)
	if next.allowed != nil {
		p.follow(ctx, next.allowed)
	}
	sources := 0
	for _, entries := range next.entries {
		sources += len(entries)
	}
	p.logger.Info("configuration applied", "file", p.file, "catalogs", len(next.entries),
		"sources", sources)
	for name := range next.anew {
		p.logger.Warn("catalog begins anew: who is told of what has changed, and a source is left out that was not for all of them; its consumers come back",
			"catalog", shown(name))
	}
	if len(waiting) > 0 {
		p.logger.Warn("configuration has new values that wait for a restart; the others are in effect", "file", p.file, "keys", strings.Join(waiting, ", "))
	}
}

// audit makes the server log what it tells to whom, or end that.
func (p *Publisher) audit(on bool) {
	if on {
		p.server.SetAudit(p.logger)
	} else {
		p.server.SetAudit(nil)
	}
}

// keep sets the values of a new configuration that a running owner cannot take to
// those in effect, and returns the keys of those that differ.
func (p *Publisher) keep(c *config.Config) []string {
	differ := map[string]bool{
		"listen":          c.Listen != p.config.Listen,
		"metrics":         c.Metrics != p.config.Metrics,
		"status":          c.Status != p.config.Status,
		"window":          c.Window != p.config.Window,
		"identity.files":  c.Identity.Files != p.config.Identity.Files,
		"identity.spiffe": !reflect.DeepEqual(c.Identity.SPIFFE, p.config.Identity.SPIFFE),
	}
	c.Listen, c.Metrics, c.Status, c.Window, c.Identity = p.config.Listen, p.config.Metrics, p.config.Status, p.config.Window, p.config.Identity
	maps.DeleteFunc(differ, func(_ string, differs bool) bool { return !differs })
	return slices.Sorted(maps.Keys(differ))
}
