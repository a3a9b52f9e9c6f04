package consumer

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
)

// renewInterval is the least time between two renewals for the sake of room that
// was freed: an owner that is at its limit and changes all the time must not be
// made to send its whole catalog all the time.
const renewInterval = time.Minute

// renewal is when and why an owner is subscribed to once more while its stream is
// well. What was refused is not kept, and an owner sends it only once on a stream.
type renewal struct {
	wanted   bool      // by the caller, since the stream was opened
	underWay bool      // the stream is about to be replaced
	began    bool      // and that was not announced yet
	last     time.Time // the last one, in the mirror's time
}

// opened notes that there is a new stream, which brings all that there is.
func (r *renewal) opened() { r.wanted, r.underWay = false, false }

// renewalDue returns when the owner has to be subscribed to once more, and false when
// that would bring nothing. It waits for the catalog to be complete: before that, the
// stream still brings what it brings. m.mu is held.
func (m *Mirror) renewalDue() (at time.Time, ok bool) {
	switch {
	case m.current == nil || m.renewal.underWay || m.catalog.Status().State != catalog.Synced:
		return time.Time{}, false
	case m.renewal.wanted:
		return time.Time{}, true
	case m.catalog.Wanting():
		return m.renewal.last.Add(renewInterval), true
	}
	return time.Time{}, false
}

// renew subscribes to the owner once more if that is due. m.mu is held.
func (m *Mirror) renew(now time.Time) {
	if at, ok := m.renewalDue(); !ok || at.After(now) {
		return
	}
	m.renewal = renewal{underWay: true, began: true, last: now}
	m.catalog.Renew(now)
	m.current.consumer.Renew()
}
