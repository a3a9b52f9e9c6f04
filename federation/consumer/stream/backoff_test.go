package stream

import (
	"testing"
	"time"
)

// A delay is anything from a second to a ceiling that doubles up to the limit, both
// included.
func TestBackoffNext(t *testing.T) {
	t.Parallel()
	var b backoff
	for _, seconds := range []int{2, 4, 8, 16, 32, 50, 50} {
		ceiling := time.Duration(seconds) * time.Second
		if got := b.next(50 * time.Second); got < time.Second || got > ceiling || b.ceiling != ceiling {
			t.Errorf("the delay is %v, the ceiling %v, want %v", got, b.ceiling, ceiling)
		}
	}
	b.reset()
	if got := b.next(maxSlowDelay); got < time.Second || got > 2*time.Second {
		t.Errorf("after a reset, the delay is %v", got)
	}
	seen := make(map[time.Duration]bool)
	for range 1000 {
		b.reset()
		seen[b.next(minDelay+1)] = true
	}
	if len(seen) != 2 || !seen[minDelay] || !seen[minDelay+1] {
		t.Errorf("the delays are %v", seen)
	}
	if maxDelay != time.Minute || maxSlowDelay != 5*time.Minute {
		t.Errorf("the limits are %v and %v", maxDelay, maxSlowDelay)
	}
}
