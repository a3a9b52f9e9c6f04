package matrix

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc/test/bufconn"
)

// network connects owners and consumers in memory. It must be made inside a bubble.
type network struct {
	closed func(address string, connection int) // is called when the consumer closes a connection

	mu        sync.Mutex // guards the fields below
	listeners map[string]*bufconn.Listener
	dialed    map[string]int
	made      map[string]int // connections, from the beginning
	open      map[string]int // connections
}

func (n *network) listen(address string) *bufconn.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = bufconn.Listen(256 << 10)
	return n.listeners[address]
}

func (n *network) unlisten(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, address)
}

// dial connects to an address, as a net.Dialer does.
func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dialed[address]++
	listener := n.listeners[address]
	n.mu.Unlock()
	if listener == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made[address]++
	n.open[address]++
	connection := n.made[address]
	return &link{Conn: conn, closed: sync.OnceFunc(func() {
		n.mu.Lock()
		n.open[address]--
		n.mu.Unlock()
		n.closed(address, connection)
	})}, nil
}

// newest returns the number, from 1, of the connection with the address that was made
// last, or 0.
func (n *network) newest(address string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.made[address]
}

// connections returns the number of open connections to the addresses.
func (n *network) connections(addresses ...string) (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, address := range addresses {
		all += n.open[address]
	}
	return all
}

// attempts returns how often the addresses have been dialed.
func (n *network) attempts(addresses ...string) (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, address := range addresses {
		all += n.dialed[address]
	}
	return all
}

// link is the consumer's end of a connection.
type link struct {
	net.Conn

	closed func()
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.closed()
	return l.Conn.Close()
}

// serve runs an owner at the address until the returned function is called.
func (n *network) serve(t *testing.T, address string, s interface {
	Serve(ctx context.Context, listener net.Listener) error
},
) (stop func()) {
	listener := n.listen(address)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	return sync.OnceFunc(func() {
		n.unlisten(address)
		cancel()
		if err := <-done; err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("owner at %s: %v", address, err)
		}
	})
}

// quiet returns a logger that discards everything, or, where the environment has
// MATRIX_LOG, writes it to standard error.
func quiet() *slog.Logger {
	if os.Getenv("MATRIX_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}
