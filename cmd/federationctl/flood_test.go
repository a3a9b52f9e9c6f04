//go:build linux

package main

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
)

// named is a consumer.Sink that passes on the operations and names of updates.
type named chan string

func (named) Opened(context.Context) error      { return nil }
func (named) Marked(context.Context) error      { return nil }
func (named) Lost(context.Context, error, bool) {}
func (n named) Apply(ctx context.Context, updates []consumer.Update) error {
	for _, u := range updates {
		select {
		case n <- u.Operation.String() + " " + u.Name:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// safeBuffer is written by a process while a test reads it.
type safeBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// TestServeDespiteIdleConnections has an owner that may open 128 files, and a peer
// that opens two hundred connections a second from one address, keeps 300 of them,
// and sends nothing. A consumer from another address must be served, and changes of
// the catalog must be noticed.
func TestServeDespiteIdleConnections(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	owner := shellCommand(t.Context(), t, dir, "ulimit -n 128 && exec federationctl serve --listen 127.0.0.1:0 --catalog catalog.yaml "+
		strings.Join(files(".", "owner"), " "))
	var logged safeBuffer
	owner.Stderr = &logged
	output := startWithOutput(t, owner)
	t.Cleanup(func() {
		_ = owner.Process.Kill()
		_ = owner.Wait()
	})
	if !output.Scan() {
		t.Fatalf("serve has ended:\n%s", &logged)
	}
	address := output.Text()[strings.LastIndexByte(output.Text(), ' ')+1:]

	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	full := make(chan struct{}) // closed when there are 300 connections, or there cannot be
	filled := sync.OnceFunc(func() { close(full) })
	working.Go(func() {
		defer filled()
		var idle []net.Conn
		defer func() {
			for _, conn := range idle {
				conn.Close()
			}
		}()
		for dialed := 0; ctx.Err() == nil; dialed++ {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			if idle = append(idle, conn); len(idle) > 300 {
				idle[0].Close()
				idle = idle[1:]
			}
			if dialed >= 300 {
				filled()
				pause := time.NewTimer(5 * time.Millisecond)
				select {
				case <-pause.C:
				case <-ctx.Done():
				}
				pause.Stop()
			}
		}
	})
	<-full

	source, err := mtls.Load(filesOf(dir, "consumer"), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := make(named)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := consumer.New(consumer.Config{
		Addresses:   []string{address},
		Credentials: func(string) credentials.TransportCredentials { return source.Client("localhost", nil) },
		Sink:        names,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	working.Go(func() { _ = c.Run(ctx) })
	expect := func(want string) {
		t.Helper()
		deadline := time.NewTimer(patience)
		defer deadline.Stop()
		select {
		case got := <-names:
			if got != want {
				t.Fatalf("received %q, expected %q", got, want)
			}
		case <-deadline.C:
			t.Fatalf("no %q within %v\n%s", want, patience, &logged)
		}
	}
	begun := time.Now()
	expect("upsert api")
	expect("upsert shop")
	expect(federation.End.String() + " ")
	t.Logf("the catalog arrived after %v", time.Since(begun))
	write(t, file, "services: []\n")
	begun = time.Now()
	expect("delete api")
	expect("delete shop")
	t.Logf("an edit arrived after %v", time.Since(begun))

	if n := strings.Count(logged.String(), "too many open files"); n > 0 {
		t.Errorf("%d log lines say that a file could not be opened, want none:\n%s", n, &logged)
	}
	if n := strings.Count(logged.String(), "connection turned away"); n == 0 || n > 60 {
		t.Errorf("%d log lines say that connections were turned away, want 1 to 60", n)
	}
}
