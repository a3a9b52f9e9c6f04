package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// answers asks for a name that lives and one that does not, twice a second until a moment. But
// for their TTL, which is for other tests, the answers are among the right ones.
func (w *world) answers(b *agent.Block, until time.Time, web, nope []string) {
	w.t.Helper()
	for ; time.Now().Before(until); time.Sleep(500 * time.Millisecond) {
		for name, right := range map[string][]string{"web.fed.example": web, "nope.fed.example": nope} {
			words := strings.Fields(look(b, name))
			if len(words) > 1 {
				words = slices.Delete(words, 1, 2)
			}
			if got := strings.Join(words, " "); !slices.Contains(right, got) {
				w.t.Fatalf("%s is %s, and not one of %q", name, got, right)
			}
		}
	}
}

const (
	settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	ping     = "\x00\x00\x08\x06\x00\x00\x00\x00\x00........"
	goAway   = "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00" // that stream may be finished
	// The header of a response, and a message of 100 bytes of which one comes.
	header = "\x00\x00\x14\x01\x04\x00\x00\x00\x01\x88\x0f\x10\x10application/grpc"
	begun  = "\x00\x00\x05\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x64"
	byte1  = "\x00\x00\x01\x00\x00\x00\x00\x00\x01\x0a"
)

// frames runs an owner that has no more than a TLS stack. It writes the frames of
// HTTP/2 at first, and the others once a second.
func (w *world) frames(address, first, then string) {
	w.t.Helper()
	listener, source := w.Listen(address), w.source(address)
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer raw.Close()
				defer context.AfterFunc(ctx, func() { raw.Close() })()
				conn, _, err := source.Server().ServerHandshake(raw)
				if err != nil {
					return
				}
				running.Go(func() { _, _ = io.Copy(io.Discard, conn) })
				for _, frames := range []string{settings, first} {
					if _, err := io.WriteString(conn, frames); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
				for err == nil {
					_, err = io.WriteString(conn, then)
					time.Sleep(time.Second)
				}
			})
		}
	})
	w.t.Cleanup(func() {
		cancel()
		listener.Close()
		running.Wait()
	})
}

// silentOwners are owners that open a stream and say nothing of their services.
var silentOwners = map[string]func(w *world, address string){
	"hangs":            func(w *world, address string) { w.misbehave(address, "hang") },
	"announces only":   func(w *world, address string) { w.misbehave(address, "announce\nheader\nhang") },
	"is alive":         func(w *world, address string) { w.misbehave(address, strings.Repeat("end\nwait 1s\n", 100)+"hang") },
	"marks not":        func(w *world, address string) { w.misbehave(address, "announce\nheader\nwait 1m\nstatus Unavailable") },
	"sends bad ones":   func(w *world, address string) { w.misbehave(address, "upsert a a.other.example 192.0.2.9\nhang") },
	"pings":            func(w *world, address string) { w.frames(address, ping, ping) },
	"changes its mind": func(w *world, address string) { w.frames(address, settings, settings) },
	"is going away":    func(w *world, address string) { w.frames(address, goAway, ping) },
	"drips":            func(w *world, address string) { w.frames(address, header+begun, byte1) },
}

var (
	servfail = []string{"SERVFAIL"}
	nxdomain = []string{"NXDOMAIN"}
)

// Of an owner that says nothing, nothing is known: no name is denied, nothing is
// kept for the next process, and silence makes nobody ready.
func TestSilenceIsNoEmptiness(t *testing.T) {
	t.Parallel()
	for name, run := range silentOwners {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				run(w, ownerAddress)
				file := filepath.Join(t.TempDir(), "catalog")
				for process := range 2 {
					w.start()
					b := w.attach(w.block(process, w.kept(file)))
					w.answers(b, time.Now().Add(20*time.Second), servfail, servfail)
					if b.Ready() {
						t.Error("ready by silence")
					}
					w.answers(b, time.Now().Add(time.Hour), servfail, servfail)
					s := w.agent.Owners(time.Now())[0]
					if s.Known || !s.LastSync.IsZero() || s.Services != 0 || s.State == "synced" {
						t.Errorf("status is %+v", s)
					}
					w.agent.Detach(b)
					if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("something is kept: %v", err)
					}
				}
			})
		})
	}
}

// What was complete before such a stream is stale while it lasts, and the clock of
// its retention goes on; so it is in the next process.
func TestSilenceAfterCatalog(t *testing.T) {
	t.Parallel()
	for name, run := range silentOwners {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", name, restart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					file := filepath.Join(t.TempDir(), "catalog")
					_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
					b := w.attach(w.block(1, w.kept(file))) // for an hour
					time.Sleep(time.Minute)
					stop()
					lost := time.Now()
					run(w, ownerAddress)
					stale := []string{"192.0.2.1 stale"}
					w.answers(b, lost.Add(10*time.Minute), append(stale, "192.0.2.1"), nxdomain)
					if restart {
						w.agent.Detach(b)
						w.start()
						b = w.attach(w.block(2, w.kept(file)))
						synctest.Wait()
					}
					w.answers(b, lost.Add(time.Hour-time.Second), stale, nxdomain)
					w.answers(b, lost.Add(time.Hour+4*time.Second), append(stale, "NXDOMAIN"), nxdomain)
					w.answers(b, lost.Add(2*time.Hour), nxdomain, nxdomain)
					if s := w.agent.Owners(time.Now())[0]; s.Services != 0 {
						t.Errorf("status is %+v", s)
					}
					if n := strings.Count(strings.Join(w.log.Lines(), ""), "owner is expired"); n != 1 {
						t.Errorf("expiry is logged %d times", n)
					}
				})
			})
		}
	}
}
