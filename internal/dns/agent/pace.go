package agent

import (
	"sync/atomic"
	"time"
)

// importPacer lets imports give way to queries. A goroutine that has work for milliseconds keeps its
// processor from the network meanwhile, and where all processors have such work, a query waits
// for the scheduler to take one away. So while queries come, an import works a little and then
// pauses: it takes longer then, and no longer than before where nobody asks.
type importPacer struct {
	asked atomic.Bool // since an import looked last
}

// noteQuery notes that a query came. Mostly it only reads what all processors share.
func (p *importPacer) noteQuery() {
	if !p.asked.Load() {
		p.asked.Store(true)
	}
}

const (
	// stint is how long an import works before it looks whether queries came.
	stint = time.Millisecond

	// pauses is how much longer than its work an import pauses. What works for it beside, such as
	// the connection, pauses with it.
	pauses = 2

	// longest is the longest pause: who ends an import waits for it.
	longest = 50 * time.Millisecond

	// quiet is how long no query came where nobody asks. It is far longer than what a query may
	// wait for a processor before it is noticed.
	quiet = 100 * time.Millisecond
)

// importWork is that of one import, on one goroutine.
type importWork struct {
	*importPacer

	owed  time.Duration // pauses that it has not had, or below 0 has had in advance
	ended time.Time     // when it worked last
	heard time.Time     // when it saw last that queries came
}

// pauseAfter says that the import has worked for so long until now. It pauses if that is enough and
// queries came meanwhile, and reports whether it did.
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
