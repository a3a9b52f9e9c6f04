//go:build unix

package tty

import (
	"os"

	"golang.org/x/sys/unix"
)

// movesCursors is whether terminals of this system understand ECMA-48.
const movesCursors = true

// unread reports whether nobody reads a pipe any more. A write would fail then, but
// the next one may be hours away.
func unread(pipe *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(pipe.Fd())}} //nolint:gosec // file descriptors are small
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
