package consumer

import "time"

// renewInterval is the least time between two streams for the sake of room that was freed: an
// owner that is at its limit and changes all the time must not be subscribed to all the time.
const renewInterval = time.Minute

// renewal is when the open stream gives its place to another one, as what was refused on it would
// be accepted now. It is not kept, and an owner sends it only once on a stream.
type renewal struct {
	wanted bool      // by the caller, since the stream was opened
	last   time.Time // the last one for the sake of room, in the mirror's time
}

// renewDue returns when the owner is to be subscribed to once more, and false when that would
// bring nothing. It waits for the catalog to be complete: before that, the stream still brings
// what it brings. m.mu is held.
func (m *Mirror) renewDue() (at time.Time, ok bool) {
	switch {
	case m.current == nil || !m.catalog.Complete():
		return time.Time{}, false
	case m.renewal.wanted:
		return time.Time{}, true
	case m.catalog.Wanting():
		return m.renewal.last.Add(renewInterval), true
	}
	return time.Time{}, false
}

// renewIfDue has another stream take the place of the open one if that is due. m.mu is held.
func (m *Mirror) renewIfDue(now time.Time) {
	if at, ok := m.renewDue(); ok && !at.After(now) {
		m.renewal = renewal{last: now}
		m.current.consumer.Renew()
	}
}
