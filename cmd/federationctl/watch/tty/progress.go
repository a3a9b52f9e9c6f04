package tty

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// progressInterval is how often the progress is written. What is shorter needs none.
const progressInterval = 500 * time.Millisecond

// Progress says on a terminal what a command does that takes long: one line, which is written
// over, and removed for anything else. nil is one that nobody would see.
type Progress struct {
	// Read-only.
	terminal io.Writer
	width    func() int // of the terminal; 0: it is not known

	mu     sync.Mutex // guards the terminal and the fields below
	text   string     // is said; empty: nothing
	shown  bool       // the cursor is at the end of a line of progress
	inside bool       // it is inside of a line of something else
}

// NewProgress returns the progress on a terminal, and nil for one whose lines cannot be written
// over, or for anything else.
func NewProgress(stderr io.Writer) *Progress {
	if !CanUpdate(stderr) {
		return nil
	}
	return &Progress{terminal: stderr, width: func() int { return Width(stderr) }}
}

// Sayf sets what is said from now on. An empty text is not.
func (p *Progress) Sayf(format string, args ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = fmt.Sprintf(format, args...)
}

// Beside returns a writer for what may stand on the terminal of the progress, which is removed
// first. Where w is no terminal, nothing more is said after the first write: a pager may read
// it.
func (p *Progress) Beside(w io.Writer) io.Writer {
	if p == nil {
		return w
	}
	return beside{p, w, Is(w)}
}

type beside struct {
	*Progress

	out      io.Writer
	terminal bool
}

// Write implements io.Writer.
func (b beside) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	if b.terminal {
		b.inside = !bytes.HasSuffix(text, []byte("\n"))
		return b.out.Write(text)
	}
	b.text = ""
	b.mu.Unlock() // whoever reads may take for ever
	defer b.mu.Lock()
	return b.out.Write(text)
}

// During shows the progress while a function runs, and returns what that does.
func (p *Progress) During(work func() error) error {
	done := make(chan struct{})
	var showing sync.WaitGroup
	defer showing.Wait()
	defer close(done)
	showing.Go(func() { p.Run(done) })
	return work()
}

// Run shows the progress until a channel is closed, and removes it then.
func (p *Progress) Run(done <-chan struct{}) {
	if p == nil {
		return
	}
	begun := time.Now()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.show(time.Since(begun))
		case <-done:
			p.mu.Lock()
			defer p.mu.Unlock()
			p.clear()
			return
		}
	}
}

func (p *Progress) show(after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text == "" {
		p.clear()
	} else if !p.inside {
		p.shown = true
		_, _ = io.WriteString(p.terminal, over(fmt.Sprintf("%s, %d s", p.text, after/time.Second), p.width()))
	}
}

func (p *Progress) clear() {
	if p.shown {
		_, _ = io.WriteString(p.terminal, over("", 0))
		p.shown = false
	}
}

// over returns what writes a text over the line on which the cursor of a terminal is, or, without
// one, removes the line. Width is that of the terminal, 0 if it is not known: a line that wraps
// cannot be written over.
func over(text string, width int) string {
	if width > 0 && len(text) >= width {
		text = text[:width-1]
	}
	return "\r" + text + "\x1b[K" // erase from the cursor on (ECMA-48 section 8.3.41)
}
