package agent_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// answers asks for a name that lives and one that does not, again and again until a moment. But
// for their TTL, which is for other tests, the answers are among the right ones.
func (w *testAgent) answers(b *agent.Block, until time.Time, web, nope []string) {
	w.Helper()
	for ; time.Now().Before(until); time.Sleep(500 * time.Millisecond) {
		for name, right := range map[string][]string{"web.fed.example": web, "nope.fed.example": nope} {
			words := strings.Fields(look(b, name))
			if len(words) > 1 {
				words = slices.Delete(words, 1, 2)
			}
			if got := strings.Join(words, " "); !slices.Contains(right, got) {
				w.Fatalf("%s is %s, and not one of %q", name, got, right)
			}
		}
	}
}

// silentOwners open a stream and say nothing of their services. The matrix of faults has more of them.
var silentOwners = map[string]string{
	"hangs":          "hang",
	"announces only": "announce\nheader\nhang",
	"is alive":       "heartbeats 3s",
	"marks not":      "announce\nheader\nwait 1m\nstatus Unavailable",
	"sends bad ones": "upsert a a.other.example 192.0.2.9\nhang",
}

var (
	servfail = []string{"SERVFAIL"}
	nxdomain = []string{"NXDOMAIN"}
)

// Of an owner that says nothing, nothing is known: no name is denied, nothing is
// kept for the next process, and silence makes nobody ready.
func TestSilenceIsNoEmptiness(t *testing.T) {
	t.Parallel()
	for name, script := range silentOwners {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				w.Misbehave(ownerAddress, script)
				file := filepath.Join(t.TempDir(), "catalog")
				b := w.attach(w.block(1, w.kept(file)))
				w.answers(b, time.Now().Add(20*time.Second), servfail, servfail)
				if b.Ready() {
					t.Error("ready by silence")
				}
				w.answers(b, time.Now().Add(10*time.Minute), servfail, servfail)
				s := w.agent.OwnerReports(time.Now())[0]
				if s.Known || !s.LastSync.IsZero() || s.Services != 0 || s.State == "synced" {
					t.Errorf("status is %+v", s)
				}
				w.agent.Detach(b)
				if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("something is kept: %v", err)
				}
			})
		})
	}
}

// What was complete before such a stream is stale while it lasts, and the clock of
// its retention goes on; so it is in the next process.
func TestSilenceAfterCatalog(t *testing.T) {
	t.Parallel()
	for name, script := range silentOwners {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				c := w.kept(filepath.Join(t.TempDir(), "catalog"))
				c.Rules.Retention = 10 * time.Minute
				_, stop := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
				b := w.attach(w.block(1, c))
				time.Sleep(time.Minute)
				stop()
				lost := time.Now()
				w.Misbehave(ownerAddress, script)
				stale := []string{"192.0.2.1 stale"}
				w.answers(b, lost.Add(5*time.Minute), append(stale, "192.0.2.1"), nxdomain)
				w.agent.Detach(b)
				w.start()
				b = w.attach(w.block(2, c))
				synctest.Wait()
				w.answers(b, lost.Add(10*time.Minute-time.Second), stale, nxdomain)
				w.answers(b, lost.Add(10*time.Minute+4*time.Second), append(stale, "NXDOMAIN"), nxdomain)
				w.answers(b, lost.Add(15*time.Minute), nxdomain, nxdomain)
			})
		})
	}
}
