package spiffe

import (
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// prober asks CoreDNS for a name all the time.
type prober struct {
	w    *world
	stop chan struct{}
	done sync.WaitGroup

	// owned by the goroutine until it has ended
	asked int
	wrong []string // answers other than the right one, with the time of each
}

// probe begins to ask for web.
func (w *world) probe(t *testing.T) *prober {
	t.Helper()
	p := &prober{w: w, stop: make(chan struct{})}
	p.done.Go(func() {
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			p.asked++
			if got := w.coreDNS.Answer(t.Context(), web, dns.TypeA); got != webAnswer {
				p.wrong = append(p.wrong, time.Now().Format(time.TimeOnly)+" "+got)
			}
			select {
			case <-ticker.C:
			case <-p.stop:
				return
			}
		}
	})
	t.Cleanup(p.end) // before that of the programs
	return p
}

// end ends the queries. It may be called again.
func (p *prober) end() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.done.Wait()
}

// check ends the queries, and fails the test if an answer was wrong.
func (p *prober) check(t *testing.T) {
	t.Helper()
	p.end()
	if len(p.wrong) > 0 {
		t.Errorf("%d of %d answers were wrong; the first are %q", len(p.wrong), p.asked, p.wrong[:min(len(p.wrong), 5)])
	}
	t.Logf("%d queries were answered", p.asked)
}
