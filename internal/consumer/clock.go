package consumer

import "time"

// mirrorClock is the time of one mirror, made of two clocks of the machine. The wall clock goes on
// while the machine is suspended, but can be set; the other clock cannot be set, but stands
// still during a suspension. A mirror always takes the greater of the two measures, so that no record
// outlives its retention. Mirror.mu guards a mirrorClock, and atLeast and readClocks change it.
//
//   - Retention is counted in the mirror's own time, which is the wall clock while
//     that is right. The mirror's time never goes back, and never runs slower than the other
//     clock: when the wall clock is set back, the mirror's time stays ahead of it by
//     as much, and when the wall clock is set forward again, it catches up.
//   - A catalog that is restored was up at LastUp and written at Saved. If these times are
//     after the wall clock, the wall clock is behind, and the mirror's time goes on from
//     them. The mirror saves its own time, which is never earlier than the restored one
//     plus the time that has passed since.
//   - A wall clock that is set forward cannot be told from a suspension. The services of
//     a lost owner age by as much, which errs on the safe side. A file
//     from a machine whose clock was ahead is believed: its catalog ages only while
//     the process runs, until the clock comes to that time.
//
// Silence is different, because it counts only while the mirror listens: see currentTime.
type mirrorClock struct {
	read    func() (wall time.Time, elapsed time.Duration)
	wallAt  time.Time     // of the last reading
	elapsed time.Duration // of the last reading
	ahead   time.Duration // of the mirror's time before the wall clock
}

// systemClock returns the clocks of the machine.
func systemClock() func() (wall time.Time, elapsed time.Duration) {
	start := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(start)
	}
}

const (
	// adjusted is how far the clocks may part between two readings without one of
	// them having been set or stood still: they are not read at the very same time.
	adjusted = time.Second

	// maxSleep is the longest sleep of keepTime while something is due at a time of
	// the clock: its timer does not know of a suspension, or of a wall clock that
	// is set.
	maxSleep = time.Second
)

// readClocks reads the clocks, and returns the mirror's time, and how much of it has passed since
// the last reading.
func (c *mirrorClock) readClocks() (now time.Time, passed time.Duration) {
	wall, elapsed := c.read()
	if !c.wallAt.IsZero() {
		passed = elapsed - c.elapsed
		jump := wall.Sub(c.wallAt) - passed // set forward, or suspended; negative: set back
		if jump.Abs() >= adjusted {
			c.ahead = max(c.ahead-jump, 0)
		}
		passed = max(passed, passed+jump)
	}
	c.wallAt, c.elapsed = wall, elapsed
	return wall.Add(c.ahead), passed
}

// wallTime returns what the wall clock shows at the mirror's time t. A zero t stays zero.
func (c *mirrorClock) wallTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-c.ahead)
}

// atLeast moves the mirror's time to t, if it is behind.
func (c *mirrorClock) atLeast(t time.Time) {
	c.ahead = max(c.ahead, t.Sub(c.wallAt))
}

// A process that was stopped, suspended or starved finds unread what the owner has
// sent meanwhile. So while silence counts, keepTime reads the clock more often than
// every maxLapse; after a longer gap, the silence so far is void.
const (
	lapseShare = 4 // of settle
	minLapse   = 250 * time.Millisecond
)

// maxLapse returns the longest time between two readings of the clock in which the owner counts as
// silent.
func maxLapse(settle time.Duration) time.Duration { return max(settle/lapseShare, minLapse) }

// currentTime returns the mirror's time. When the clock was not read for too long, currentTime
// restarts the silence of the owner. The caller holds m.mu.
func (m *Mirror) currentTime() time.Time {
	now, passed := m.clock.readClocks()
	if settle, ok := m.catalog.SilenceNeeded(); ok && passed > maxLapse(settle) {
		m.catalog.RestartSilence(now)
	}
	return now
}
