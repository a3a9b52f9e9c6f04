//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// movesCursors tells whether terminals of this system understand ECMA-48.
const movesCursors = true

// terminalSignals are what the system says of the terminal.
type terminalSignals struct{ resized, suspended, continued chan os.Signal }

// watchTerminal returns the signals from now on, until they are stopped.
func watchTerminal() terminalSignals {
	s := terminalSignals{make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(s.resized, syscall.SIGWINCH)
	signal.Notify(s.suspended, syscall.SIGTSTP) // Ctrl-Z: the shell wants its screen and its cursor
	signal.Notify(s.continued, syscall.SIGCONT)
	return s
}

func (s terminalSignals) stop() {
	signal.Stop(s.resized)
	signal.Stop(s.suspended)
	signal.Stop(s.continued)
}

// suspend stops the process until someone continues it, as SIGTSTP would have
// done; Go cannot give that signal its own effect back. Where no shell looks
// after the process nobody could, and it does nothing.
func (s terminalSignals) suspend(ctx context.Context) {
	session, err := unix.Getsid(0)
	if parents, err2 := unix.Getsid(os.Getppid()); err != nil || err2 != nil || parents != session {
		return
	}
	select {
	case <-s.continued: // of another time
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

// unread tells whether nobody reads a pipe any more. A write would tell it too,
// and the next one may be hours away.
func unread(pipe *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(pipe.Fd())}} //nolint:gosec // file descriptors are small
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
