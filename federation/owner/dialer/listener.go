package dialer

import (
	"context"
	"net"
	"sync"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// Listener has the connections that come in, and those that Dialers deliver.
type Listener struct {
	net.Listener

	accepted chan accepted
	dialed   chan net.Conn
	closing  func()
	closed   chan struct{}
}

type accepted struct {
	conn net.Conn
	err  error
}

// Join returns a Listener with the connections of another one, which it owns from then on.
func Join(of net.Listener) *Listener {
	l := &Listener{Listener: of, accepted: make(chan accepted), dialed: make(chan net.Conn), closed: make(chan struct{})}
	l.closing = sync.OnceFunc(func() { close(l.closed) })
	go l.pass()
	return l
}

// pass passes on what comes in until the Listener is closed.
func (l *Listener) pass() {
	for {
		conn, err := l.Listener.Accept()
		select {
		case l.accepted <- accepted{conn, err}:
		case <-l.closed:
			if err == nil {
				conn.Close()
			}
			return
		}
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case conn := <-l.dialed:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.closing()
	return l.Listener.Close()
}

// deliver has Accept return the connection, or closes it when ctx ends before.
func (l *Listener) deliver(ctx context.Context, conn *mtls.Reversed) {
	select {
	case l.dialed <- conn:
	case <-ctx.Done():
		conn.Close()
	case <-l.closed:
		conn.Close()
	}
}
