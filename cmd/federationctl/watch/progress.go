package watch

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/watch/tty"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// progressInterval is how often the progress is written. A download that is shorter needs
// none.
const progressInterval = 500 * time.Millisecond

// progress writes to a terminal how much of the first catalog has come: one line, which is
// written over, and removed for anything else.
type progress struct {
	// Read-only.
	address  string
	terminal io.Writer
	width    func() int // of the terminal; 0: it is not known

	services atomic.Int64 // in the catalog
	complete atomic.Bool  // and that is all

	mu    sync.Mutex // guards the terminal and the field below
	shown bool       // the cursor is at the end of a line of progress
}

func newProgress(address string, terminal *os.File) *progress {
	return &progress{address: printable.Text(address), terminal: terminal, width: func() int {
		width, _, _ := term.GetSize(int(terminal.Fd()))
		return width
	}}
}

// count takes the state of the catalog.
func (p *progress) count(s *consumer.Status) {
	p.services.Store(int64(s.Services))
	p.complete.Store(s.State == catalog.Synced)
}

// beside is an io.Writer for lines that may be on the terminal of the progress.
type beside struct {
	*progress

	out io.Writer
}

// Write removes the progress first.
func (b beside) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	return b.out.Write(line)
}

// run writes the progress until the catalog is complete or ctx ends, and removes it then.
func (p *progress) run(ctx context.Context) error {
	begun := time.Now()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if !p.complete.Load() {
				p.tell(time.Since(begun))
				continue
			}
		case <-ctx.Done():
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clear()
		return nil
	}
}

func (p *progress) tell(after time.Duration) {
	text := fmt.Sprintf("connecting to %s, %d s", p.address, after/time.Second)
	if n := p.services.Load(); n > 0 {
		text = fmt.Sprintf("%s from %s, %d s", status.Count(int(n), "service"), p.address, after/time.Second)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown = true
	_, _ = io.WriteString(p.terminal, tty.Over(text, p.width()))
}

func (p *progress) clear() {
	if p.shown {
		_, _ = io.WriteString(p.terminal, tty.Over("", 0))
		p.shown = false
	}
}
