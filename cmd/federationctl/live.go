package main

import (
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/federation"
)

const (
	// frameInterval is the least time between two frames: nobody reads faster,
	// and a catalog that is downloaded changes thousands of times a second.
	frameInterval = 100 * time.Millisecond

	// idleInterval is the most: what is said in seconds grows old, and what is
	// typed is echoed over the table.
	idleInterval = time.Second
)

// The control functions of ECMA-48, and xterm's private modes, that live uses.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J" // another screen, no cursor, no wrapping of lines
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toOrigin    = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// live shows a table that is updated in place. It is an eventSink, and an
// io.Writer for what would otherwise be written across the table.
type live struct {
	// read-only
	terminal *os.File
	stderr   io.Writer
	aside    bool // standard error is not the terminal: it gets what is written at once
	colours  bool

	wake chan struct{} // holds a value when there is something new to show

	mu    sync.Mutex // guards the fields below
	board *board.Board
	said  []string // what was written, for the time after the table
	lost  int      // lines that said has no room for
}

// maxSaid bounds what is kept for the time after the table.
const maxSaid = 1000

func newLive(address string, terminal *os.File, stderr io.Writer) *live {
	return &live{
		terminal: terminal,
		stderr:   stderr,
		aside:    !isTerminal(stderr),
		colours:  os.Getenv("NO_COLOR") == "", // no-color.org
		wake:     make(chan struct{}, 1),
		board:    board.New(address, settleTime, time.Now()),
	}
}

// canUpdate tells whether a table can be updated in place there: on a terminal
// that can move its cursor.
func canUpdate(w io.Writer) bool {
	return movesCursors && isTerminal(w) && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// change changes the board and has it shown.
func (l *live) change(f func(*board.Board, time.Time) error) error {
	l.mu.Lock()
	err := f(l.board, time.Now())
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // it will be shown anyway
	}
	return err
}

// Opened notes that there is a stream.
func (l *live) Opened(context.Context) error {
	return l.change(func(b *board.Board, now time.Time) error { b.Opened(now); return nil })
}

// Marked notes that the end of the catalog will be marked.
func (l *live) Marked(context.Context) error {
	return l.change(func(b *board.Board, _ time.Time) error { b.Marked(); return nil })
}

// Refused notes a response that the consumer refused.
func (l *live) Refused(_ context.Context, refusal *federation.InvalidError) error {
	return l.change(func(b *board.Board, now time.Time) error { b.Refused(refusal.Service, now); return nil })
}

// Apply takes an event.
func (l *live) Apply(_ context.Context, event federation.Event) error {
	return l.change(func(b *board.Board, now time.Time) error { return b.Apply(event, now) })
}

// Lost notes why there is no stream.
func (l *live) Lost(_ context.Context, err error, _ bool) {
	_ = l.change(func(b *board.Board, now time.Time) error {
		b.Lost(err.Error()+"; "+remedy(err)+"; trying again", now)
		return nil
	})
}

// Write takes what others have to say: it is shown beside the table, and
// written to standard error after it.
func (l *live) Write(p []byte) (int, error) {
	if l.aside {
		_, _ = l.stderr.Write(p) // it has nowhere to be told
	}
	text := strings.TrimSuffix(string(p), "\n")
	return len(p), l.change(func(b *board.Board, _ time.Time) error {
		b.Note(strings.TrimPrefix(text, "federationctl: "))
		switch {
		case l.aside:
		case len(l.said) < maxSaid:
			l.said = append(l.said, text)
		default:
			l.lost++
		}
		return nil
	})
}

// run shows the table until ctx ends, or the terminal is gone. The last table
// stays on the terminal.
func (l *live) run(ctx context.Context) error {
	signals := watchTerminal()
	defer signals.stop()
	if _, err := l.terminal.WriteString(enterScreen); err != nil {
		return err
	}
	defer l.leave()
	frame, idle := time.NewTimer(0), time.NewTicker(idleInterval)
	defer frame.Stop()
	defer idle.Stop()
	for {
		// The next frame waits for its time, and then for a reason.
		select {
		case <-frame.C:
		case <-ctx.Done():
			return nil
		}
		if err := l.draw(); err != nil {
			return err
		}
		frame.Reset(frameInterval)
		select {
		case <-l.wake:
		case <-idle.C:
		case <-signals.resized:
		case <-signals.suspended:
			if _, err := l.terminal.WriteString(leaveScreen); err != nil {
				return err
			}
			signals.suspend(ctx)
			if _, err := l.terminal.WriteString(enterScreen); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// lines returns the board as it is now, for some lines less than the terminal
// has, and tells whether it fills them.
func (l *live) lines(less int) (lines []string, full bool) {
	width, height, err := term.GetSize(int(l.terminal.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24 // as some serial lines have it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.board.Advance(now)
	lines = l.board.Lines(board.Size{Width: width, Height: height - less}, l.colours, now)
	return lines, len(lines) >= height-less
}

// draw shows the board as it is now, in place of what was there before.
func (l *live) draw() error {
	lines, full := l.lines(0)
	frame := toOrigin + clearLine + strings.Join(lines, "\r\n"+clearLine)
	if !full {
		frame += "\r\n" + clearBelow
	}
	_, err := l.terminal.WriteString(frame)
	return err
}

// leave gives the terminal back, with the last table on it and what was said
// meanwhile.
func (l *live) leave() {
	lines, _ := l.lines(2) // and room for an error and the prompt
	_, _ = l.terminal.WriteString(leaveScreen + strings.Join(lines, "\n") + "\n")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range l.said {
		_, _ = io.WriteString(l.stderr, text+"\n")
	}
	if l.lost > 0 {
		_, _ = io.WriteString(l.stderr, "federationctl: and more, not kept: run it again with 2>FILE\n")
	}
}
