package spiffe

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// meter stands between CoreDNS and the owner, and counts what passes.
type meter struct {
	address string
	octets  atomic.Int64 // both ways
}

// measure begins to count on the way to an address.
func measure(t *testing.T, to string) *meter {
	t.Helper()
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	m := &meter{address: listener.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return // closed
			}
			running.Go(func() { m.carry(ctx, near, to) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		cancel()
		running.Wait()
	})
	return m
}

// carry carries what passes between a connection and the address, until either side ends
// it or ctx does.
func (m *meter) carry(ctx context.Context, near net.Conn, to string) {
	defer near.Close()
	far, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	over := func() { _, _ = near.Close(), far.Close() }
	defer context.AfterFunc(ctx, over)()
	var way sync.WaitGroup
	defer way.Wait()
	for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
		way.Go(func() {
			defer over()
			_, _ = io.Copy(io.MultiWriter(to, m), from)
		})
	}
}

// Write counts octets. It implements io.Writer.
func (m *meter) Write(p []byte) (int, error) {
	m.octets.Add(int64(len(p)))
	return len(p), nil
}
