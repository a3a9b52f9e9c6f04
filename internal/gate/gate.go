package gate

import (
	"container/list"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// The names of the limits in Stats, and an excessive wait.
const (
	overConnections           = "connections"
	overConnectionsPerAddress = "connections_per_address"
	overHandshakes            = "handshakes"
	overHandshakesPerAddress  = "handshakes_per_address"
	overWait                  = "handshake_wait"
)

// Gate bounds the connections of a process, over all its ports. It counts connections and handshakes, in
// total and by address, and closes those beyond the limits before they cost more than an open file. A peer
// that used up the open files of the process would keep all others out, and the owner from reading its
// own files. Accept and Close of a connection change the counts, under mu; an address without connections
// is forgotten, so that Limits bound the map as well.
//
// A gate makes no connection wait for room, because a peer that waits holds a file open. gRPC has no such
// limits; netutil.LimitListener of golang.org/x/net makes connections wait instead of closing them,
// and does not count by address.
type Gate struct {
	limits Limits
	log    *slog.Logger
	tell   func(TurnedAway)
	slots  *semaphore.Weighted // for handshakes in progress

	mu         sync.Mutex // guards the fields below, and those of each countedConn
	open       int
	addresses  map[netip.Prefix]*addressLoad
	waiting    int       // connections that wait for a slot
	handshakes list.List // of *countedConn in their handshake that do not wait, the oldest first
	turnedAway map[string]uint64
}

// addressLoad counts the connections of one address.
type addressLoad struct {
	open       int
	waiting    int
	handshakes list.List // of *countedConn, the oldest first
}

// Config configures a Gate.
type Config struct {
	Limits Limits

	// Logger gets a bounded number of lines of each kind. See package loglimit.
	Logger *slog.Logger

	// TurnedAway, where it is set, gets each peer that is not let in, however many there are. It
	// must return soon, and several goroutines may call it at once.
	TurnedAway func(TurnedAway)
}

// TurnedAway is a peer that was not let in.
type TurnedAway struct {
	Role    string // of the peers of its port, such as consumer
	Address net.Addr
	IDs     []federation.ID // in the certificate that the peer has shown, which need not be its own; none before it has shown one
	Reason  Reason
	Rule    string // the rule that the peer breaks, as a sentence; it may repeat what the peer has sent
	Remedy  string // what to do if the peer is to be let in; empty where that follows from the Reason
}

// Reason is the kind of rule by which a peer is turned away.
type Reason string

// The reasons. A gate has the first two, and a server behind it has the others.
const (
	BadCertificate Reason = "certificate" // the certificate is refused
	TooMany        Reason = "limit"       // there are too many connections or handshakes
	NotAllowed     Reason = "identity"    // no identity of the certificate may subscribe
	NoCatalog      Reason = "server_name" // there is no catalog for the server name of the handshake
	Later          Reason = "queue"       // too many consumers wait for the catalog
)

// New returns a gate.
func New(c Config) *Gate {
	if c.TurnedAway == nil {
		c.TurnedAway = func(TurnedAway) {}
	}
	return &Gate{
		limits: c.Limits.withDefaults(), log: loglimit.NewLogger(c.Logger), tell: c.TurnedAway, addresses: make(map[netip.Prefix]*addressLoad), turnedAway: make(map[string]uint64),
		slots: semaphore.NewWeighted(handshakeSlots()),
	}
}

// admitConn counts the connection and returns it. When a limit is reached, over is that limit. Then
// admitConn displaces the oldest handshake, if that has lasted for safeHandshake; otherwise
// admitted is nil.
func (g *Gate) admitConn(conn net.Conn) (admitted, displaced *countedConn, over string) {
	c := &countedConn{Conn: conn, gate: g, address: networkOf(conn.RemoteAddr()), since: time.Now()}
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.addresses[c.address]
	if v == nil {
		v = &addressLoad{}
		g.addresses[c.address] = v
	}
	queue := &v.handshakes
	switch {
	case v.waiting+queue.Len() >= g.limits.HandshakesPerAddress:
		over = overHandshakesPerAddress
	case v.open >= g.limits.ConnectionsPerAddress:
		over = overConnectionsPerAddress
	case g.waiting+g.handshakes.Len() >= g.limits.Handshakes:
		over, queue = overHandshakes, &g.handshakes
	case g.open >= g.limits.Connections:
		over, queue = overConnections, &g.handshakes
	}
	if over != "" {
		g.turnedAway[over]++
		oldest := queue.Front()
		if oldest == nil || c.since.Sub(oldest.Value.(*countedConn).since) < safeHandshake {
			g.forgetAddress(c.address)
			return nil, nil, over
		}
		// Room for one is enough, because no limit was exceeded before.
		displaced = oldest.Value.(*countedConn)
		g.removeConn(displaced)
		g.addresses[c.address] = v
	}
	g.open++
	v.open++
	g.enlistHandshake(c)
	return c, displaced, over
}

// networkOf returns the network that counts as one address: an IPv4 address, or the /64 of an IPv6
// address, because a site has at least a /64 (RFC 6177 section 2). Peers without an IP address
// count as one.
func networkOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.Prefix(bits)
	return prefix
}

// enlistHandshake adds a connection to those in their handshake. The caller holds the lock.
func (g *Gate) enlistHandshake(c *countedConn) {
	c.inAll, c.inAddress = g.handshakes.PushBack(c), g.addresses[c.address].handshakes.PushBack(c)
}

// completeHandshake records that the handshake of a connection is complete.
func (g *Gate) completeHandshake(c *countedConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveQueue(c)
}

// reportRefusal reports that the certificate of a peer is refused, because its operator sees only
// an alert, which has no reason. Other failed handshakes say nothing about a peer. Role is how logs
// call the peers of the port.
func (g *Gate) reportRefusal(c *countedConn, role string, err error) {
	refused, ok := mtls.RefusalOf(err)
	if !ok {
		return
	}
	reason, remedy := refused.Err, refused.Remedy("the peer") // nothing vouches for what the peer says of itself
	for cause := reason; cause != nil; cause = errors.Unwrap(cause) {
		reason = cause // the errors around it repeat the identities
	}
	g.log.Warn("peer turned away: its certificate is not accepted", "role", role, "address", c.RemoteAddr(),
		"identities", safetext.Printable(fmt.Sprint(refused.Claimed)), "error", safetext.Printable(reason.Error()), "remedy", remedy)
	g.tell(TurnedAway{Role: role, Address: c.RemoteAddr(), IDs: refused.Claimed, Reason: BadCertificate, Rule: reason.Error(), Remedy: remedy})
}

// reportExcess reports that a connection is closed because of a limit.
func (g *Gate) reportExcess(c net.Conn, role, limit string) {
	g.log.Warn("connection turned away: there are too many", "limit", limit, "address", c.RemoteAddr())
	g.tell(TurnedAway{Role: role, Address: c.RemoteAddr(), Reason: TooMany, Rule: "there are too many: the limit " + limit + " is reached"})
}

// removeConn removes the connection from the counts. The caller holds the lock.
func (g *Gate) removeConn(c *countedConn) {
	if c.gone {
		return
	}
	c.gone = true
	g.leaveQueue(c)
	g.open--
	g.addresses[c.address].open--
	g.forgetAddress(c.address)
}

func (g *Gate) leaveQueue(c *countedConn) {
	switch {
	case c.waits:
		g.waiting--
		g.addresses[c.address].waiting--
		c.waits = false
	case c.inAll != nil:
		g.handshakes.Remove(c.inAll)
		g.addresses[c.address].handshakes.Remove(c.inAddress)
		c.inAll, c.inAddress = nil, nil
	}
}

// forgetAddress removes an address that has no connections.
func (g *Gate) forgetAddress(address netip.Prefix) {
	if g.addresses[address].open == 0 {
		delete(g.addresses, address)
	}
}

// Stats returns how many connections are open, including those in their handshake, and
// how many were closed at once, by the limit of Limits that was reached.
func (g *Gate) Stats() (open int, turnedAway map[string]uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, maps.Clone(g.turnedAway)
}

// countedConn is a connection that counts until it is closed. It is in one of three states: it
// waits for a slot, it is in its handshake, or it has begun.
type countedConn struct {
	net.Conn

	// read-only after admitConn
	gate    *Gate
	address netip.Prefix

	// guarded by the mutex of the gate
	since     time.Time // when the connection came, or got a slot
	gone      bool
	waits     bool          // the connection waits for a slot
	inAll     *list.Element // place in Gate.handshakes; nil when its handshake is complete, and while it waits
	inAddress *list.Element // place in addressLoad.handshakes

	cut atomic.Bool // a write has failed

	// owned by the goroutine of gRPC that begins the connection
	begun func() bool // keeps the end of the port from closing the connection; nil before the handshake
}

// SetDeadline implements net.Conn. When a connection has begun, or has failed to, gRPC removes the
// deadline: from then on its streams end by themselves.
func (c *countedConn) SetDeadline(t time.Time) error {
	if t.IsZero() && c.begun != nil {
		c.begun()
	}
	return c.Conn.SetDeadline(t)
}

// Write implements net.Conn. After a failed write it sends nothing any more. Otherwise crypto/tls
// would still send its alert when the connection is closed, and the peer, which lacks the record
// before, would report a record with a bad MAC. Peers saw that when their handshake took too long.
func (c *countedConn) Write(p []byte) (int, error) {
	if c.cut.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		c.cut.Store(true)
	}
	return n, err
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.gate.mu.Lock()
	c.gate.removeConn(c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// gatedListener is a listener behind a gate.
type gatedListener struct {
	net.Listener

	gate *Gate
	role string // of the peers
}

// Accept implements net.Listener.
func (l gatedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		admitted, displaced, over := l.gate.admitConn(conn)
		switch {
		case displaced != nil:
			l.gate.reportExcess(displaced, l.role, over)
			displaced.Close()
		case over != "":
			l.gate.reportExcess(conn, l.role, over)
		}
		if admitted != nil {
			return admitted, nil
		}
		conn.Close()
	}
}
