package watch

import (
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/board"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/tty"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mirror"
)

const (
	// frameInterval is the least time between two frames: nobody reads faster, and
	// a download changes the catalog thousands of times a second.
	frameInterval = 100 * time.Millisecond

	// idleInterval is the longest time between two frames: ages in seconds have to
	// be updated, and what somebody types is echoed over the table.
	idleInterval = time.Second
)

// The control functions of ECMA-48, and xterm's private modes, that live uses. They
// are written out because a library for terminals would bring an event loop and a
// model of the screen, for a table that is only ever drawn as a whole.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J" // another screen, no cursor, no wrapping of lines
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	toOrigin    = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// live shows a table that is updated in place. It is a view, and an io.Writer for
// messages that would otherwise be written across the table.
type live struct {
	// Read-only.
	terminal *os.File
	stderr   io.Writer
	aside    bool // standard error is not the terminal: messages are written to it at once
	colours  bool

	wake chan struct{} // holds a value when there is something new to show

	mu    sync.Mutex // guards the fields below
	board *board.Board
	said  []string // messages to be written after the table
	lost  int      // messages that said has no room for
}

// maxSaid is how many messages are kept until the table is gone.
const maxSaid = 1000

func newLive(address string, terminal *os.File, stderr io.Writer) *live {
	return &live{
		terminal: terminal,
		stderr:   stderr,
		aside:    !tty.Is(stderr),
		colours:  os.Getenv("NO_COLOR") == "", // no-color.org
		wake:     make(chan struct{}, 1),
		board:    board.New(address, time.Now()),
	}
}

// change changes the board and has it drawn.
func (l *live) change(f func(b *board.Board, now time.Time)) {
	l.mu.Lock()
	f(l.board, time.Now())
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // it is about to be drawn anyway
	}
}

func (l *live) show(c mirror.Changes) error {
	var reason string
	if err := c.Status.Failure; err != nil {
		reason = err.Error() + "; " + remedy(err) + "; trying again"
	}
	l.change(func(b *board.Board, now time.Time) {
		b.Update(c.Services, c.Status.Status, reason, now)
		b.Through(c.Status.Hops(), c.Status.Resumed)
	})
	return nil
}

func (*live) responded() {} // the status says whether there is a stream

func (l *live) refused() { l.change(func(b *board.Board, _ time.Time) { b.Refused() }) }

func (*live) skipped(*federation.Service) error { return nil } // the status counts them

// Write takes a message. It is shown beside the table, and written to standard error
// after the table is gone.
func (l *live) Write(p []byte) (int, error) {
	if l.aside {
		_, _ = l.stderr.Write(p) // there is nowhere to report an error
	}
	text := strings.TrimSuffix(string(p), "\n")
	l.change(func(b *board.Board, _ time.Time) {
		b.Note(strings.TrimPrefix(text, "federationctl: "))
		switch {
		case l.aside:
		case len(l.said) < maxSaid:
			l.said = append(l.said, text)
		default:
			l.lost++
		}
	})
	return len(p), nil
}

// run draws the table until ctx ends or the terminal is gone. The last table stays on
// the terminal.
func (l *live) run(ctx context.Context) error {
	signals := tty.Watch()
	defer signals.Stop()
	if _, err := l.terminal.WriteString(enterScreen); err != nil {
		return err
	}
	defer l.leave()
	frame, idle := time.NewTimer(0), time.NewTicker(idleInterval)
	defer frame.Stop()
	defer idle.Stop()
	for {
		// The next frame waits for frameInterval, and then for a reason.
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
		case <-signals.Resized:
		case <-signals.Suspended:
			if _, err := l.terminal.WriteString(leaveScreen); err != nil {
				return err
			}
			signals.Suspend(ctx)
			if _, err := l.terminal.WriteString(enterScreen); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// lines returns the board as it is now, leaving some lines of the terminal free, and
// reports whether it fills the others.
func (l *live) lines(less int) (lines []string, full bool) {
	width, height, err := term.GetSize(int(l.terminal.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24 // a serial line may not know
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.board.Advance(now)
	lines = l.board.Lines(board.Size{Width: width, Height: height - less}, l.colours, now)
	return lines, len(lines) >= height-less
}

// draw draws the board as it is now over the frame before.
func (l *live) draw() error {
	lines, full := l.lines(0)
	frame := toOrigin + clearLine + strings.Join(lines, "\r\n"+clearLine)
	if !full {
		frame += "\r\n" + clearBelow
	}
	_, err := l.terminal.WriteString(frame)
	return err
}

// leave restores the terminal, and writes the last table and the messages to it.
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
