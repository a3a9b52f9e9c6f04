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

// renewal says when a stream is ended so that another one takes its place: when it is asked for
// by Renew, when the credentials of this side have changed, and shortly before a certificate
// expires. TLS verifies a peer in the handshake only, so the connection ends with the
// certificates that were shown in it (see package mtls).
type renewal struct {
	wanted  bool            // as soon as the catalog is complete: what the stream brings would be stale meanwhile
	changed <-chan struct{} // closed when the credentials of this side change
	opened  time.Time
	expires time.Time   // when the stream is ended, of the clock by which certificates expire; zero: never
	timer   *time.Timer // has due looked at again
}

// newRenewal returns that of a stream which is open now. An owner that shows the same certificate
// as on the stream before has not renewed it yet: this one lasts for as long as the connection.
func (c *Consumer) newRenewal(conn *connection, changed <-chan struct{}) *renewal {
	r := &renewal{changed: changed, opened: time.Now()}
	if expiry := conn.expires(); !expiry.Equal(c.expiry) {
		c.expiry = expiry
		if !expiry.IsZero() {
			r.expires = expiry.Add(-lead(time.Until(expiry)))
		}
	}
	r.timer = time.NewTimer(minAge)
	return r
}

// lead returns how long before a certificate expires, which is valid for so long, its stream is
// ended.
func lead(left time.Duration) time.Duration {
	least := max(min(lastCall, left/lastCallShare), 0)
	return least + rand.N(least+1) //nolint:gosec // jitter
}

// due reports whether the stream is to be ended now, or else has the timer look at it again.
func (r *renewal) due(sink Sink) bool {
	if age := time.Since(r.opened); age < minAge {
		r.timer.Reset(minAge - age)
		return false
	}
	wait := maxSleep
	if !r.expires.IsZero() {
		wait = min(wait, time.Until(r.expires))
	}
	if wait <= 0 || r.wanted && sink.Complete() {
		return true
	}
	r.timer.Reset(wait)
	return false
}

func (r *renewal) stop() { r.timer.Stop() }
