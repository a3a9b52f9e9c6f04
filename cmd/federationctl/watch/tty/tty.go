// Package tty is the terminal that a command writes to, if it does: whether a line of it can
// be written over, and whether anybody reads what is written.
//
// Only packages of this module import it: it is not a stable API.
package tty

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/term"
)

// Is reports whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := file(w)
	return ok && term.IsTerminal(int(f.Fd()))
}

// file returns the file that w is, perhaps beside a progress.
func file(w io.Writer) (*os.File, bool) {
	if b, ok := w.(beside); ok {
		w = b.out
	}
	f, ok := w.(*os.File)
	return f, ok
}

// Width returns how many columns w has; 0 if it is no terminal.
func Width(w io.Writer) int {
	f, ok := file(w)
	if !ok {
		return 0
	}
	width, _, _ := term.GetSize(int(f.Fd())) // 0 with an error
	return width
}

// HasColours reports whether w is a terminal whose user wants colours: https://no-color.org
// says how one does not.
func HasColours(w io.Writer) bool { return CanUpdate(w) && os.Getenv("NO_COLOR") == "" }

// CanUpdate reports whether a line written to w can be written over: w is a terminal that
// can move its cursor.
func CanUpdate(w io.Writer) bool {
	return movesCursors && Is(w) && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
}

// ErrUnread is why a command ends that has done nothing wrong.
var ErrUnread = errors.New("nobody reads the output")

// AwaitUnread returns ErrUnread when stdout is a pipe that nobody reads any more,
// and nil when ctx ends or stdout is something else.
func AwaitUnread(ctx context.Context, stdout io.Writer) error {
	pipe, ok := file(stdout)
	if !ok {
		return nil
	}
	if info, err := pipe.Stat(); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return nil // a write returns what is wrong with it
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if unread(pipe) {
			return ErrUnread
		}
	}
}
