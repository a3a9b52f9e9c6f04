// Package history says what there is to know of an owner that is followed: the state of
// its mirror as a report, and what happened lately to its services.
//
// Only packages of this module import it: it is not a stable API.
package history

import (
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/recent"
)

// Log is what happened lately to the services of an owner. It is safe for concurrent use,
// and none of its methods waits for more than a copy of it. The zero value is empty.
type Log struct {
	mu      sync.Mutex // guards the rest
	memory  recent.Memory
	updates recent.Rate
}

// Published notes the services that are gone with these changes, or from their fqdn.
func (l *Log) Published(changes []catalog.Change, now time.Time) {
	// Of a whole catalog only so many would be remembered.
	first, n := len(changes), 0
	for first > 0 && n < recent.Limit {
		first--
		if left(&changes[first]) != "" {
			n++
		}
	}
	if n == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := first; i < len(changes); i++ {
		if cause := left(&changes[i]); cause != "" {
			l.memory.Gone(status.Gone{At: now.UTC(), Service: changes[i].Name, FQDN: changes[i].Was.FQDN(), Cause: cause})
		}
	}
}

// left returns why a change takes a service from its fqdn, or "".
func left(c *catalog.Change) string {
	switch {
	case c.Op() == catalog.Confirmed || c.Was.IsZero():
		return ""
	case c.Op() == catalog.Gone:
		return c.Cause.String()
	case c.Packed.FQDN() != c.Was.FQDN():
		return "moved"
	}
	return ""
}

// Responded notes a response that was accepted. It ends the refusal of the service.
func (l *Log) Responded(op federation.Operation, name string, now time.Time) {
	if op != federation.Upsert && op != federation.Delete {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.updates.Count(1, now)
	l.memory.Accepted("", name)
}

// Refused notes a response that was refused.
func (l *Log) Refused(invalid *federation.InvalidError, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.memory.Refused(status.Refusal{
		At: now.UTC(), Service: invalid.Service, FQDN: invalid.FQDN, Field: invalid.Field, Reason: string(invalid.Reason), Rule: invalid.Rule,
	})
}

// Refusals returns what is refused, newest first.
func (l *Log) Refusals() []status.Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory.AllRefusals()
}

// Gone returns the services that are gone, newest first.
func (l *Log) Gone() []status.Gone {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory.AllGone()
}

// Updates returns how often the owner's services change.
func (l *Log) Updates(now time.Time) status.Rate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.updates.Report(now)
}
