// Package testlog keeps what is logged while a test reads it.
package testlog

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// Buffer is written by a logger or a process, and read by a test. The zero value is empty.
type Buffer struct {
	mu    sync.Mutex
	text  strings.Builder // guarded by mu
	grown chan struct{}   // closed by the next Write; nil when nobody waits; guarded by mu
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.grown != nil {
		close(b.grown)
		b.grown = nil
	}
	return b.text.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Lines returns the lines that were logged, each with its end.
func (b *Buffer) Lines() []string { return slices.Collect(strings.Lines(b.String())) }

// Reset forgets what was logged.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Reset()
}

// Logger returns a logger that writes here, without the time of day.
func (b *Buffer) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// Count returns the number of lines that contain all of the texts.
func (b *Buffer) Count(texts ...string) int {
	n := 0
	for line := range strings.Lines(b.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			n++
		}
	}
	return n
}

// Await waits until text was logged; go test ends a test that waits for ever.
func (b *Buffer) Await(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !strings.Contains(b.text.String(), text) {
		if b.grown == nil {
			b.grown = make(chan struct{})
		}
		grown := b.grown
		b.mu.Unlock()
		<-grown
		b.mu.Lock()
	}
}
