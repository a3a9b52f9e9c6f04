package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// kept is an owner whose catalog is kept in a file for an hour.
func (w *world) kept(file string) agent.OwnerConfig {
	c := w.owner(ownerAddress)
	c.Retention = time.Hour
	c.Persist = file
	return c
}

// A process that starts while the owner is away answers at once, and for what is
// left of the retention. What is left is known exactly after a shutdown, and
// never more than that after a kill.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lost time.Duration // how long before the end of the process
		kill bool
		away time.Duration // until the next one starts
		web  string        // the first answer
		left time.Duration // of the retention, then
		less time.Duration // by which it may be shorter
	}{
		"shutdown with the owner there": {0, false, 10 * time.Minute, "192.0.2.1 30 stale", 50 * time.Minute, 0},
		"shutdown after the loss":       {20 * time.Minute, false, 10 * time.Minute, "192.0.2.1 30 stale", 30 * time.Minute, 0},
		"shutdown, and nearly too late": {20 * time.Minute, false, 40*time.Minute - 5*time.Second, "192.0.2.1 5 stale", 5 * time.Second, 0},
		"shutdown, and too late":        {20 * time.Minute, false, 40*time.Minute + time.Second, "SERVFAIL", 0, 0},
		"kill with the owner there":     {0, true, 10 * time.Minute, "192.0.2.1 30 stale", 50 * time.Minute, 4 * time.Minute},
		"kill after the loss":           {20 * time.Minute, true, 10 * time.Minute, "192.0.2.1 30 stale", 30 * time.Minute, 0},
		"kill, and too late":            {0, true, time.Hour, "SERVFAIL", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				file := filepath.Join(t.TempDir(), "catalog")
				_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
				first := w.attach(w.block(1, w.kept(file)))
				time.Sleep(100 * time.Minute)
				if tc.lost > 0 {
					stop()
					time.Sleep(tc.lost)
				}
				if tc.kill {
					content := must.Get(os.ReadFile(file))(t)
					file += " when killed"
					must.Do(t, os.WriteFile(file, content, 0o600))
				}
				w.agent.Detach(first)
				stop()
				time.Sleep(tc.away)

				w.start()
				b := w.attach(w.block(1, w.kept(file)))
				synctest.Wait()
				started := time.Now()
				if got := look(b, "web.fed.example"); got != tc.web {
					t.Errorf("web is %s, want %s", got, tc.web)
				}
				nope := "NXDOMAIN"
				if tc.left == 0 {
					nope = "SERVFAIL"
				}
				if got := look(b, "nope.fed.example"); got != nope || b.Ready() != (tc.left > 0) {
					t.Errorf("nope is %s, want %s; ready is %v", got, nope, b.Ready())
				}
				for strings.HasPrefix(look(b, "web.fed.example"), "192.0.2.1 ") {
					time.Sleep(100 * time.Millisecond)
				}
				if tc.left > 0 {
					tc.less += time.Second // there is no TTL for the last one
				}
				if took := time.Since(started); took > tc.left+100*time.Millisecond || took < tc.left-tc.less {
					t.Errorf("answered for %v, want %v and at most %v less", took, tc.left, tc.less)
				}
				if tc.left > 0 && look(b, "web.fed.example") != "NXDOMAIN" {
					t.Errorf("web is %s in the end", look(b, "web.fed.example"))
				}
			})
		})
	}
}
