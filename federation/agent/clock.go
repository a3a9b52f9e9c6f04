package agent

import "time"

// Two clocks measure how long something takes. The wall-clock goes on while the
// machine is suspended, but can be set; the other one cannot be set, but stands
// still meanwhile. The agent takes the greater of the two measures, always:
//
//   - Retention is counted in an owner's own time, which is the wall-clock while
//     that is well. It never goes back, and never runs slower than the other
//     clock: when the wall-clock is set back, the owner's time stays ahead of it by
//     as much, and when it is set forward again, it catches up.
//   - A catalog that is restored was up at LastUp and written at Saved. Where the
//     wall-clock says that this is yet to come, it is behind, and the owner's time
//     goes on from there. What is saved is in the owner's time, so it is never
//     earlier than what was restored, plus the time that has passed since.
//   - A wall-clock that is set forward cannot be told from a suspension, and ages
//     the records of lost owners by as much, which errs on the safe side. A file
//     from a machine whose clock was ahead is believed: its catalog ages only while
//     the process runs, until the clock comes to that time.
//
// Silence is another matter: it is counted only while somebody listens, see
// listen.

// reading is both clocks at one moment.
type reading struct {
	wall time.Time     // without a monotonic reading
	ran  time.Duration // on the other clock, since some moment
}

// systemClock returns the clocks of the machine.
func systemClock() func() (wall time.Time, ran time.Duration) {
	start := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(start)
	}
}

const (
	// adjusted is how far the clocks may part between two readings without that
	// one of them was set or stood still: they are not read at the very same time.
	adjusted = time.Second

	// watchful is the longest sleep of the writer while a clock runs for an owner:
	// its timer does not know of a suspension, or of a wall-clock that is set.
	watchful = time.Second
)

// now reads the clocks, and carries what they say to the owners. It returns the
// wall-clock. The writer calls it before it does anything that depends on time.
func (a *Agent) now() time.Time {
	wall, ran := a.config.Clock()
	passed := ran - a.looked.ran
	ahead := wall.Sub(a.looked.wall) - passed // set forward, or suspended; negative: set back
	for _, o := range a.active {
		if ahead.Abs() >= adjusted {
			o.ahead = max(o.ahead-ahead, 0)
		}
		o.listen(wall, max(passed, passed+ahead))
	}
	a.looked = reading{wall, ran}
	return wall
}

// time is an owner's time when the wall-clock is at t.
func (o *owner) time(t time.Time) time.Time { return t.Add(o.ahead) }

// wall is the reverse of time; the zero time is no time.
func (o *owner) wall(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-o.ahead)
}

// since makes the owner's time go on from t where it is behind it.
func (o *owner) since(t, wall time.Time) {
	o.ahead = max(o.ahead, t.Sub(wall))
}

// A process that was stopped, suspended or starved finds what the owner has sent
// meanwhile unread. So while silence counts, the writer looks at the clock more
// often than every lapse; when it was longer, the silence so far is void.
const (
	lapseShare = 4 // of settle
	minLapse   = 250 * time.Millisecond
)

// lapse is the time between two readings of the clock for which it counts as
// silence that nothing came.
func lapse(settle time.Duration) time.Duration { return max(settle/lapseShare, minLapse) }

// listen voids the silence of the owner when the clock was not read for too long.
func (o *owner) listen(wall time.Time, passed time.Duration) {
	if settle, ok := o.catalog.Settling(); ok && passed > lapse(settle) {
		o.catalog.Paused(o.time(wall))
	}
}

// watch returns how long the writer may sleep for this owner.
func (o *owner) watch(now time.Time) time.Duration {
	wait := idle
	if at, ok := o.catalog.Deadline(); ok {
		wait = min(watchful, at.Sub(o.time(now)))
	}
	if settle, ok := o.catalog.Settling(); ok {
		wait = min(wait, lapse(settle)/2)
	}
	return wait
}
