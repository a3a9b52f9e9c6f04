//go:build linux

package main

import (
	"bufio"
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

// named hands on the names of the services that an owner sends.
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

// safeBuffer is written by a process and read by a test.
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

// TestIdleConnectionsKeepNobodyOut: an owner that may have 128 files open is
// connected to from one address, two hundred times a second, by a peer that keeps
// 300 connections and says nothing. A consumer from another address is served, and
// the catalog and the certificates are followed all the same.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalog)
	owner := shellCommand(t.Context(), t, dir, "ulimit -n 128 && exec federationctl serve --listen 127.0.0.1:0 --catalog catalog.yaml "+
		strings.Join(files(".", "owner"), " "))
	var logged safeBuffer
	owner.Stderr = &logged
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = owner.Process.Kill()
		_ = owner.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("serve ended: %v\n%s", err, &logged)
	}
	address := strings.TrimSpace(line[strings.LastIndex(line, " ")+1:])

	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	full := make(chan struct{}) // closed when there are as many connections as there should be
	working.Go(func() {
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
			if dialed == 300 {
				close(full)
			}
			if dialed >= 300 {
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

	source, err := mtls.Load(mtls.Files{
		Cert: filepath.Join(dir, "consumer.pem"), Key: filepath.Join(dir, "consumer-key.pem"), CA: filepath.Join(dir, "ca.pem"),
	}, nil)
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
	t.Logf("the catalog was there after %v", time.Since(begun))
	write(t, file, "services: []\n")
	begun = time.Now()
	expect("delete api")
	expect("delete shop")
	t.Logf("an edit was there after %v", time.Since(begun))

	if n := strings.Count(logged.String(), "too many open files"); n > 0 {
		t.Errorf("%d log lines tell of files that could not be opened:\n%s", n, &logged)
	}
	if n := strings.Count(logged.String(), "connection turned away"); n == 0 || n > 60 {
		t.Errorf("%d log lines tell of connections that were turned away", n)
	}
}
