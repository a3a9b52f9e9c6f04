package history

import (
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// rate counts events of the last hour. The zero value has seen none.
type rate struct {
	seconds, minutes window
	last             time.Time
}

// count counts an event at now.
func (r *rate) count(now time.Time) {
	r.last = now
	r.seconds.add(now.Unix())
	r.minutes.add(now.Unix() / 60)
}

// report returns how many events there were in the minute and in the hour before now, to
// the second and to the minute.
func (r *rate) report(now time.Time) status.Rate {
	return status.Rate{
		LastMinute: r.seconds.sum(now.Unix()), LastHour: r.minutes.sum(now.Unix() / 60), Last: r.last.UTC(),
	}
}

// window counts events in the last 60 units of time.
type window struct {
	counts [60]int
	end    int64 // the unit of the newest count
}

// advance makes a unit the newest one.
func (w *window) advance(unit int64) {
	for ; w.end < unit; w.end++ {
		if unit-w.end > int64(len(w.counts)) {
			w.end = unit - int64(len(w.counts))
		}
		w.counts[(w.end+1)%int64(len(w.counts))] = 0
	}
}

func (w *window) add(unit int64) {
	w.advance(unit)
	w.counts[unit%int64(len(w.counts))]++
}

// sum returns the count of the units up to this one, without a change.
func (w *window) sum(unit int64) int {
	n := 0
	for at := max(unit-int64(len(w.counts))+1, w.end-int64(len(w.counts))+1, 0); at <= min(unit, w.end); at++ {
		n += w.counts[at%int64(len(w.counts))]
	}
	return n
}
