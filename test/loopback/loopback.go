// Package loopback finds free addresses for the servers of tests.
package loopback

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Ports are below the ephemeral ones, which the system gives to clients and to
// listeners on port 0 (32768 and above on Linux). So no other program takes a port
// before it is used, or while its server is down.
const (
	firstPort = 10_000
	lastPort  = 32_000
	attempts  = 100
)

// tried counts the ports that were tried. It starts at random, as another process
// may be looking for ports at the same time.
var tried = func() *atomic.Int64 {
	n := new(atomic.Int64)
	n.Store(rand.Int64N(lastPort - firstPort))
	return n
}()

// FreeAddress returns 127.0.0.1 with a port that is free for UDP and TCP. It does
// not return the same address again before all others were tried.
func FreeAddress() (string, error) {
	for range attempts {
		port := firstPort + tried.Add(1)%(lastPort-firstPort)
		address := net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		p, err := net.ListenPacket("udp", address)
		_ = l.Close()
		if err == nil {
			_ = p.Close()
			return address, nil
		}
	}
	return "", errors.New("no port is free for both UDP and TCP")
}
