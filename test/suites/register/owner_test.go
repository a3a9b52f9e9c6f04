package register

import (
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// TestOwnerKilled kills an owner with many nodes, and some of its providers while it is
// away. Through its restart and convergence no name blinks. What has not come back is
// there until convergence is over, and not any more then.
func TestOwnerKilled(t *testing.T) {
	enabled(t)
	t.Run("memory", func(t *testing.T) { ownerKilled(t, "") })
	t.Run("etcd", func(t *testing.T) { ownerKilled(t, oneEtcd(t)) })
}

// enabled ends the test here unless tests that take minutes are wanted.
func enabled(t *testing.T) {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it takes a minute or more; make e2e runs it")
	}
}

func ownerKilled(t *testing.T, store string) {
	const (
		nodes       = 10_000
		lost        = 500 // of them, whose providers do not come back
		services    = 5_000
		convergence = 15 * time.Second
		ttl         = 10 * time.Second
		busy        = 10 * time.Second // by which the end of the convergence may be late on a busy machine
	)
	w := start(t, options{store: store, convergence: convergence})
	back := w.launch(t, fleet.Config{Nodes: nodes - lost, Services: services, Streams: 50, TTL: ttl})
	away := w.launch(t, fleet.Config{First: 1 << 20, Nodes: lost, Services: 1 << 21, Streams: 5, TTL: ttl})
	for _, p := range []*providers{back, away} {
		p.connected(t)
		p.begin(t)
	}
	back.granted(t)
	away.granted(t)
	resolved(t, w.dns, back.answers())
	resolved(t, w.dns, away.answers())

	o := w.owners[0]
	stay, leave := probe(t, w.dns, back.answers()), probe(t, w.dns, away.answers())
	more(t, stay)
	more(t, leave)
	pauses := o.pauses()
	o.Kill()
	away.kill()
	begin := time.Now()
	leave.Judge(begin.Add(convergence)) // until then all of it is there
	must.Do(t, o.Start(t.Context()))
	f := w.follow(t, o.address)
	if store != "" { // it publishes at once what it had, so a consumer that comes now is told everything
		f.synced(t, services+lost)
		if took := time.Since(begin); took >= convergence {
			t.Errorf("the owner was silent for %v after its start", took)
		}
	}
	back.granted(t)
	t.Logf("%d nodes were registered again %v after the owner was killed", nodes-lost, time.Since(begin).Round(time.Millisecond))
	more(t, stay)
	passes(t, begin.Add(convergence))
	leave.Check(t)

	gone := maps.Clone(away.answers())
	for name := range gone {
		gone[name] = "NXDOMAIN"
	}
	resolved(t, w.dns, gone)
	known := lost // to the owner since its start
	if store == "" {
		f.synced(t, services) // nobody is told of less before the period is over
		known = 0
	}
	// The period begins when the owner has started, and with etcd when it has its state.
	pauses = o.pauses() - pauses
	most := time.Duration(1+pauses)*convergence + busy
	for name := range gone {
		if known == 0 {
			break
		}
		if took := f.gone(t, name).Sub(begin); took < convergence || took > most {
			t.Fatalf("%s did not come back, and was there for %v, with a convergence of %v and %d pauses", name, took, convergence, pauses)
		}
	}
	t.Logf("%d nodes that did not come back were gone after %v", lost, time.Since(begin).Round(time.Millisecond))
	more(t, stay)
	stay.Check(t)
	if n := len(f.withdrawals()); n != known {
		t.Errorf("%d services were withdrawn, want %d", n, known)
	}
	eventually(t, func() string {
		if n := o.metric(t, "nodes"); n != nodes-lost {
			return fmt.Sprintf("the owner has %v nodes, want %d", n, nodes-lost)
		}
		if n := o.metric(t, "expired_total"); n != float64(known) {
			return fmt.Sprintf("the owner counts %v nodes that have expired, want %d", n, known)
		}
		return ""
	})
}
