package source

import (
	"log/slog"
	"maps"
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

// departure is a service that went.
type departure struct {
	service *wire.EncodedService
	at      time.Time
}

// exceeds reports whether too many services of the part go at once.
func (p *part) exceeds(going int) bool {
	out := len(p.held) + len(p.recent) + going
	return out >= leastWithdrawn && out*100 > p.MaxWithdraw*(len(p.items)+len(p.recent))
}

// hold returns what changes in the part when this changes at its origin, where a name in both
// counts as changed. What is too much to go at once stays, and what went only just is back:
// it was the beginning.
func (p *part) hold(changed []*wire.EncodedService, gone []string) (now []*wire.EncodedService, going []string) {
	before := len(p.held)
	seen := make(map[string]struct{}, len(changed)+len(gone))
	for _, s := range changed {
		seen[s.Name()] = struct{}{}
		delete(p.held, s.Name())
		delete(p.recent, s.Name())
	}
	for _, name := range gone {
		_, twice := seen[name]
		_, held := p.held[name]
		if p.items[name] != nil && !twice && !held {
			seen[name] = struct{}{}
			going = append(going, name)
		}
	}
	if len(going) > 0 && p.MaxWithdraw > 0 && !p.lapsed && p.stay(going, time.Now()) { // nothing is published of what has lapsed
		changed, going = slices.Clone(changed), nil
		for _, d := range p.recent {
			changed = append(changed, d.service)
		}
		clear(p.recent)
	}
	if before > 0 && len(p.held) == 0 {
		p.log(func(logger *slog.Logger) { logger.Info("all held services are back in the source") })
	}
	return changed, going
}

// stay reports whether services stay that the origin does not have any more, and notes when
// they went.
func (p *part) stay(going []string, now time.Time) bool {
	if p.exceeds(len(going)) || now.Sub(p.pruned) > withdrawWindow {
		p.pruned = now
		maps.DeleteFunc(p.recent, func(_ string, d departure) bool { return now.Sub(d.at) > withdrawWindow })
	}
	if !p.exceeds(len(going)) {
		for _, name := range going {
			p.recent[name] = departure{p.items[name].service, now}
		}
		return false
	}
	if len(p.held) == 0 {
		n, all := len(p.recent)+len(going), len(p.items)+len(p.recent)
		p.log(func(logger *slog.Logger) {
			logger.Error("source withdraws too much at once; the services are held until confirmed", "services", all, "held", n)
		})
	}
	for _, name := range slices.AppendSeq(going, maps.Keys(p.recent)) {
		p.held[name] = now
	}
	p.catalog.rouse()
	return true
}

// release withdraws what has been held since a time or longer, and returns how many
// services that is.
func (p *part) release(since time.Time, why string) int {
	var names []string
	for name, at := range p.held {
		if !at.After(since) {
			names = append(names, name)
			delete(p.held, name)
		}
	}
	if len(names) == 0 {
		return 0
	}
	p.apply(nil, names, false)
	left := len(p.held)
	p.log(func(logger *slog.Logger) {
		logger.Info("services that were held are withdrawn", "removed", len(names), "held", left, "reason", why)
	})
	return len(names)
}

// due returns when the first of what is held goes by itself; zero for never. While the
// origin is away it says nothing, and so not the same.
func (p *part) due() time.Time {
	if len(p.held) == 0 || p.away != nil || p.WithdrawAfter == 0 {
		return time.Time{}
	}
	oldest := slices.MinFunc(slices.Collect(maps.Values(p.held)), time.Time.Compare)
	return oldest.Add(p.WithdrawAfter)
}

// releaseDue withdraws what is due, and returns when the next is.
func (p *part) releaseDue(now time.Time) time.Time {
	if due := p.due(); due.IsZero() || now.Before(due) {
		return due
	}
	p.release(now.Add(-p.WithdrawAfter), "the source has not had them for "+p.WithdrawAfter.String())
	return p.due()
}

// Confirm withdraws what is held of the source with that name, and returns how many
// services that is.
func (c *Catalog) Confirm(source string) int {
	c.mu.Lock()
	defer c.unlock()
	for _, p := range c.parts {
		if p.Name == source {
			return p.release(time.Now(), "confirmed")
		}
	}
	return 0
}
