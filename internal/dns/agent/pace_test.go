package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPace has an import that works for so long and then waits for more to do, a hundred
// times, with queries all the while or without.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		asked       bool
		work, idle  time.Duration
		least, most time.Duration // all pauses together
	}{
		"nobody asks":                   {false, 10 * time.Millisecond, 0, 0, 0},
		"long pieces":                   {true, 10 * time.Millisecond, 0, 2 * time.Second, 2 * time.Second},
		"short pieces":                  {true, 100 * time.Microsecond, 0, 18 * time.Millisecond, 20 * time.Millisecond},
		"as much idle as work":          {true, 10 * time.Millisecond, 10 * time.Millisecond, 2 * time.Second, 2 * time.Second},
		"updates now and then":          {true, 100 * time.Microsecond, time.Millisecond, 0, 0},
		"nearly as many as can be done": {true, 900 * time.Microsecond, 450 * time.Microsecond, 130 * time.Millisecond, 180 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := importWork{importPacer: new(importPacer)}
				begin := time.Now()
				for range 100 {
					if tt.asked {
						w.noteQuery()
					}
					time.Sleep(tt.work)
					w.pauseAfter(tt.work)
					time.Sleep(tt.idle)
				}
				if paused := time.Since(begin) - 100*(tt.work+tt.idle); paused < tt.least || paused > tt.most {
					t.Errorf("all pauses are %v, want %v to %v", paused, tt.least, tt.most)
				}
			})
		})
	}
}
