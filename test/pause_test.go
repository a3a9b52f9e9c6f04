package test

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// TestCoreDNSStoppedWithinCatalog stops the process of CoreDNS in the middle of the
// catalog of an owner that does not mark its end, for longer than settle. Time in
// which the process did not run is not silence of the owner: no name may be swept.
func TestCoreDNSStoppedWithinCatalog(t *testing.T) {
	t.Parallel()
	// The owner is silent while CoreDNS runs and is asked a few times, which on a busy
	// machine takes a while.
	const settle = 15 * time.Second
	for name, meanwhile := range map[string]bool{"rest comes later": false, "rest comes meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPKI(t)
			f := &faulty{t: t, pki: p, zone: "fed.example", address: freeAddress(t)}
			f.serve(original+"\nawait\nreset\n---\nupsert web web.ZONE 192.0.2.1\nawait"+
				"\nupsert api api.ZONE 192.0.2.2\nwait 2s\nupsert old old.ZONE 192.0.2.3\nhang", f.load(p.owner), 0)
			f.d = startCoreDNS(t, federationBlock(p, "fed.example", "", fmt.Sprintf("%s settle %v", f.address, settle)))
			w := watch(t, f.d.address, f.zone, unsynced(before))
			w.await(t, before)
			f.next()
			f.until(func() string {
				if n := len(f.owner.Answers()); n < 4 {
					return fmt.Sprintf("%d answers, want one on the second stream", n)
				}
				return ""
			})

			f.d.signal(syscall.SIGSTOP)
			stopped := time.Now()
			f.until(func() string {
				if time.Since(stopped) < settle+time.Second {
					return "not stopped for long enough"
				}
				return ""
			})
			if meanwhile {
				f.next()
			}
			f.d.signal(syscall.SIGCONT)
			if !meanwhile {
				w.more(t, 2)
				f.next()
			}
			f.logged("owner is synced", 2)
			w.more(t, 5)
		})
	}
}
