package consumer

import "time"

// renewInterval is the least time between two streams that are opened because room was freed: an
// owner that is at its limit and changes all the time must not be subscribed to all the time.
const renewInterval = time.Minute

// renewDue returns when another stream replaces the open one, because there is room now for
// services that were refused on it. The mirror has not kept these services, and an owner sends them
// only once on a stream. It returns false when another stream would bring nothing, and before the
// catalog is complete. The caller holds m.mu.
func (m *Mirror) renewDue() (at time.Time, ok bool) {
	ok = m.current != nil && m.next == nil && m.catalog.IsComplete() && m.catalog.HasFreedRoom()
	return m.renewed.Add(renewInterval), ok
}
