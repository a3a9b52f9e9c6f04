package watch

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/federation/mirror"
)

// progressInterval is how often the progress is written. A download that is shorter
// needs none.
const progressInterval = 500 * time.Millisecond

// progress writes to a terminal how far a download is, while the output goes
// elsewhere. It is a view around the one that makes the output, and an io.Writer for
// other messages to the same terminal.
type progress struct {
	// Read-only.
	view

	address  string
	terminal *os.File

	services atomic.Int64 // in the catalog

	mu    sync.Mutex // guards the terminal and the field below
	shown bool       // the cursor is at the end of a line of progress
}

func newProgress(address string, terminal *os.File, output view) *progress {
	return &progress{view: output, address: board.Plain(address), terminal: terminal}
}

// show counts the services.
func (p *progress) show(c mirror.Changes) error {
	p.services.Store(int64(c.Status.Services))
	return p.view.show(c)
}

// Write replaces the progress by a message.
func (p *progress) Write(message []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.terminal.Write(message)
}

// run writes the progress until ctx ends, and removes it then.
func (p *progress) run(ctx context.Context) error {
	begun := time.Now()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.tell(time.Since(begun))
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			p.clear()
			return nil
		}
	}
}

func (p *progress) tell(after time.Duration) {
	text := fmt.Sprintf("connecting to %s, %d s", p.address, after/time.Second)
	if n := p.services.Load(); n > 0 {
		text = fmt.Sprintf("%d services from %s, %d s", n, p.address, after/time.Second)
	}
	if width, _, err := term.GetSize(int(p.terminal.Fd())); err == nil && width > 0 && len(text) >= width {
		text = text[:width-1] // a line that wraps cannot be cleared
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown = true
	_, _ = p.terminal.WriteString("\r" + text + clearLine)
}

func (p *progress) clear() {
	if p.shown {
		_, _ = p.terminal.WriteString("\r" + clearLine)
		p.shown = false
	}
}
