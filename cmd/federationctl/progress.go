package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/federation"
)

// progressInterval is how often the progress is told. What is done before the
// first time needs no progress.
const progressInterval = 500 * time.Millisecond

// progress tells on a terminal how far a download is, while the output goes
// elsewhere. It is an eventSink around the one that makes the output, and an
// io.Writer for other messages to the same terminal.
type progress struct {
	// read-only
	eventSink
	address  string
	terminal *os.File

	services atomic.Int64 // received

	mu    sync.Mutex // guards the terminal and the field below
	shown bool       // the cursor is behind a line of progress
}

func newProgress(address string, terminal *os.File, sink eventSink) *progress {
	return &progress{eventSink: sink, address: board.Plain(address), terminal: terminal}
}

// Apply counts an event.
func (p *progress) Apply(ctx context.Context, event federation.Event) error {
	if event.Operation == federation.Upsert {
		p.services.Add(1)
	}
	return p.eventSink.Apply(ctx, event)
}

// Write writes a message in the place of the progress.
func (p *progress) Write(message []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.terminal.Write(message)
}

// run tells the progress until ctx ends.
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
