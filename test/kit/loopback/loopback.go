// Package loopback finds free addresses for the servers of tests.
package loopback

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Ports are below the ephemeral ones, which the system gives to clients and to
// listeners on port 0 (32768 and above on Linux). So no other program takes a port
// before it is used, or while its server is down. Neither does another process that
// asks this package: each has a block of ports, as long as there are any.
const (
	firstPort = 10_000
	lastPort  = 32_000
	blockSize = 1_000
	attempts  = 100
)

// block is a range of ports.
type block struct {
	first, size int64
	tried       atomic.Int64 // how many ports were tried

	// guard listens on the first port and accepts nothing: it keeps other processes from
	// the block until this one ends. It is nil where all blocks are taken.
	guard net.Listener
}

// own returns the block of this process.
var own = sync.OnceValue(take)

// take returns a block that no process has, if there is one.
func take() *block {
	const blocks = (lastPort - firstPort) / blockSize
	for _, i := range rand.Perm(blocks) {
		first := firstPort + int64(i)*blockSize
		if guard, err := net.Listen("tcp", address(first)); err == nil {
			return &block{first: first + 1, size: blockSize - 1, guard: guard}
		}
	}
	// Another process without a block may be looking for ports at the same time, so this
	// one begins at random.
	b := &block{first: firstPort, size: lastPort - firstPort}
	b.tried.Store(rand.Int64N(b.size))
	return b
}

func address(port int64) string { return net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10)) }

// FreeAddress returns 127.0.0.1 with a port that is free for UDP and TCP. It does
// not return the same address again before all others were tried.
func FreeAddress() (string, error) { return own().freeAddress() }

// Address is FreeAddress for a test, which ends where there is none.
func Address(t testing.TB) string {
	t.Helper()
	address := must.Get(FreeAddress())(t)
	return address
}

func (b *block) freeAddress() (string, error) {
	for range attempts {
		port := b.first + b.tried.Add(1)%b.size
		if free(port, syscall.SOCK_STREAM) && free(port, syscall.SOCK_DGRAM) {
			return address(port), nil
		}
	}
	return "", errors.New("no port is free for both UDP and TCP")
}

// free returns whether a socket of the kind can be bound to a port of 127.0.0.1. A child
// that is forked meanwhile would keep the port until it executes its program, so there is
// none: the package net has no lock for that.
func free(port int64, kind int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(syscall.AF_INET, kind, 0)
	if err != nil {
		return false
	}
	defer func() { _ = syscall.Close(fd) }()
	if kind == syscall.SOCK_STREAM { // as net does: connections that have ended are no hindrance
		if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
			return false
		}
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}) == nil
}
