//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// movesCursors reports whether terminals of this system understand the control
// sequences of ECMA-48.
const movesCursors = true

// terminalSignals has the signals about the terminal.
type terminalSignals struct{ resized, suspended, continued chan os.Signal }

// watchTerminal returns the signals from now on, until stop is called.
func watchTerminal() terminalSignals {
	s := terminalSignals{make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(s.resized, syscall.SIGWINCH)
	signal.Notify(s.suspended, syscall.SIGTSTP) // Ctrl-Z: the shell needs its screen and its cursor back
	signal.Notify(s.continued, syscall.SIGCONT)
	return s
}

// stop ends the delivery of the signals.
func (s terminalSignals) stop() {
	signal.Stop(s.resized)
	signal.Stop(s.suspended)
	signal.Stop(s.continued)
}

// suspend stops the process until it is continued, or ctx ends. SIGTSTP would have
// done that, but in Go a signal that is caught has no effect of its own. Where the
// parent is not a shell in the same session, nobody could continue the process, and
// suspend does nothing.
func (s terminalSignals) suspend(ctx context.Context) {
	session, err := unix.Getsid(0)
	if parents, err2 := unix.Getsid(os.Getppid()); err != nil || err2 != nil || parents != session {
		return
	}
	select {
	case <-s.continued: // from before
	default:
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGSTOP); err != nil {
		return
	}
	select {
	case <-s.continued:
	case <-ctx.Done():
	}
}

// unread reports whether a pipe has no reader any more. A write would find that out
// as well, but the next one may be hours away.
func unread(pipe *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(pipe.Fd())}} //nolint:gosec // file descriptors are small
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
