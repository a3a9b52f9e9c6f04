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
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// catalog is what is published under one server name.
type catalog struct {
	registry *registry.Registry
	sources  *source.Catalog
	exports  config.Catalog     // whose exports are in effect
	entries  []source.Entry     // that Set was given last
	stop     context.CancelFunc // ends its sources; nil before they run

	running []*registered // the registrations of entries, and those that have left them and run on until the next list is complete
}

// plan is a configuration with everything opened that it needs and that does not run
// yet. Nothing has changed so far.
type plan struct {
	config   config.Config
	allowed  *named[[]federation.ID]
	catalogs []planned
	rules    map[*registered]*named[*rules.Rules] // of registrations that stay, and have another file of rules
	identity func()                               // has its origin take the place of the one in effect; nil where that stays
	waiting  []string                             // keys whose new values wait for a restart
}

// planned is what a catalog becomes.
type planned struct {
	config.Catalog

	current *catalog // nil where it is a new one
	anew    bool     // whether it takes the place of one that could have stayed
	entries []source.Entry
}

// prepare opens what a configuration needs beside what runs already.
func (p *Publisher) prepare(ctx context.Context, c config.Config) (next *plan, err error) {
	p.discard() // what was not applied, as the file had changed again
	defer func() {
		if err != nil {
			p.discard()
		}
	}()
	next = &plan{config: c, allowed: p.allowed, rules: make(map[*registered]*named[*rules.Rules])}
	if p.allowed == nil || c.Allow.File != p.allowed.path {
		if next.allowed, err = p.openAllowed(ctx, c.Allow.File); err != nil {
			return nil, Error{"allow.file", err}
		}
	}
	if !reflect.DeepEqual(c.Identity, p.config.Identity) {
		if next.identity, err = p.identity.Prepare(c.Identity); err != nil {
			return nil, Error{identityKey(c.Identity), err}
		}
	}
	for i := range c.Catalogs {
		if err = p.prepareCatalog(ctx, next, i); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// prepareCatalog opens what a catalog of the plan needs.
func (p *Publisher) prepareCatalog(ctx context.Context, next *plan, i int) error {
	of, policy := next.config.Catalogs[i], wire.Policy{AllowAddresses: next.config.AllowAddresses}
	n := planned{Catalog: of, current: p.catalogs[of.ServerName]}
	var waiting []int
	n.entries, waiting = p.entries(n.current, of, policy)
	if n.current != nil && n.current.mayReveal(n, p.widens(next)) {
		n.anew, n.current = true, nil
		n.entries, waiting = p.entries(nil, of, policy)
	}
	for _, j := range waiting {
		next.waiting = append(next.waiting, keyOf(i, j, of.Sources[j]))
	}
	for j, s := range of.Sources {
		entry := &n.entries[j]
		if entry.Source != nil {
			g, ok := entry.Source.(*registered)
			if !ok || g.rules.path == s.Registration.Rules {
				continue
			}
			changed, err := p.openRules(ctx, s.Registration.Rules)
			if err != nil {
				return Error{keyOf(i, j, s), fmt.Errorf("source %s: %w", s.Name, err)}
			}
			next.rules[g] = changed
			continue
		}
		var err error
		if entry.Source, err = p.openSource(ctx, s, of.ServerName, policy); err != nil {
			key := keyOf(i, j, s)
			if _, ok := errors.AsType[*net.OpError](err); ok {
				key += ".listen"
			}
			return Error{key, err}
		}
		if g, ok := entry.Source.(*registered); ok {
			g.key = entry.Key
			p.pending = append(p.pending, g)
		}
	}
	next.catalogs = append(next.catalogs, n)
	return nil
}

// keyOf returns the key of the configuration that describes a source.
func keyOf(catalog, i int, s config.Source) string {
	if s.Registration == nil {
		return "catalogs"
	}
	return fmt.Sprintf("catalogs[%d].sources[%d].registration", catalog, i)
}

// entries returns the entries of a catalog when its next configuration is of, with the sources
// that it has already, and the indices of those that stay as they are until a restart. The
// catalog is nil where it is new.
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
		if c != nil && entry.Source == nil {
			entry.Source = c.source(entry.Key)
		}
		entries = append(entries, entry)
	}
	return entries, waiting
}

// source returns the source of the catalog with that key, or nil.
func (c *catalog) source(key string) source.Source {
	for _, e := range c.entries {
		if e.Key == key {
			return e.Source
		}
	}
	return nil
}

// mayReveal reports whether the next configuration of the catalog may tell more than the
// one in effect, and leaves out a source. It may where it has other exports, or where
// widened says that others may subscribe. What is published of that source stays until the
// next list of sources is complete, and the new exports were not written for it.
func (c *catalog) mayReveal(next planned, widened bool) bool {
	if !widened && (c.exports.Policy == nil || sameExports(c.exports, next.Catalog)) {
		return false
	}
	return slices.ContainsFunc(c.sources.Status().Sources, func(s source.SourceStatus) bool {
		return s.Published && !s.Staying // an earlier change has left it out
	}) || slices.ContainsFunc(c.entries, func(e source.Entry) bool {
		return !slices.ContainsFunc(next.entries, func(stays source.Entry) bool { return stays.Key == e.Key })
	})
}

// sameExports reports whether two catalogs have the same rules.
func sameExports(a, b config.Catalog) bool {
	return (a.Policy == nil) == (b.Policy == nil) && slices.EqualFunc(a.Exports, b.Exports, func(a, b config.Export) bool {
		return reflect.DeepEqual(a.Rule, b.Rule)
	})
}

// adopt puts a plan into effect, but for what the server has to be told. It returns the
// catalogs that are left out, or that others have replaced.
func (p *Publisher) adopt(next *plan) (gone []*catalog) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config, p.applied, p.restart, p.pending = next.config, time.Now(), next.waiting, nil
	if before := p.allowed; before != next.allowed {
		p.allowed, next.allowed.tell = next.allowed, func([]federation.ID) { p.admit() }
		if before != nil {
			before.tell = nil
			before.end()
		}
	}
	if allow := next.config.Allow; len(allow.IDs) == 0 && allow.File == "" && !allow.Everybody {
		p.logger.Warn("nobody may subscribe; name consumers in allow", "file", p.file)
	}
	before := p.catalogs
	p.catalogs = make(map[string]*catalog, len(next.catalogs))
	for _, n := range next.catalogs {
		c := n.current
		if c == nil {
			c = &catalog{registry: registry.New()}
			c.sources = source.NewCatalog(source.Config{Registry: c.registry, Logger: p.logger, Name: n.ServerName})
		}
		p.catalogs[n.ServerName] = c
		c.become(n)
	}
	for name, c := range before {
		if p.catalogs[name] != c {
			gone = append(gone, c)
		}
	}
	return gone
}

// become has a catalog publish as planned, to open streams as well. The caller holds the mutex
// of Publisher.
func (c *catalog) become(n planned) {
	if !sameExports(c.exports, n.Catalog) {
		c.registry.SetPolicy(n.Policy) // before there is anything new to tell
	}
	c.exports, c.entries = n.Catalog, n.entries
	now := c.registered()
	before := slices.DeleteFunc(c.running, func(g *registered) bool { return g.ended || slices.Contains(now, g) })
	c.running = slices.Concat(now, before)
	for _, g := range now {
		if g.port != nil {
			g.port.source = g
		}
	}
	c.sources.Set(n.entries)
}

// attend lets run what is in effect and does not run yet: sources, the files that are
// followed, and the ports for providers.
func (p *Publisher) attend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed.follow(p)
	for _, c := range p.catalogs {
		if c.stop == nil {
			c.stop = p.launch(func(ctx context.Context) { _ = c.sources.Run(ctx) })
		}
		for _, g := range c.registered() {
			if !g.ended {
				g.rules.follow(p)
			}
			if g.port != nil && g.port.stop == nil {
				p.servePort(g.port)
			}
		}
	}
}

// registries returns the registries of the configuration, by server name.
func (p *Publisher) registries() map[string]*registry.Registry {
	registries := make(map[string]*registry.Registry, len(p.catalogs))
	for name, c := range p.catalogs {
		registries[name] = c.registry
	}
	return registries
}

// apply calls what puts an edit in force. Whatever that changes, of who is told of what and of
// what there is to be told, consumers are told when all of it has changed, and who may not
// subscribe before is let in after that. So none is told of a service that neither the files
// of before nor those of now let it see.
func (p *Publisher) apply(edit func()) {
	var release []func()
	for _, registry := range p.registries() {
		release = append(release, registry.Hold())
	}
	p.editing = true
	edit()
	for _, tell := range release {
		tell()
	}
	p.editing = false
	p.admit()
}

// admit tells the server who may subscribe: those whom the configuration names, and those in
// its allow file. During an edit these are none who might not before it.
func (p *Publisher) admit() {
	if p.config.Allow.Everybody {
		return
	}
	ids := make(map[federation.ID]bool)
	for _, id := range slices.Concat(p.config.Allow.IDs, p.allowed.says) {
		if !p.editing || p.admitted[id] {
			ids[id] = true
		}
	}
	if p.admitted == nil || !maps.Equal(ids, p.admitted) {
		p.server.SetAllow(slices.Collect(maps.Keys(ids)))
	}
	p.admitted = ids
}

// widens reports whether somebody may subscribe with the plan, and the files as they were read
// for it, who may not now.
func (p *Publisher) widens(next *plan) bool {
	return slices.ContainsFunc(slices.Concat(next.config.Allow.IDs, next.allowed.says, next.allowed.read), func(id federation.ID) bool { return !p.admitted[id] })
}

// change applies a plan while the server runs. Streams that stay allowed, of catalogs
// that stay, go on.
//
// It is a part of an edit, in which nobody is told of anything: see apply.
func (p *Publisher) change(next *plan) {
	p.Ready() // what is new must not make an owner unready that was ready
	next.waiting = slices.Concat(p.keep(&next.config), next.waiting)
	p.audit(next.config.Audit)
	gone := p.adopt(next)
	p.admit()
	p.server.SetCatalogs(p.registries())
	if next.identity != nil {
		next.identity() // when those who lose their place in allow have lost it
	}
	for _, c := range gone {
		c.stop()
	}
	for g, changed := range next.rules {
		p.mu.Lock()
		g.rules.end()
		g.rules.tell = nil
		g.rules = changed
		p.mu.Unlock()
		changed.tell = g.SetRules
		changed.take(changed.says)
	}
	p.attend()
	sources := 0
	for _, n := range next.catalogs {
		sources += len(n.entries)
	}
	p.logger.Info("configuration applied", "file", p.file, "catalogs", len(next.catalogs),
		"sources", sources)
	for _, n := range next.catalogs {
		if n.anew {
			p.logger.Warn("catalog restarted: its exports changed and a source was removed; consumers will reconnect", "catalog", shown(n.ServerName))
		}
	}
	if len(next.waiting) > 0 {
		p.logger.Warn("configuration has new values that wait for a restart; the others are in effect", "file", p.file, "keys", strings.Join(next.waiting, ", "))
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
		"listen":  c.Listen != p.config.Listen,
		"metrics": c.Metrics != p.config.Metrics,
		"status":  c.Status != p.config.Status,
		"window":  c.Window != p.config.Window,
	}
	c.Listen, c.Metrics, c.Status, c.Window = p.config.Listen, p.config.Metrics, p.config.Status, p.config.Window
	maps.DeleteFunc(differ, func(_ string, differs bool) bool { return !differs })
	return slices.Sorted(maps.Keys(differ))
}
