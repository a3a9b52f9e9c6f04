package owner

import (
	"fmt"
	"math"
	"time"
)

// Limits bound the connections of a server. A field that is 0 has its default.
type Limits struct {
	// Connections is how many may be open. The default is 8192, or fewer where the
	// process may not have so many files open: of those an eighth, and at least 32,
	// are left for the files that the owner follows and for all else.
	Connections int

	// ConnectionsPerAddress is how many one address may have open; in IPv6 a /64 is
	// one address. The default is three quarters of Connections, so that a crowd of
	// consumers behind one address is welcome and leaves room for others.
	ConnectionsPerAddress int

	// Handshakes is how many connections may not have got through their TLS
	// handshake yet, and HandshakesPerAddress how many of one address. The defaults
	// are a half and a quarter of Connections. When there are as many, one that has
	// had a second makes room for a new one.
	Handshakes           int
	HandshakesPerAddress int
}

const (
	mostConnections = 8192

	// spareFiles are left for other things than connections, where few files may be
	// open.
	spareFiles = 32

	// safeHandshake is how long a handshake keeps its place in any case. It takes
	// two round trips and some milliseconds of work.
	safeHandshake = time.Second
)

// complete returns the limits with their defaults.
func (l Limits) complete() (Limits, error) {
	if l.Connections < 0 || l.ConnectionsPerAddress < 0 || l.Handshakes < 0 || l.HandshakesPerAddress < 0 {
		return l, fmt.Errorf("limits of connections are %+v, none may be negative", l)
	}
	orElse := func(n *int, otherwise int) {
		if *n == 0 {
			*n = max(1, otherwise)
		}
	}
	orElse(&l.Connections, connectionsFor(mostFiles()))
	orElse(&l.ConnectionsPerAddress, l.Connections-l.Connections/4)
	orElse(&l.Handshakes, l.Connections/2)
	orElse(&l.HandshakesPerAddress, l.Handshakes/2)
	return l, nil
}

// connectionsFor returns how many connections a process should have that may have
// so many files open.
func connectionsFor(files uint64) int {
	n := int(min(files, math.MaxInt32))
	return min(mostConnections, n-min(n/2, max(spareFiles, n/8)))
}
