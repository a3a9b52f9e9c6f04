package agent

import (
	"sync/atomic"
	"time"
)

// importPacer lets imports give way to queries. A goroutine that has work for milliseconds keeps
// its processor from the network meanwhile. Where all processors have such work, a query waits
// until the scheduler takes one away. So while queries come, an import works a little and then
// pauses. It takes longer then, and no longer than before where no queries come. The only state is
// whether a query came: queries set it and imports clear it. Queries are not counted, because one
// is enough to pause for.
type importPacer struct {
	asked atomic.Bool // a query came since an import looked last
}

// noteQuery records that a query came. It mostly reads, so that processors can share the memory.
func (p *importPacer) noteQuery() {
	if !p.asked.Load() {
		p.asked.Store(true)
	}
}

const (
	// stint is how long an import works before it looks whether queries came.
	stint = time.Millisecond

	// pauses is how much longer than its work an import pauses. Other goroutines of an import, such as
	// the connection's, pause with it.
	pauses = 2

	// longest is the longest pause, because whoever ends an import waits for it.
	longest = 50 * time.Millisecond

	// quiet is the time without a query after which nobody asks. It is far longer than a query may
	// wait for a processor before it is noticed.
	quiet = 100 * time.Millisecond
)

// importWork is one import, on one goroutine.
type importWork struct {
	*importPacer

	owed  time.Duration // pauses that the import has not had; below 0: that it has had in advance
	ended time.Time     // when the import worked last
	heard time.Time     // when the import last found that queries came
}

// pauseAfter records that the import has worked for so long until now. It pauses if that is enough
// and queries came meanwhile, and reports whether it did.
func (w *importWork) pauseAfter(worked time.Duration) bool {
	now := time.Now()
	if waited := now.Sub(w.ended) - worked; waited > 0 { // for more to do: a pause, too
		w.owed -= min(waited, max(w.owed, 0))
	}
	w.ended = now
	if w.owed += pauses * worked; w.owed < pauses*stint {
		return false
	}
	if w.asked.Swap(false) {
		w.heard = now
	}
	if now.Sub(w.heard) > quiet {
		w.owed = 0
		return false
	}
	w.ended = <-time.NewTimer(min(w.owed, longest)).C
	w.owed -= w.ended.Sub(now)
	return true
}
