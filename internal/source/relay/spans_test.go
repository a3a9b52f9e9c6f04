package relay

import "time"

// span is a time in which something was so that what happens is noticed later.
type span struct {
	from, to time.Time // to is zero while it lasts
	what     what
}

// what is why something is noticed later.
type what int

const (
	hanging  what = iota // a tier is stopped
	silent               // a link swallows everything
	slow                 // a link delays everything
	renewing             // a stream is replaced, and what was on its way is lost with it
)

// spans are all of a run.
type spans []span

// over ends a span.
func (s spans) over(from time.Time, of what) {
	for i := range s {
		if s[i].from.Equal(from) && s[i].what == of && s[i].to.IsZero() {
			s[i].to = time.Now()
			return
		}
	}
}

// notice returns how long it may take in all until the last consumer notices what has
// happened at a time. A tier that was stopped since reads on as if nothing had happened
// when it goes on, until it notices after detect, and so do those that subscribe to it. Who
// is behind a link that is silent notices that. Each link delays what it carries; who
// replaces a stream hears of it from the next one.
func (s spans) notice(since, now time.Time, detect, delay time.Duration) (sum time.Duration) {
	for _, s := range s {
		to := s.to
		if to.IsZero() {
			to = now
		}
		switch {
		case s.what == hanging && !to.Add(detect).Before(since):
			from := s.from
			if from.Before(since) {
				from = since
			}
			sum += max(0, to.Sub(from)) + 2*detect
		case s.what == silent && !to.Before(since):
			sum += detect
		case (s.what == slow || s.what == renewing) && !to.Before(since):
			sum += delay
		}
	}
	return sum
}
