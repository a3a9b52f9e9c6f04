package source

import (
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// leastWithdrawn is how many services a source must withdraw for its limit to hold them: of
// a few, all may well go.
const leastWithdrawn = 10

// withdrawWindow is how long services count that went. Sources tell of one decision, such
// as the end of a namespace, in many updates.
const withdrawWindow = time.Minute

// limit bounds what a source withdraws at once, as Entry says.
type limit struct {
	percent int
	after   time.Duration
}

// withdrawals is what the origin of a part does not have any more.
type withdrawals struct {
	limit limit

	// held has the names of services that stay although the origin does not have them, and
	// since when. All of them are in content.
	held   map[string]time.Time
	oldest time.Time // none of held is older; zero where there is none

	recent map[string]departure // what went in the window, or a bit before
	pruned time.Time            // when what is older was taken out of it
}

// departure is a service that went.
type departure struct {
	service *wire.Encoded
	at      time.Time
}

// arrived notes that the origin has a service.
func (w *withdrawals) arrived(name string) {
	delete(w.held, name)
	delete(w.recent, name)
}

// limits reports whether there is anything to look at when the part changes.
func (w *withdrawals) limits() bool { return w.limit.percent > 0 || len(w.held) > 0 }

// exceeds reports whether too many services go at once of a part with n services.
func (w *withdrawals) exceeds(n, going int) bool {
	out := len(w.held) + len(w.recent) + going
	return out >= leastWithdrawn && out*100 > w.limit.percent*(n+len(w.recent))
}

// prune forgets what went before the window.
func (w *withdrawals) prune(now time.Time) {
	w.pruned = now
	for name, d := range w.recent {
		if now.Sub(d.at) > withdrawWindow {
			delete(w.recent, name)
		}
	}
}

// limitTo sets the limit of the part.
func (p *part) limitTo(l limit) {
	if p.limit = l; l.percent == 0 {
		p.recent = nil // nobody would note what comes back
	}
}

// hold finds out whether services that the origin does not have any more stay, and returns
// those that went only just, which are back then: they were the beginning.
func (p *part) hold(going []*wire.Encoded) (stay bool, back []*wire.Encoded) {
	if len(going) == 0 || p.limit.percent == 0 || p.lapsed { // nothing of it is published then
		return false, nil
	}
	now := time.Now()
	if p.exceeds(p.len(), len(going)) || now.Sub(p.pruned) > withdrawWindow {
		p.prune(now)
	}
	if !p.exceeds(p.len(), len(going)) {
		if p.recent == nil {
			p.recent = make(map[string]departure)
		}
		for _, s := range going {
			p.recent[s.Name()] = departure{s, now}
		}
		return false, nil
	}
	if len(p.held) == 0 {
		p.held, p.oldest = make(map[string]time.Time), now
		logger, n, all := p.logger(), len(p.recent)+len(going), p.len()+len(p.recent)
		c := p.catalog
		c.lines = append(c.lines, func() {
			logger.Error("source withdraws too much at once, which is held until it is confirmed", "services", all, "held", n)
		})
	}
	for _, s := range going {
		p.held[s.Name()] = now
	}
	for name, d := range p.recent {
		p.held[name] = now
		back = append(back, d.service)
	}
	clear(p.recent)
	p.catalog.rouse()
	return true, back
}

// holdReplaced returns what the part has when its origin has services.
func (p *part) holdReplaced(services []*wire.Encoded) []*wire.Encoded {
	if !p.limits() {
		return services
	}
	defer p.noteEnd(len(p.held))
	has := make(map[string]struct{}, len(services))
	for _, s := range services {
		has[s.Name()] = struct{}{}
		p.arrived(s.Name())
	}
	var going, kept []*wire.Encoded
	for _, s := range p.services() {
		if _, ok := has[s.Name()]; ok {
			continue
		}
		if _, ok := p.held[s.Name()]; ok {
			kept = append(kept, s)
		} else {
			going = append(going, s)
		}
	}
	if stay, back := p.hold(going); stay {
		kept = slices.Concat(kept, going, back)
	}
	return slices.Concat(services, kept)
}

// holdUpdated returns what changes in the part, which has an index, when this changes at
// its origin.
func (p *part) holdUpdated(changed []*wire.Encoded, gone []string) Difference {
	if !p.limits() {
		return Difference{Changed: changed, Gone: gone}
	}
	defer p.noteEnd(len(p.held))
	seen := make(map[string]struct{}, len(changed)+len(gone))
	for _, s := range changed {
		seen[s.Name()] = struct{}{}
		p.arrived(s.Name())
	}
	var d Difference
	var going []*wire.Encoded
	for _, name := range gone {
		_, twice := seen[name]
		_, held := p.held[name]
		if it := p.items[name]; it != nil && !twice && !held {
			seen[name] = struct{}{}
			going, d.Gone = append(going, it.service), append(d.Gone, name)
		}
	}
	stay, back := p.hold(going)
	if stay {
		d.Gone = nil
	}
	d.Changed = slices.Concat(changed, back)
	return d
}

// noteEnd logs that the origin has all again of which so many were held.
func (p *part) noteEnd(held int) {
	if held == 0 || len(p.held) > 0 {
		return
	}
	p.held, p.oldest = nil, time.Time{}
	logger, c := p.logger(), p.catalog
	c.lines = append(c.lines, func() { logger.Info("source has again all that was held") })
}

// release withdraws what has been held since a time or longer, and returns how many
// services that is.
func (p *part) release(since time.Time, why string) int {
	var names []string
	p.oldest = time.Time{}
	for name, at := range p.held {
		if !at.After(since) {
			names = append(names, name)
			delete(p.held, name)
		} else if p.oldest.IsZero() || at.Before(p.oldest) {
			p.oldest = at
		}
	}
	if len(names) == 0 {
		return 0
	}
	p.index()
	p.whole = nil
	c, logger, left := p.catalog, p.logger(), len(p.held)
	c.apply(p, Difference{Gone: names}, p.stamp())
	c.lines = append(c.lines, func() {
		logger.Info("services that were held are withdrawn", "removed", len(names), "held", left, "reason", why)
	})
	return len(names)
}

// due returns when the first of what is held goes by itself; zero for never. While the
// origin is away it says nothing, and so not the same.
func (p *part) due() time.Time {
	switch {
	case len(p.held) == 0:
		return time.Time{}
	case p.limit.percent == 0:
		return p.oldest // there is no limit any more
	case p.away != nil || p.limit.after == 0:
		return time.Time{}
	}
	return p.oldest.Add(p.limit.after)
}

// releaseDue withdraws what is due, and returns when the next is.
func (p *part) releaseDue(now time.Time) time.Time {
	switch due := p.due(); {
	case due.IsZero() || now.Before(due):
		return due
	case p.limit.percent == 0:
		p.release(now, "the source has no limit any more")
	default:
		p.release(now.Add(-p.limit.after), "the source has not had them for "+p.limit.after.String())
	}
	return p.due()
}

// Confirm withdraws what is held of the source with that name, and returns how many
// services that is.
func (c *Catalog) Confirm(source string) int {
	c.mu.Lock()
	defer c.unlock()
	for _, p := range c.active {
		if p.name == source {
			return p.release(time.Now(), "confirmed")
		}
	}
	return 0
}
