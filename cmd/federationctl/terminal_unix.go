//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// movesCursors is whether terminals of this system understand ECMA-48.
const movesCursors = true

// terminalSignals are the signals that concern the terminal.
type terminalSignals struct{ resized, suspended, continued chan os.Signal }

// watchTerminal returns signals from now on, until stop is called.
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

// suspend stops the process until it is continued, as SIGTSTP does by default: Go
// cannot restore that effect of the signal. It does nothing where no shell could
// continue the process.
func (s terminalSignals) suspend(ctx context.Context) {
	session, err := unix.Getsid(0)
	if parents, err2 := unix.Getsid(os.Getppid()); err != nil || err2 != nil || parents != session {
		return
	}
	select {
	case <-s.continued: // an earlier one
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

// unread reports whether nobody reads a pipe any more. A write would fail then, but
// the next one may be hours away.
func unread(pipe *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(pipe.Fd())}} //nolint:gosec // file descriptors are small
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
