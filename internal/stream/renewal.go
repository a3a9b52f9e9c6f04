package stream

import (
	"math/rand/v2"
	"time"
)

const (
	// minAge is for how long a stream is open at least before another one takes its place.
	minAge = time.Second

	// maxSleep is how long no clock is looked at before a certificate expires: the one by which
	// it does may be set.
	maxSleep = time.Hour

	// lastCall is how long before a certificate expires a stream is ended, or up to twice as
	// long: an owner shows one certificate to all of its consumers, which should not come at once.
	// Of a certificate that is valid for less than eight times as long, it is that part.
	lastCall      = time.Minute
	lastCallShare = 8
)

// renewalSchedule says when a stream is ended so that another one takes its place: when it is asked for
// by RenewStream, when the credentials of this side have changed, and shortly before a certificate
// expires. TLS verifies a peer in the handshake only, so the connection ends with the
// certificates that were shown in it (see package mtls).
type renewalSchedule struct {
	wanted  bool            // as soon as the catalog is complete: what the stream brings would be stale meanwhile
	changed <-chan struct{} // closed when the credentials of this side change
	opened  time.Time
	expires time.Time   // when the stream is ended, of the clock by which certificates expire; zero: never
	timer   *time.Timer // has isDue looked at again
}

// newRenewalSchedule returns that of a stream which is open now. An owner that shows the same certificate
// as on the stream before has not renewed it yet: this one lasts for as long as the connection.
func (c *Consumer) newRenewalSchedule(conn *loggedConn, changed <-chan struct{}) *renewalSchedule {
	r := &renewalSchedule{changed: changed, opened: time.Now()}
	if expiry := conn.expiryTime(); !expiry.Equal(c.expiry) {
		c.expiry = expiry
		if !expiry.IsZero() {
			r.expires = expiry.Add(-leadTime(time.Until(expiry)))
		}
	}
	r.timer = time.NewTimer(minAge)
	return r
}

// leadTime returns how long before a certificate expires, which is valid for so long, its stream is
// ended.
func leadTime(left time.Duration) time.Duration {
	least := max(min(lastCall, left/lastCallShare), 0)
	return least + rand.N(least+1) //nolint:gosec // jitter
}

// isDue reports whether the stream is to be ended now, or else has the timer look at it again.
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

func (r *renewalSchedule) stopTimer() { r.timer.Stop() }
