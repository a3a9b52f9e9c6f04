package stream

import (
	"math/rand/v2"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
)

// The bounds of the delay between two attempts at an address. Hamlet, 'Error Codes':
// "can retry with an exponential backoff with a minimum delay of 1 second".
const (
	minDelay = time.Second
	maxDelay = 60 * time.Second

	// maxSlowDelay bounds the delay where somebody has to fix something before an
	// attempt can succeed, and where an attempt costs more than a refused connection.
	maxSlowDelay = 5 * time.Minute

	// maxQuickDelay bounds the delay while connections are refused at once, for as long
	// as most restarts and deployments take; after quickFor, maxLaterDelay does. Where the
	// owner says itself when to come back, until then only that counts.
	maxQuickDelay = 5 * time.Second
	maxLaterDelay = 15 * time.Second
	quickFor      = 10 * time.Minute
)

// retryBackoff spreads the retries of many consumers: a delay is a random duration between the
// minimum and a ceiling that doubles each time, up to a limit. The zero value is ready to use. The
// code is our own because gRPC exports only the parameters of its backoff, and has no minimum.
type retryBackoff struct{ ceiling time.Duration }

// nextDelay returns the delay before the next attempt, at most limit, and doubles the ceiling.
func (b *retryBackoff) nextDelay(limit time.Duration) time.Duration {
	// The first ceiling is above the minimum, since all consumers of an owner lose
	// it at the same moment.
	b.ceiling = min(2*max(b.ceiling, minDelay), limit)
	return minDelay + rand.N(b.ceiling-minDelay+1) //nolint:gosec // jitter is no secret
}

func (b *retryBackoff) reset() { b.ceiling = 0 }

// replica is one of the addresses of the owner, and says when that address is tried next. Only the
// goroutine of Run changes a replica: noteEnd after an attempt, and the methods below it when
// credentials change or somebody asks for an attempt. A replica keeps no history of its attempts,
// because the next delay depends only on the ceiling and on how the last attempt ended.
type replica struct {
	address string

	patience time.Duration // for how long the replica may send nothing while there is another replica
	wait     retryBackoff
	refusing time.Time // since when the replica has refused each connection or stream at once; zero: it does not
	failed   time.Time // when the last attempt ended; zero: there was none
	due      time.Time // when the next attempt is
	rests    time.Time // until when the owner has asked not to be tried
	fixable  bool      // new credentials may help
	parked   bool      // only new credentials or a time that the owner gave make an attempt worthwhile
	final    bool      // the replica is parked, and no time makes an attempt due
}

// noteEnd records how an attempt has ended, and returns the delay before the next attempt.
func (r *replica) noteEnd(e sessionError) time.Duration {
	now, limit := time.Now(), maxDelay
	r.parked = e.verdict == park
	r.final = r.parked && e.after == 0
	r.fixable = r.parked || e.verdict == slow
	switch {
	case e.verdict != quick:
		r.refusing = time.Time{}
	case r.refusing.IsZero():
		r.refusing = now
	}
	switch {
	case e.verdict == slow:
		limit = maxSlowDelay
	case e.verdict == quick && now.Sub(r.refusing) < quickFor && e.after > 0:
		limit = minDelay
	case e.verdict == quick && now.Sub(r.refusing) < catalog.Grace:
		limit = 2 * minDelay // what was lost a moment ago is back in time if that is noticed
	case e.verdict == quick && now.Sub(r.refusing) < quickFor:
		limit = maxQuickDelay
	case e.verdict == quick:
		limit = maxLaterDelay
	case e.wasSilent():
		// Owners that are merely slow must not be given up again and again.
		r.patience = min(2*r.patience, maxDelay)
	}
	if e.after > 0 {
		// Those who are told the same do not come back together.
		r.rests = now.Add(e.after + rand.N(e.after/4+1)) //nolint:gosec // jitter is no secret
	}
	delay := r.wait.nextDelay(limit)
	r.failed, r.due = now, now.Add(delay)
	return delay
}

// resetBackoff starts the backoff anew, because an address of the owner was of use.
func (r *replica) resetBackoff() {
	r.wait.reset()
	r.patience, r.refusing, r.due = firstPatience, time.Time{}, time.Time{}
}

// retryFixable makes an attempt due, as hurryAttempt does, if new credentials may help.
func (r *replica) retryFixable() {
	if r.fixable {
		r.fixable = false
		r.hurryAttempt()
	}
}

// hurryAttempt makes an attempt due now, or minDelay after the last attempt ended, whatever the owner
// has asked for.
func (r *replica) hurryAttempt() {
	r.parked, r.final, r.rests, r.due = false, false, time.Time{}, time.Time{}
	if !r.failed.IsZero() {
		r.due = r.failed.Add(minDelay)
	}
}

// nextAttempt returns when the next attempt is due. For a final replica the time means nothing.
func (r *replica) nextAttempt() time.Time {
	if r.due.Before(r.rests) {
		return r.rests
	}
	return r.due
}
