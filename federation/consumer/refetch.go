package consumer

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
)

// refetchInterval is the least time between two refetches for the sake of room that
// was freed: an owner that is at its limit and changes all the time must not be
// made to send its whole catalog all the time.
const refetchInterval = time.Minute

// refetch is when and why an owner is subscribed to once more while its stream is
// well. What was refused is not kept, and an owner sends it only once on a stream. The
// stream of a certificate that is about to expire is replaced by package stream alone.
type refetch struct {
	wanted   bool      // by the caller, since the stream was opened
	underWay bool      // the stream is about to be replaced
	began    bool      // and that was not announced yet
	last     time.Time // the last one, in the mirror's time
}

// opened notes that there is a new stream, which brings all that there is.
func (r *refetch) opened() { r.wanted, r.underWay = false, false }

// refetchDue returns when the owner has to be subscribed to once more, and false when
// that would bring nothing. It waits for the catalog to be complete: before that, the
// stream still brings what it brings. m.mu is held.
func (m *Mirror) refetchDue() (at time.Time, ok bool) {
	switch {
	case m.current == nil || m.refetch.underWay || m.catalog.Summary().State != catalog.Synced:
		return time.Time{}, false
	case m.refetch.wanted:
		return time.Time{}, true
	case m.catalog.Wanting():
		return m.refetch.last.Add(refetchInterval), true
	}
	return time.Time{}, false
}

// refetchIfDue subscribes to the owner once more if that is due. m.mu is held.
func (m *Mirror) refetchIfDue(now time.Time) {
	if at, ok := m.refetchDue(); !ok || at.After(now) {
		return
	}
	m.refetch = refetch{underWay: true, began: true, last: now}
	m.current.consumer.Refetch()
}
