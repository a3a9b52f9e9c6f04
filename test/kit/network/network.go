// Package network is a network in memory: connections that a bubble of testing/synctest
// sees waiting.
package network

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// buffer is how many octets a connection holds that nobody has read.
const buffer = 32 << 10

// Network is the listeners of a test by address. The zero value is empty.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener // nil: what dials it waits; guarded by mu
}

// Dial connects to who listens at the address. Where nobody does, the connection is refused.
func (n *Network) Dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	listener, known := n.listeners[address]
	n.mu.Unlock()
	switch {
	case listener != nil:
		return listener.DialContext(ctx)
	case known:
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	default:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
}

// Listen has a new listener at the address, in place of any before.
func (n *Network) Listen(address string) *bufconn.Listener {
	listener := bufconn.Listen(buffer)
	n.set(address, listener)
	return listener
}

// TimesOut has connections to the address time out, until something listens there.
func (n *Network) TimesOut(address string) { n.set(address, nil) }

func (n *Network) set(address string, listener *bufconn.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*bufconn.Listener)
	}
	n.listeners[address] = listener
}

// Forget has connections to the address refused, where the listener is still the one there.
func (n *Network) Forget(address string, listener *bufconn.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] == listener {
		delete(n.listeners, address)
	}
}

// Serve runs an owner at the address until the test ends or the returned function is
// called. Connections are refused from before the owner ends.
func (n *Network) Serve(t testing.TB, address string, serve func(context.Context, net.Listener) error) (stop func()) {
	listener := n.Listen(address)
	end := must.Run(t, func(ctx context.Context) error { return serve(ctx, listener) })
	stop = sync.OnceFunc(func() {
		n.Forget(address, listener)
		end()
	})
	t.Cleanup(stop)
	return stop
}

// GRPC has Serve run a server of gRPC.
func GRPC(server *grpc.Server) func(context.Context, net.Listener) error {
	return func(ctx context.Context, listener net.Listener) error {
		defer context.AfterFunc(ctx, server.Stop)()
		if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil // ended before it began
	}
}
