package mirror

import "time"

// renewInterval is the least time between two renewals for the sake of room that
// was freed: an owner that is at its limit and changes all the time must not be
// made to send its whole catalog all the time.
const renewInterval = time.Minute

// renewal is when and why an owner is subscribed to once more while its stream is
// well. What was refused is not kept, and an owner sends it only once on a stream.
type renewal struct {
	wanted bool      // by the caller, since the stream was opened
	last   time.Time // the last one, in the mirror's time
	began  bool      // and was not announced yet
}

// renew subscribes to the owner once more when that would bring what was refused.
// When it has to wait, it returns until when. It renews only while the catalog is
// complete: before that, the stream still brings what it brings. m.mu is held.
func (m *Mirror) renew(now time.Time) (at time.Time, waits bool) {
	if !m.renewal.wanted {
		if !m.catalog.Wanting() {
			return time.Time{}, false
		}
		if at := m.renewal.last.Add(renewInterval); now.Before(at) {
			return at, true
		}
	}
	if m.current == nil || !m.catalog.Renew(now) {
		return time.Time{}, false
	}
	m.renewal = renewal{last: now, began: true}
	m.current.consumer.Renew()
	return time.Time{}, false
}
