package history

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// eventRate counts events of the last hour. The zero value has seen none.
type eventRate struct {
	seconds, minutes slidingWindow
	last             time.Time
}

// countEvent counts an event at now.
func (r *eventRate) countEvent(now time.Time) {
	r.last = now
	r.seconds.addEvent(now.Unix())
	r.minutes.addEvent(now.Unix() / 60)
}

// reportAt returns how many events there were in the minute and in the hour before now. The minute
// counts by seconds, and the hour by minutes.
func (r *eventRate) reportAt(now time.Time) status.EventRate {
	return status.EventRate{
		LastMinute: r.seconds.sumUntil(now.Unix()), LastHour: r.minutes.sumUntil(now.Unix() / 60), Last: r.last.UTC(),
	}
}

// slidingWindow counts events in the last 60 units of time. Each count names its unit, so that one of an
// earlier hour counts as none.
type slidingWindow [60]struct {
	unit  int64
	count int
}

func (w *slidingWindow) addEvent(unit int64) {
	at := &w[unit%int64(len(w))]
	if at.unit != unit {
		at.unit, at.count = unit, 0
	}
	at.count++
}

// sumUntil returns the sum of the units up to this one.
func (w *slidingWindow) sumUntil(unit int64) (n int) {
	for _, at := range w {
		if at.unit > unit-int64(len(w)) {
			n += at.count
		}
	}
	return n
}
