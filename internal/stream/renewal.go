package stream

import (
	"math/rand/v2"
	"time"
)

const (
	// minAge is for how long a stream is open at least before another one replaces it.
	minAge = time.Second

	// maxSleep is the longest time between two looks at the clock before a certificate expires,
	// because somebody may set that clock.
	maxSleep = time.Hour

	// lastCall is how long before a certificate expires a stream is ended, or up to twice as
	// long: an owner shows one certificate to all of its consumers, which should not come at once.
	// Of a certificate that is valid for less than eight times as long, it is that part.
	lastCall      = time.Minute
	lastCallShare = 8
)

// renewalSchedule says when this side ends one stream so that another one replaces it: when
// RenewStream asks for that, when the credentials of this side have changed, and shortly before a
// certificate expires. TLS verifies a peer in the handshake only, so a connection ends with the
// certificates that were shown in it (see package mtls). Only the goroutine of Run uses a schedule,
// which ends with its stream.
type renewalSchedule struct {
	wanted  bool            // end the stream as soon as the catalog is complete, because services that have yet to come would be stale meanwhile
	changed <-chan struct{} // closed when the credentials of this side change
	opened  time.Time
	expires time.Time   // when the stream is ended because of a certificate; zero: never
	timer   *time.Timer // fires when isDue is to be called again
}

// newRenewalSchedule returns the schedule of a stream that has just been opened. An owner that
// shows the same certificate as on the stream before has not renewed it yet: then the stream lasts
// for as long as the connection.
func (c *Consumer) newRenewalSchedule(conn *loggedConn, changed <-chan struct{}) *renewalSchedule {
	r := &renewalSchedule{changed: changed, opened: time.Now()}
	if expiry := conn.Expiry(); !expiry.Equal(c.expiry) {
		c.expiry = expiry
		if !expiry.IsZero() {
			r.expires = expiry.Add(-leadTime(time.Until(expiry)))
		}
	}
	r.timer = time.NewTimer(minAge)
	return r
}

// leadTime returns how long before the end of a certificate its stream is ended. Left is for how
// long the certificate is still valid.
func leadTime(left time.Duration) time.Duration {
	least := max(min(lastCall, left/lastCallShare), 0)
	return least + rand.N(least+1) //nolint:gosec // jitter
}

// isDue reports whether the stream is to be ended now. Otherwise it sets the timer for the next
// call.
func (r *renewalSchedule) isDue(sink Sink) bool {
	if age := time.Since(r.opened); age < minAge {
		r.timer.Reset(minAge - age)
		return false
	}
	wait := maxSleep
	if !r.expires.IsZero() {
		wait = min(wait, time.Until(r.expires))
	}
	if wait <= 0 || r.wanted && sink.IsComplete() {
		return true
	}
	r.timer.Reset(wait)
	return false
}
