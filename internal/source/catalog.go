package source

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/moment"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/internal/claim"
	"github.com/hamlet-federation/coredns-federation/internal/wake"
)

// Config is what a Catalog needs.
type Config struct {
	// Registry is where the catalog is published. Nobody else changes it, and the
	// catalog is the one that listens to its refusals.
	Registry *registry.Registry

	Logger *slog.Logger

	// Name names the catalog in log lines and in Status. It may be empty.
	Name string

	Sources []Entry // in the order of their precedence
}

// NoLifetime is the Lifetime of a source whose loss makes the catalog unavailable at once.
const NoLifetime time.Duration = -1

// Entry is a source, and how its catalog treats it.
type Entry struct {
	// Name is what operators and consumers read, such as "file shops.yaml". It is
	// unique in a list, short, and no secret.
	Name string

	Source Source

	// Lifetime is for how long the services of the source stay published while its origin is away,
	// counted from the loss; 0 stands for ever. After that the services are withdrawn if the origin
	// of another source can be asked, and otherwise the catalog is unavailable. With [NoLifetime]
	// it is unavailable at once.
	Lifetime time.Duration

	// MaxWithdraw is how much of what the source has may go within a minute, in percent; 0 stands
	// for all. When more goes, and at least ten services, these services stay published. They are
	// withdrawn by [Catalog.ConfirmWithdrawal], or when the source has not had them for
	// WithdrawAfter, where that is not 0.
	MaxWithdraw   int
	WithdrawAfter time.Duration
}

// Catalog joins the parts of several sources in one registry. It keeps, for each part, the services that
// its source has published and what hides them. Only sources change a part, each its own, and Run does
// what time brings; all of that is under one mutex. A catalog bounds nothing: each source bounds what
// it takes from its origin. A catalog never decides from silence that a service is gone, because an
// origin that cannot be asked looks the same as an empty one. It is safe for concurrent use.
//
// A change takes time in proportion to what changes, and to the services of other
// sources that have the same name or fqdn. Part.Replace takes time in proportion to all services of the
// part, and the first Replace also to the services that wait for it.
type Catalog struct {
	registry  *registry.Registry // read-only after NewCatalog
	logger    *slog.Logger       // read-only after NewCatalog
	name      string             // read-only after NewCatalog
	parts     []*catalogPart     // in the order of their precedence; read-only after NewCatalog
	published chan struct{}      // closed when consumers can have the catalog for the first time
	wake      chan struct{}      // holds one value when Run has something to do

	mu     sync.Mutex                      // guards the fields below, and those of every part
	claims claim.ByName[string, *partItem] // to fqdns, where there are several sources
	begun  bool                            // whether published is closed
	reason string                          // why the catalog is unavailable; empty when it is not
	lost   time.Time                       // since when the origin is lost, if that is the reason; else zero
	lines  []func()                        // write log lines; called without the lock
}

// NewCatalog returns a catalog whose sources do not run yet. Its registry is unavailable
// until the first of them is complete, and incomplete until all are.
func NewCatalog(c Config) *Catalog {
	logger := c.Logger
	if c.Name != "" {
		logger = logger.With("catalog", c.Name)
	}
	catalog := &Catalog{
		registry: c.Registry, logger: loglimit.NewLogger(logger), name: c.Name,
		published: make(chan struct{}), wake: make(chan struct{}, 1), claims: make(claim.ByName[string, *partItem]),
	}
	for level, e := range c.Sources {
		catalog.parts = append(catalog.parts, newPart(catalog, level, e))
	}
	c.Registry.OnRefusal(catalog.forwardRefusal)
	catalog.mu.Lock()
	defer catalog.unlockAndLog()
	catalog.registry.SetComplete(false)
	catalog.updateAvailability()
	return catalog
}

// Published returns a channel that is closed when consumers can have the catalog for the first
// time, or the part of it that is known.
func (c *Catalog) Published() <-chan struct{} { return c.published }

// wakeRun makes Run look for work.
func (c *Catalog) wakeRun() { wake.Up(c.wake) }

// unlockAndLog releases the lock, and writes the log lines that were collected under it.
func (c *Catalog) unlockAndLog() {
	lines := c.lines
	c.lines = nil
	c.mu.Unlock()
	for _, line := range lines {
		line()
	}
}

// updateAvailability decides which sources lapse and whether the catalog is available, and tells
// the registry.
func (c *Catalog) updateAvailability() {
	now := time.Now()
	for _, lapses := range []bool{false, true} {
		for _, p := range c.parts {
			if p.lapsed != lapses && c.shouldLapse(p, now) == lapses {
				c.setLapsed(p, lapses)
			}
		}
	}
	if c.isComplete() {
		c.registry.SetComplete(true)
	}
	reason, lost := c.unavailableReason(now)
	if reason == c.reason && lost.Equal(c.lost) {
		return
	}
	before := c.reason
	c.reason, c.lost = reason, lost
	c.registry.SetUnavailable(reason, lost)
	switch {
	case reason == before:
	case !c.begun && reason == "":
		c.begun = true
		close(c.published)
	case !c.begun:
	case reason == "":
		c.lines = append(c.lines, func() { c.logger.Info("catalog is available to consumers again") })
	default:
		c.lines = append(c.lines, func() { c.logger.Error("catalog is not available to consumers", "reason", reason) })
	}
}

// isComplete reports whether every source has been complete.
func (c *Catalog) isComplete() bool {
	return !slices.ContainsFunc(c.parts, func(p *catalogPart) bool { return !p.complete })
}

// unavailableReason returns why consumers cannot have the catalog, and since when the first of the
// lost origins is lost, if that is why. The reason is empty when they can have it.
func (c *Catalog) unavailableReason(now time.Time) (reason string, lost time.Time) {
	var waiting, overdue []string
	complete, served := false, false
	for _, p := range c.parts {
		complete = complete || p.complete
		served = served || p.complete && !p.lapsed
	}
	for _, p := range c.parts {
		waiting = append(waiting, p.Name)
		if p.isOverdue(now) && (!p.lapsed || !served) {
			overdue = append(overdue, p.Name+" "+p.overdueReason())
			lost = moment.Earlier(lost, p.awaySince)
		}
	}
	if !complete && len(c.parts) > 0 {
		return "waiting for the first state of " + strings.Join(waiting, ", "), time.Time{}
	}
	return strings.Join(overdue, ", "), lost
}

// shouldLapse reports whether nothing of a source is to be published because its lifetime is over.
// The other sources are published without it, but only if one of them can be asked. Where all
// origins are away, the owner itself is cut off, and consumers had better keep what they have.
func (c *Catalog) shouldLapse(p *catalogPart, now time.Time) bool {
	return c.hasSeveralParts() && p.isOverdue(now) && p.Lifetime > 0 && (p.lapsed || slices.ContainsFunc(c.parts, func(other *catalogPart) bool {
		return other.away == nil || other.Lifetime == 0
	}))
}

// Run runs the sources until ctx ends, and returns nil when all of them have ended. The published
// services stay. Run may be called once.
func (c *Catalog) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, p := range c.parts {
		running.Go(func() { p.runSource(ctx) })
	}
	overdue := time.NewTimer(0)
	defer overdue.Stop()
	for {
		t := c.collectWork()
		for _, w := range t.notices {
			w.notifySource()
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

// pendingWork is the work that Run does without the lock.
type pendingWork struct {
	notices []hiddenNotice // of services that are hidden or published again
	next    time.Time      // when the lifetime of a source ends, or services whose withdrawal is paused go; zero for never
}

// hiddenNotice says what hides a service, or that nothing does.
type hiddenNotice struct {
	source      Source
	logger      *slog.Logger
	service, by string
}

// notifySource logs the notice, and passes it to the source.
func (w hiddenNotice) notifySource() {
	if w.by != "" {
		w.logger.Warn("service is hidden: a source that comes first has its name or its fqdn", "service", safetext.Printable(w.service), "by", w.by)
	}
	if l, ok := w.source.(OutcomeListener); ok {
		l.HiddenBy(w.service, w.by)
	}
}

// collectWork does what is due, and returns the work that is left for Run.
func (c *Catalog) collectWork() pendingWork {
	c.mu.Lock()
	defer c.unlockAndLog()
	c.updateAvailability()
	var t pendingWork
	now := time.Now()
	for _, p := range c.parts {
		if p.away != nil && p.Lifetime != 0 && p.lifetimeEnd().After(now) {
			t.next = moment.Earlier(t.next, p.lifetimeEnd())
		}
		t.next = moment.Earlier(t.next, p.withdrawDue(now))
		t.notices = p.appendNotices(t.notices)
	}
	return t
}
