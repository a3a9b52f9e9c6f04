package source

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source/internal/claim"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
)

// Config is what a Catalog needs.
type Config struct {
	// Registry is what the catalog is published in. Nobody else changes it, and the
	// catalog is the one that listens to its refusals.
	Registry *registry.Registry

	Logger *slog.Logger

	// Name names the catalog in log lines and in Status. It may be empty.
	Name string
}

// NoLifetime is the Lifetime of a source without which the catalog is unavailable at once.
const NoLifetime time.Duration = -1

// Entry is a source with its place in a catalog.
type Entry struct {
	// Key tells what the source is: its configuration as text. Entries with equal keys
	// stand for the same source, and a list has each key once; of two entries with one
	// key the first counts. A source whose key is back after it was removed begins when
	// the one before has ended.
	Key string

	// Name is what operators and consumers read, such as "file shops.yaml". It is
	// unique in a list, short, and no secret.
	Name string

	Source Source

	// Lifetime is for how long what the source has published stays while its origin is away,
	// from when it was lost; 0 stands for ever. After that it is withdrawn while the origin of another source can be
	// asked, and else the catalog is unavailable. With [NoLifetime] it is at once.
	Lifetime time.Duration

	// MaxWithdraw is how much of what the source has may go within a minute, in percent; 0
	// stands for all. When more goes, and ten services at least, they stay published. They go
	// on [Catalog.Confirm], or when the source has not had them for WithdrawAfter, where it is
	// not 0. A source holds nothing before it is published for the first time, nor what goes
	// with a change of the list.
	MaxWithdraw   int
	WithdrawAfter time.Duration
}

// Catalog joins the parts of several sources in one registry. It is safe for
// concurrent use.
//
// A change takes time in proportion to what changes, and to the services of other
// sources that have the same name or fqdn; Part.Replace to all services of the part.
type Catalog struct {
	registry  *registry.Registry // read-only after NewCatalog
	logger    *slog.Logger       // read-only after NewCatalog
	name      string             // read-only after NewCatalog
	published chan struct{}      // closed when a list is published for the first time, by once
	once      sync.Once
	wake      chan struct{} // holds one value when Run has something to do

	mu     sync.Mutex // guards the fields below, and those of every part
	parts  map[string]*part
	active []*part                    // the list that is published, in order
	claims claim.Names[string, *item] // to fqdns, of the items of active, where these are several
	next   []listed                   // the list that takes effect when it is complete
	coming bool                       // whether there is one
	begun  bool                       // whether any list has been complete
	fresh  []*part                    // sources to start
	reason string                     // why the catalog is unavailable; empty when it is not
	lost   time.Time                  // since when the origin is lost, if that is why; else zero
	lapsed bool                       // whether that is because of a lifetime
	lines  []func()                   // log what is to be logged without the lock
}

// listed is an entry of a list that has yet to take effect.
type listed struct {
	part *part
	Entry
}

// NewCatalog returns a catalog without sources, and makes its registry unavailable
// until the first list is complete.
func NewCatalog(c Config) *Catalog {
	logger := c.Logger
	if c.Name != "" {
		logger = logger.With("catalog", c.Name)
	}
	catalog := &Catalog{
		registry: c.Registry, logger: loglimit.Logger(logger), name: c.Name,
		published: make(chan struct{}), wake: make(chan struct{}, 1), parts: make(map[string]*part),
		claims: make(claim.Names[string, *item]),
	}
	c.Registry.OnRefusal(catalog.refused)
	catalog.mu.Lock()
	defer catalog.unlock()
	catalog.judge()
	return catalog
}

// Published is closed when the first list has been complete and is published.
func (c *Catalog) Published() <-chan struct{} { return c.published }

// Set makes entries the sources of the catalog. It may be called at any time, and does
// not wait.
//
// Entries with a key that is known go on running and keep their part: only their place,
// name, lifetime and limit are taken. What is new runs at once. The new list takes effect as a
// whole when every source of it is complete. Until then the old one goes on being
// published, and so a change of the list never publishes half of a world, and withdraws
// nothing that stays. Then the sources that are not in it end.
func (c *Catalog) Set(entries []Entry) {
	c.mu.Lock()
	defer c.unlock()
	c.next, c.coming = make([]listed, 0, len(entries)), true
	for _, e := range entries {
		p := c.parts[e.Key]
		switch {
		case p == nil:
			p = c.add(e, nil)
		case p.ending:
			p = c.add(e, p.ended)
		case slices.ContainsFunc(c.next, func(l listed) bool { return l.part == p }):
			continue
		}
		e.Source = p.Source // the one that runs
		c.next = append(c.next, listed{p, e})
	}
	c.endUnlisted()
	c.advance()
	c.judge()
	c.rouse()
}

// add makes the part of a new source, which begins when after is closed.
func (c *Catalog) add(e Entry, after <-chan struct{}) *part {
	p := &part{
		catalog: c, Entry: e, level: inactive, after: after, ended: make(chan struct{}),
		items: make(map[string]*item), news: make(map[string]struct{}), held: make(map[string]time.Time), recent: make(map[string]departure),
	}
	c.parts[e.Key] = p
	c.fresh = append(c.fresh, p)
	return p
}

// endUnlisted ends the sources that are in no list.
func (c *Catalog) endUnlisted() {
	for _, p := range c.parts {
		if !p.ending && p.level == inactive && !slices.ContainsFunc(c.next, func(l listed) bool { return l.part == p }) {
			p.end()
		}
	}
}

// advance lets the next list take effect, if there is one and it is complete.
func (c *Catalog) advance() {
	if !c.coming || slices.ContainsFunc(c.next, func(l listed) bool { return !l.part.complete }) {
		return
	}
	next := c.next
	c.next, c.coming = nil, false
	same := c.begun && slices.EqualFunc(c.active, next, func(p *part, l listed) bool { return p == l.part && p.Name == l.Name })
	for _, l := range next {
		l.part.Entry = l.Entry
	}
	if !same {
		c.turnToList(next)
	}
	c.endUnlisted()
}

// turnToList publishes what the sources of another list have.
func (c *Catalog) turnToList(next []listed) {
	before := c.publishes()
	for _, p := range c.active {
		p.level = inactive
	}
	c.active = make([]*part, 0, len(next))
	for level, l := range next {
		l.part.level = level
		c.active = append(c.active, l.part)
	}
	_ = c.registry.SetPath(c.path()) // Through has checked it
	for now, i := time.Now(), 0; i < len(c.active); i++ {
		c.active[i].lapsed = c.begun && c.lapses(c.active[i], now)
	}
	c.evaluate()
	if c.begun {
		c.publish(Compare(before, c.publishes()))
		return
	}
	c.registry.SetEncoded(slices.Collect(maps.Values(c.publishes())))
	c.begun = true
}

// path returns through which owners the services have come that are published: those of
// the first source that names any. They are told for all services: with two paths a loop
// through the second would not be found, so whoever makes the list has one relay in it.
func (c *Catalog) path() wire.Path {
	for _, p := range c.active {
		if len(p.path) > 0 {
			return p.path
		}
	}
	return nil
}

// publish changes the registry, which tells what is new first, then what changes, and
// then what is gone: an fqdn that moves has an answer all the time.
func (c *Catalog) publish(d Difference) {
	c.registry.UpdateEncoded(append(d.Added, d.Changed...), d.Gone)
}

// rouse makes Run look at what there is to do.
func (c *Catalog) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // it will
	}
}

// unlock ends what the lock was taken for, and logs what there is to say of it.
func (c *Catalog) unlock() {
	lines := c.lines
	c.lines = nil
	c.mu.Unlock()
	for _, line := range lines {
		line()
	}
}

// judge finds out which sources lapse and whether the catalog is available, and tells the
// registry.
func (c *Catalog) judge() {
	now := time.Now()
	for _, p := range c.active {
		if p.lapsed && !c.lapses(p, now) {
			c.lapse(p, false)
		}
	}
	for _, p := range c.active {
		if !p.lapsed && c.lapses(p, now) {
			c.lapse(p, true)
		}
	}
	reason, lost := c.unavailable(now)
	if reason == c.reason && lost.Equal(c.lost) {
		return
	}
	before, lapsed := c.reason, c.lapsed
	c.reason, c.lost, c.lapsed = reason, lost, reason != "" && c.begun
	c.registry.SetUnavailable(reason, lost)
	if c.begun {
		c.once.Do(func() { close(c.published) })
	}
	switch {
	case reason == before:
	case c.lapsed:
		c.lines = append(c.lines, func() { c.logger.Error("catalog is not available to consumers", "reason", reason) })
	case lapsed:
		c.lines = append(c.lines, func() { c.logger.Info("catalog is available to consumers again") })
	}
}

// unavailable returns why consumers cannot have the catalog, and since when the first of the
// origins is lost because of which they cannot. It is empty when they can.
func (c *Catalog) unavailable(now time.Time) (reason string, lost time.Time) {
	var names []string
	if !c.begun {
		for _, l := range c.next {
			if !l.part.complete {
				names = append(names, l.Name)
			}
		}
		if len(names) == 0 {
			return "it has no sources yet", lost
		}
		return "waiting for the first state of " + strings.Join(names, ", "), lost
	}
	lapsed := 0
	for _, p := range c.active {
		if p.lapsed {
			lapsed++
		}
	}
	for _, p := range c.active {
		if p.isOverdue(now) && (!p.lapsed || lapsed == len(c.active)) {
			names = append(names, p.Name+" "+p.overdue())
			lost = sooner(lost, p.since)
		}
	}
	return strings.Join(names, ", "), lost
}

// lapses reports whether nothing of a source is to be published because its lifetime is over. Others
// are published without it, but only once one of them can be asked: where all are away, it is
// the owner that is cut off, and what its consumers keep is better than nothing.
func (c *Catalog) lapses(p *part, now time.Time) bool {
	return c.shared() && p.isOverdue(now) && p.Lifetime > 0 && (p.lapsed || slices.ContainsFunc(c.active, func(other *part) bool {
		return other.away == nil || other.Lifetime == 0
	}))
}

// Run runs the sources until ctx ends. It returns nil when all of them have ended. What
// is published stays. It may be called once.
func (c *Catalog) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	overdue := time.NewTimer(0)
	defer overdue.Stop()
	for {
		t := c.turn(ctx)
		for _, start := range t.start {
			running.Go(start)
		}
		for _, w := range t.words {
			w.tell()
		}
		overdue.Stop()
		if !t.next.IsZero() {
			overdue.Reset(time.Until(t.next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-overdue.C:
		}
	}
}

// turn is what Run does without the lock.
type turn struct {
	start []func()  // sources that begin
	words []word    // what there is to tell of services that are hidden
	next  time.Time // when the lifetime of a source ends, or services that are held go; zero for never
}

// word is what becomes of a service.
type word struct {
	source      Source
	logger      *slog.Logger
	service, by string
}

func (w word) tell() {
	if w.by != "" {
		w.logger.Warn("service is hidden: another source stands first", "service", federation.Printable(w.service), "by", w.by)
	}
	if l, ok := w.source.(Listener); ok {
		l.Hidden(w.service, w.by)
	}
}

// sooner returns the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// turn finds out what there is to do.
func (c *Catalog) turn(ctx context.Context) turn {
	c.mu.Lock()
	defer c.unlock()
	c.judge()
	var t turn
	for _, p := range c.fresh {
		ctx, cancel := context.WithCancel(ctx)
		p.cancel = cancel
		t.start = append(t.start, func() { p.run(ctx) })
	}
	c.fresh = nil
	now := time.Now()
	for _, p := range c.active {
		if p.away != nil && p.Lifetime != 0 && !p.isOverdue(now) {
			t.next = sooner(t.next, p.deadline())
		}
		t.next = sooner(t.next, p.releaseDue(now))
		t.words = p.words(t.words)
	}
	return t
}
