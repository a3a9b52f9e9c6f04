package consumer

import "time"

// renewInterval is the least time between two streams for the sake of room that was freed: an
// owner that is at its limit and changes all the time must not be subscribed to all the time.
const renewInterval = time.Minute

// renewDue returns when the open stream gives its place to another one, as there is room now for what
// was refused on it: that is not kept, and an owner sends it only once on a stream. It is false when
// that would bring nothing. It waits for the catalog to be complete: before that, the stream still
// brings what it brings. m.mu is held.
func (m *Mirror) renewDue() (at time.Time, ok bool) {
	ok = m.current != nil && m.next == nil && m.catalog.IsComplete() && m.catalog.HasFreedRoom()
	return m.renewed.Add(renewInterval), ok
}
