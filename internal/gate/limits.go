package gate

import (
	"math"
	"time"
)

// Limits bound the connections of a process. A field that is 0 has its default. A
// consumer has one connection for its stream, and another one for a moment whenever it
// renews its certificate; a provider has one.
type Limits struct {
	// Connections is how many may be open. The default is 16384, or fewer where the
	// process may not open so many files: an eighth of these, and at least 32, is
	// left for other uses, such as the files that an owner follows.
	Connections int

	// ConnectionsPerAddress is how many one address may have open; in IPv6 a /64 is
	// one address. The default is three quarters of Connections: enough for many
	// consumers behind one address, with room left for others.
	ConnectionsPerAddress int

	// Handshakes is how many connections may be in their TLS handshake, and
	// HandshakesPerAddress how many of one address. The defaults are a half and a
	// quarter of Connections. When there are as many, a new connection displaces the
	// oldest one whose peer has made no progress for a second. Those that wait
	// for a slot count, and are not displaced.
	Handshakes           int
	HandshakesPerAddress int
}

const (
	mostConnections = 16384

	// spareFiles is the least number of open files that is left for other uses.
	spareFiles = 32

	// safeHandshake is how long a handshake is never displaced. A handshake takes
	// two round trips and some milliseconds of work.
	safeHandshake = time.Second
)

// withDefaults returns the limits with their defaults.
func (l Limits) withDefaults() Limits {
	orElse := func(n *int, otherwise int) {
		if *n == 0 {
			*n = max(1, otherwise)
		}
	}
	orElse(&l.Connections, connectionsFor(mostFiles()))
	orElse(&l.ConnectionsPerAddress, l.Connections-l.Connections/4)
	orElse(&l.Handshakes, l.Connections/2)
	orElse(&l.HandshakesPerAddress, l.Handshakes/2)
	return l
}

// connectionsFor returns the default of Connections for a process that may open so
// many files.
func connectionsFor(files uint64) int {
	n := int(min(files, math.MaxInt32))
	return min(mostConnections, n-min(n/2, max(spareFiles, n/8)))
}
