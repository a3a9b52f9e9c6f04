package source

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// leastWithdrawn is how many services must go at once before their withdrawal is paused: of a few
// services, all may well go.
const leastWithdrawn = 10

// withdrawWindow is how long a service that went counts for the limit, because a source reports one
// decision, such as the end of a namespace, in many updates.
const withdrawWindow = time.Minute

// recentWithdrawal is a service that went.
type recentWithdrawal struct {
	service *wire.EncodedService
	at      time.Time
}

// exceedsLimit reports whether too many services of the part go at once.
func (p *catalogPart) exceedsLimit(going int) bool {
	out := len(p.paused) + len(p.recentlyGone) + going
	return out >= leastWithdrawn && out*100 > p.MaxWithdraw*(len(p.items)+len(p.recentlyGone))
}

// pauseWithdrawals returns what changes in the part when the origin reports changed and gone, where
// a name in both counts as changed. If too many services go at once, they stay. Services that went
// within withdrawWindow then come back, because they were the beginning of the same withdrawal.
func (p *catalogPart) pauseWithdrawals(changed []*wire.EncodedService, gone []string) (now []*wire.EncodedService, going []string) {
	before := len(p.paused)
	seen := make(map[string]struct{}, len(changed)+len(gone))
	for _, s := range changed {
		seen[s.Name()] = struct{}{}
		delete(p.paused, s.Name())
		delete(p.recentlyGone, s.Name())
	}
	for _, name := range gone {
		_, twice := seen[name]
		_, paused := p.paused[name]
		if p.items[name] != nil && !twice && !paused {
			seen[name] = struct{}{}
			going = append(going, name)
		}
	}
	if len(going) > 0 && p.MaxWithdraw > 0 && !p.lapsed && p.shouldPause(going, time.Now()) { // nothing is published of what has lapsed
		changed, going = slices.Clone(changed), nil
		for _, d := range p.recentlyGone {
			changed = append(changed, d.service)
		}
		clear(p.recentlyGone)
	}
	if before > 0 && len(p.paused) == 0 {
		p.logLater(func(logger *slog.Logger) {
			logger.Info("the source has all services again whose withdrawal was paused")
		})
	}
	return changed, going
}

// shouldPause reports whether services stay that the origin has no more. If not, it records when
// they went.
func (p *catalogPart) shouldPause(going []string, now time.Time) bool {
	if p.exceedsLimit(len(going)) || now.Sub(p.pruned) > withdrawWindow {
		p.pruned = now
		maps.DeleteFunc(p.recentlyGone, func(_ string, d recentWithdrawal) bool { return now.Sub(d.at) > withdrawWindow })
	}
	if !p.exceedsLimit(len(going)) {
		for _, name := range going {
			p.recentlyGone[name] = recentWithdrawal{p.items[name].service, now}
		}
		return false
	}
	if len(p.paused) == 0 {
		n, all := len(p.recentlyGone)+len(going), len(p.items)+len(p.recentlyGone)
		p.logLater(func(logger *slog.Logger) {
			logger.Error("withdrawal paused: the source lost too many services at once; repair it, or confirm the withdrawal", "services", all, "paused", n)
		})
	}
	for _, name := range slices.AppendSeq(going, maps.Keys(p.recentlyGone)) {
		p.paused[name] = now
	}
	p.catalog.wakeRun()
	return true
}

// withdrawPaused withdraws the services whose withdrawal has been paused since a time or longer,
// and returns how many these are.
func (p *catalogPart) withdrawPaused(since time.Time, why string) int {
	var names []string
	for name, at := range p.paused {
		if !at.After(since) {
			names = append(names, name)
			delete(p.paused, name)
		}
	}
	if len(names) == 0 {
		return 0
	}
	p.applyChanges(nil, names, false)
	left := len(p.paused)
	p.logLater(func(logger *slog.Logger) {
		logger.Info("paused services withdrawn", "withdrawn", len(names), "paused", left, "reason", why)
	})
	return len(names)
}

// nextWithdrawal returns when the first paused withdrawal happens by itself, or zero for never. It
// is never while the origin is away, because then the origin does not confirm anything.
func (p *catalogPart) nextWithdrawal() time.Time {
	if len(p.paused) == 0 || p.away != nil || p.WithdrawAfter == 0 {
		return time.Time{}
	}
	oldest := slices.MinFunc(slices.Collect(maps.Values(p.paused)), time.Time.Compare)
	return oldest.Add(p.WithdrawAfter)
}

// withdrawDue withdraws what is due, and returns when the next is.
func (p *catalogPart) withdrawDue(now time.Time) time.Time {
	if due := p.nextWithdrawal(); due.IsZero() || now.Before(due) {
		return due
	}
	p.withdrawPaused(now.Add(-p.WithdrawAfter), "the source has not had them for "+p.WithdrawAfter.String())
	return p.nextWithdrawal()
}

// ConfirmWithdrawal withdraws the services of the source with that name whose withdrawal is paused,
// and returns how many these are.
func (c *Catalog) ConfirmWithdrawal(source string) int {
	c.mu.Lock()
	defer c.unlockAndLog()
	for _, p := range c.parts {
		if p.Name == source {
			return p.withdrawPaused(time.Now(), "confirmed")
		}
	}
	return 0
}
