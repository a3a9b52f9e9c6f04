package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// This file bounds how many handshakes are in progress at a time. Nothing of a connection costs a processor
// as much as its handshake, and most of that cost comes with the first message of the peer. When thousands
// of peers come at once, all of these handshakes together would be so slow that all would fail, and the
// peers would come again. So a few handshakes are in progress, and each of the others costs an open file, a
// goroutine and the first message.
//
// The oldest connection that waits is the next one, although its peer has the least time left: after
// longestWait at most there is time enough. A connection that has waited for longer is closed before
// anything is spent on it, so that no work goes to peers that have given up. Newest first would serve
// whoever comes again most often. An address that comes a thousand times is served a thousand times: only
// the limits of an address bound how much it delays others.
const (
	// slotsPerProcessor is how many handshakes are in progress at a time: more than one,
	// so that a processor has something to do when one of them is read or written.
	slotsPerProcessor = 4

	// longestWait is well below the ten seconds after which consumers give up. See also
	// HandshakeTimeout.
	longestWait = 6 * time.Second
)

func handshakeSlots() int64 { return int64(slotsPerProcessor * runtime.GOMAXPROCS(0)) }

// errLate is why a connection is closed that has waited for longestWait.
var errLate = errors.New("too many other handshakes came first")

// The beginning of a TLS connection (RFC 8446 section 5.1): the type, the version and the
// length of a record.
const (
	recordHeaderBytes = 5
	recordLength      = 3 // where the length is
	recordHandshake   = 22

	// largestHello is larger than the first message of any known client. A longer one
	// is left to crypto/tls, which reads the rest of it after the slot has been given up.
	largestHello = 4 << 10
)

// slotCredentials are credentials whose handshakes wait for a slot, and that report to the gate how
// these end.
type slotCredentials struct {
	credentials.TransportCredentials

	role    string          // of the peers
	serving context.Context //nolint:containedctx // gRPC has no context for a handshake
}

// ServerHandshake implements credentials.TransportCredentials.
func (w slotCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*countedConn)
	if !ok {
		return w.TransportCredentials.ServerHandshake(raw)
	}
	// gRPC waits for handshakes before it ends anything else, and for what HTTP/2 begins with
	// after them. A peer can be silent in both.
	c.begun = context.AfterFunc(w.serving, func() { c.Close() })
	hello, err := readHello(c) // a peer that says nothing takes no slot
	if err != nil {
		return nil, nil, err
	}
	if err := c.gate.acquireSlot(w.serving, c, w.role); err != nil {
		return nil, nil, err
	}
	release := sync.OnceFunc(func() { c.gate.slots.Release(1) })
	defer release()
	conn, info, err := w.TransportCredentials.ServerHandshake(&helloConn{Conn: c, hello: hello, release: release})
	if err == nil {
		c.gate.completeHandshake(c)
	} else {
		c.gate.reportRefusal(c, w.role, err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (w slotCredentials) Clone() credentials.TransportCredentials {
	w.TransportCredentials = w.TransportCredentials.Clone()
	return w
}

// acquireSlot waits for a slot. It fails when ctx ends, and after longestWait.
func (g *Gate) acquireSlot(ctx context.Context, c *countedConn, role string) error {
	g.noteWaiting(c)
	ctx, cancel := context.WithTimeoutCause(ctx, longestWait, errLate)
	defer cancel()
	if g.slots.Acquire(ctx, 1) != nil {
		err := context.Cause(ctx)
		if errors.Is(err, errLate) {
			g.countLate(c, role)
		}
		return err
	}
	g.noteStarted(c)
	return nil
}

// noteWaiting records that a connection waits for a slot, and noteStarted that it has got one. A
// connection that waits is not displaced, because the delay is not its peer's.
func (g *Gate) noteWaiting(c *countedConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.gone {
		return
	}
	g.leaveQueue(c)
	c.waits = true
	g.waiting++
	g.addresses[c.address].waiting++
}

func (g *Gate) noteStarted(c *countedConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.gone {
		return
	}
	g.leaveQueue(c)
	c.since = time.Now()
	g.enlistHandshake(c)
}

// countLate counts a connection that has waited for too long.
func (g *Gate) countLate(c *countedConn, role string) {
	g.mu.Lock()
	g.turnedAway[overWait]++
	g.mu.Unlock()
	g.reportExcess(c, role, overWait)
}

// readHello returns the first record of a TLS connection, or the first bytes of something else.
func readHello(from io.Reader) ([]byte, error) {
	header := make([]byte, recordHeaderBytes)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(header[recordLength:]))
	if header[0] != recordHandshake || size > largestHello {
		return header, nil
	}
	hello := make([]byte, recordHeaderBytes+size)
	_, err := io.ReadFull(from, hello[copy(hello, header):])
	return hello, err
}

// helloConn is a connection whose beginning has been read. It releases its slot when it has to wait
// for the peer, because the rest of the handshake cannot come faster than the slots let handshakes
// begin.
type helloConn struct {
	net.Conn

	// owned by whoever reads
	hello   []byte
	release func()
}

// Read implements net.Conn.
func (g *helloConn) Read(p []byte) (int, error) {
	if len(g.hello) > 0 {
		n := copy(p, g.hello)
		g.hello = g.hello[n:]
		return n, nil
	}
	g.release()
	g.hello = nil
	return g.Conn.Read(p)
}
