//go:build unix

package tty

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// movesCursors is whether terminals of this system understand ECMA-48.
const movesCursors = true

// Signals are the signals that concern the terminal.
type Signals struct {
	Resized, Suspended <-chan os.Signal

	resized, suspended, continued chan os.Signal
}

// Watch returns signals from now on, until Stop is called.
func Watch() Signals {
	s := Signals{resized: make(chan os.Signal, 1), suspended: make(chan os.Signal, 1), continued: make(chan os.Signal, 1)}
	s.Resized, s.Suspended = s.resized, s.suspended
	signal.Notify(s.resized, syscall.SIGWINCH)
	signal.Notify(s.suspended, syscall.SIGTSTP) // Ctrl-Z: the shell needs its screen and its cursor back
	signal.Notify(s.continued, syscall.SIGCONT)
	return s
}

// Stop ends the delivery of the signals.
func (s Signals) Stop() {
	signal.Stop(s.resized)
	signal.Stop(s.suspended)
	signal.Stop(s.continued)
}

// Suspend stops the process until it is continued, as SIGTSTP does by default: Go
// cannot restore that effect of the signal. It does nothing where no shell could
// continue the process.
func (s Signals) Suspend(ctx context.Context) {
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
