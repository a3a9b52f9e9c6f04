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

// slidingWindow counts events in the last 60 units of time.
type slidingWindow struct {
	counts [60]int
	end    int64 // the unit of the newest count
}

// advanceTo makes a unit the newest one, and clears the counts of the units in between.
func (w *slidingWindow) advanceTo(unit int64) {
	for ; w.end < unit; w.end++ {
		if unit-w.end > int64(len(w.counts)) {
			w.end = unit - int64(len(w.counts))
		}
		w.counts[(w.end+1)%int64(len(w.counts))] = 0
	}
}

func (w *slidingWindow) addEvent(unit int64) {
	w.advanceTo(unit)
	w.counts[unit%int64(len(w.counts))]++
}

// sumUntil returns the sum of the units up to this one, and changes nothing.
func (w *slidingWindow) sumUntil(unit int64) int {
	n := 0
	for at := max(unit-int64(len(w.counts))+1, w.end-int64(len(w.counts))+1, 0); at <= min(unit, w.end); at++ {
		n += w.counts[at%int64(len(w.counts))]
	}
	return n
}
