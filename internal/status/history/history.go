// Package history reports on an owner that is followed: [ReportOwner] returns the state of its mirror as a
// report, and a [ServiceLog] keeps what happened lately to its services.
package history

import (
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

const (
	limit = 1000 // of the refusals and of the services that are gone; the oldest go

	maxName = 512 // octets of a name; the longest that package wire accepts is shorter
	maxText = 1024
)

// ServiceLog keeps what happened lately to the services of an owner, because its catalog forgets
// that: refusals, services that are gone, and the rate of updates. The mirror of the owner adds to
// it. It has at most limit refusals and limit services that are gone, of which the oldest are
// dropped, and bounds each text: so an owner cannot fill memory. It is safe for concurrent use, and
// none of its methods waits for more than a copy of the log. The zero value is empty.
type ServiceLog struct {
	mu       sync.Mutex                                    // guards the rest
	refusals *simplelru.LRU[string, status.RefusedService] // the newest of each service; nil: none yet
	gone     []status.GoneService                          // the newest is the last one
	updates  eventRate
}

// NotePublished adds the services that these changes remove, or move away from their fqdn.
func (l *ServiceLog) NotePublished(changes []catalog.Change, now time.Time) {
	var gone []*catalog.Change // the newest first; of a whole catalog only so many are remembered
	for i := len(changes) - 1; i >= 0 && len(gone) < limit; i-- {
		if departureCause(&changes[i]) != "" {
			gone = append(gone, &changes[i])
		}
	}
	if len(gone) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range slices.Backward(gone) {
		l.gone = append(l.gone, status.GoneService{
			At: now.UTC(), Service: truncateText(c.Name, maxName), FQDN: truncateText(c.Was.FQDN(), maxName), Cause: departureCause(c),
		})
	}
	l.gone = l.gone[max(0, len(l.gone)-limit):]
}

// departureCause returns why a change removes a service from its fqdn, or "".
func departureCause(c *catalog.Change) string {
	switch {
	case c.Kind() == catalog.Confirmed || c.Was.IsZero():
		return ""
	case c.Kind() == catalog.Gone:
		return c.Cause.String()
	case c.Packed.FQDN() != c.Was.FQDN():
		return "moved"
	}
	return ""
}

// NoteResponse records an accepted response, which ends the refusal of its service.
func (l *ServiceLog) NoteResponse(op wire.Operation, name string, now time.Time) {
	if op != wire.Upsert && op != wire.Delete {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.updates.countEvent(now)
	if l.refusals != nil {
		l.refusals.Remove(truncateText(name, maxName))
	}
}

// NoteRefusal records a refused response, in place of an earlier one for the same service.
func (l *ServiceLog) NoteRefusal(invalid *federation.InvalidError, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusals == nil {
		var err error
		if l.refusals, err = simplelru.NewLRU[string, status.RefusedService](limit, nil); err != nil {
			panic(err) // the limit is not positive
		}
	}
	service := truncateText(invalid.Service, maxName)
	l.refusals.Add(service, status.RefusedService{
		At: now.UTC(), Service: service, FQDN: truncateText(invalid.FQDN, maxName),
		Field: truncateText(invalid.Field, maxText), Reason: string(invalid.Reason), Rule: truncateText(invalid.Rule, maxText),
	})
}

// Refusals returns the refused services, newest first.
func (l *ServiceLog) Refusals() (all []status.RefusedService) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusals != nil {
		all = l.refusals.Values()
		slices.Reverse(all)
	}
	return all
}

// GoneServices returns the services that are gone, newest first.
func (l *ServiceLog) GoneServices() []status.GoneService {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.gone)
	slices.Reverse(all)
	return all
}

// PartOf returns what an owner has to do with a name: how the owner is, and of the services that are meant those
// that were refused and those that are gone.
func (l *ServiceLog) PartOf(u *status.FollowedOwner, isMeant func(service, fqdn string) bool) status.OwnerPart {
	p := status.OwnerPart{
		ID: u.ID, State: u.State, Known: u.Known, Since: u.Since, Expires: u.Expires, Failure: u.Failure, Remedy: u.Remedy, NextAttempt: u.NextAttempt,
	}
	for _, r := range l.Refusals() {
		if isMeant(r.Service, r.FQDN) {
			p.Refusals = append(p.Refusals, r)
		}
	}
	for _, g := range l.GoneServices() {
		if isMeant(g.Service, g.FQDN) {
			p.Gone = append(p.Gone, g)
		}
	}
	return p
}

// UpdateRate returns how often the owner's services change.
func (l *ServiceLog) UpdateRate(now time.Time) status.EventRate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.updates.reportAt(now)
}

// truncateText returns a copy of a text, cut to so many octets at most.
func truncateText(s string, most int) string {
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s = s[:most]
	}
	return strings.Clone(s)
}
