package consumer

import (
	"math/rand/v2"
	"time"
)

// The bounds of the delay between two rounds of attempts. Hamlet, 'Error Codes':
// "can retry with an exponential backoff with a minimum delay of 1 second".
const (
	minDelay = time.Second
	maxDelay = 60 * time.Second

	// maxSlowDelay bounds the delay where somebody has to fix something before an
	// attempt can succeed, and where an attempt costs more than a refused connection.
	maxSlowDelay = 5 * time.Minute
)

// backoff spreads the retries of many consumers: a delay is a random duration
// between the minimum and a ceiling that doubles each time, up to a limit. The zero
// value is ready to use. It is our own because gRPC exports no more of its backoff than
// the parameters, and has no minimum.
type backoff struct{ ceiling time.Duration }

func (b *backoff) next(limit time.Duration) time.Duration {
	// The first ceiling is above the minimum, since all consumers of an owner lose
	// it at the same moment.
	b.ceiling = min(2*max(b.ceiling, minDelay), limit)
	return minDelay + rand.N(b.ceiling-minDelay+1) //nolint:gosec // jitter is no secret
}

func (b *backoff) reset() { b.ceiling = 0 }
