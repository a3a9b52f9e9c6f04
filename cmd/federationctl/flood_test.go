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

	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

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

// TestIdleConnectionsFromOneAddress floods an owner that may have 128 files open: a
// peer opens two hundred connections a second from one address, keeps 300 of them
// and sends nothing. A consumer from another address is served all the same, and
// edits of the catalog file are followed.
func TestIdleConnectionsFromOneAddress(t *testing.T) {
	realBinary(t)
	dir := pkiIn(t)
	file := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	owner := shellCommand(t.Context(), t, dir, "ulimit -n 128 && exec federationctl serve --listen 127.0.0.1:0 --catalog catalog.yaml --allow-any "+
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

	source := must.Get(mtls.Load(filesOf(dir, "consumer"), nil))(t)
	published := make(chan string)
	publish := func(what string) {
		select {
		case published <- what:
		case <-ctx.Done():
		}
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	synced := false
	m := must.Get(consumer.New(consumer.Config{
		Subscription: consumer.Subscription{
			Addresses: []string{address},
			Identity:  mtls.Consumer{Source: source, ServerName: "localhost"},
			Dial: func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			},
		},
		Publish: func(c consumer.Changes) {
			for _, change := range c.Services {
				if change.Op() == catalog.Gone {
					publish("delete " + change.Name)
				} else {
					publish("upsert " + change.Name)
				}
			}
			before := synced
			if synced = c.Status.State == catalog.Synced; synced && !before {
				publish("synced")
			}
		},
	}))(t)
	working.Go(func() { _ = m.Run(ctx) })
	expect := func(want string) {
		t.Helper()
		deadline := time.NewTimer(patience)
		defer deadline.Stop()
		select {
		case got := <-published:
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
	expect("synced")
	t.Logf("the catalog was there after %v", time.Since(begun))
	write(t, file, "services: []\n")
	begun = time.Now()
	expect("delete api")
	expect("delete shop")
	t.Logf("an edit arrived after %v", time.Since(begun))

	if n := strings.Count(logged.String(), "too many open files"); n > 0 {
		t.Errorf("%d log lines report files that could not be opened:\n%s", n, &logged)
	}
	if n := strings.Count(logged.String(), "connection turned away"); n == 0 || n > 60 {
		t.Errorf("%d log lines report connections that were turned away, expected 1 to 60", n)
	}
}
