package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// The life of an owner, state by state, with what is answered in each.
func TestLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		c := w.owner(ownerAddress)
		c.Rules.Retention = time.Hour
		b := w.attach(w.block(1, c))
		stop := func() {}
		serve := func() { _, stop = w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1")) }
		for _, step := range []struct {
			what      string
			do        func()
			after     time.Duration
			state     string
			web, nope string
		}{
			{"start without the owner", func() {}, time.Minute, "connecting 0/0", "SERVFAIL", "SERVFAIL"},
			{"the owner comes", serve, 61 * time.Second, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{"it is idle", func() {}, time.Hour, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{"it goes", func() { stop() }, time.Second, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{"the grace is over", func() {}, 5 * time.Second, "stale 1/1", "192.0.2.1 30 stale", "NXDOMAIN"},
			{"still away", func() {}, time.Hour - 16*time.Second, "stale 1/1", "192.0.2.1 10 stale", "NXDOMAIN"},
			{"in the last second", func() {}, 9*time.Second + 500*time.Millisecond, "stale 1/1", "NXDOMAIN", "NXDOMAIN"},
			{"the retention is over", func() {}, time.Second, "expired 0/0", "NXDOMAIN", "NXDOMAIN"},
			{"it stays away", func() {}, time.Hour, "expired 0/0", "NXDOMAIN", "NXDOMAIN"},
			{"it returns", serve, 61 * time.Second, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{
				"it turns us away",
				func() { stop(); _, stop = w.Misbehave(ownerAddress, "status Unauthenticated") },
				time.Minute, "parked 1/1", "192.0.2.1 30 stale", "NXDOMAIN",
			},
			{"it would take us again", func() { stop(); serve() }, 30 * time.Minute, "parked 1/1", "192.0.2.1 30 stale", "NXDOMAIN"},
			{"we have a new certificate", w.rotate, time.Second, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
		} {
			step.do()
			time.Sleep(step.after)
			if got := w.state(); got != step.state {
				t.Errorf("%s: owner is %s, want %s", step.what, got, step.state)
			}
			if web, nope := look(b, "web.fed.example"), look(b, "nope.fed.example"); web != step.web || nope != step.nope {
				t.Errorf("%s: web is %s and nope %s, want %s and %s", step.what, web, nope, step.web, step.nope)
			}
		}
	})
}

// An owner that has refused the consumer is tried once more when something changes that could make
// a difference, and not before.
func TestParked(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *testAgent, b *agent.Block){
		"files": func(w *testAgent, _ *agent.Block) { w.rotate() },
		"reload of the same": func(w *testAgent, b *agent.Block) {
			w.attach(w.block(2, w.owner(ownerAddress)))
			w.agent.Detach(b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				w.Misbehave(ownerAddress, "status Unauthenticated\n---\nstatus Unauthenticated\n---\nupsert web web.fed.example 192.0.2.1\nhang")
				b := w.attach(w.block(1, w.owner(ownerAddress)))
				expect := func(when string, attempts int, state string) {
					t.Helper()
					time.Sleep(time.Hour)
					if n := w.attempts(); n != attempts || w.state() != state {
						t.Errorf("%s there were %d attempts, owner is %s", when, n, w.state())
					}
				}
				expect("at first", 1, "parked 0/0")
				failed := w.attach(w.block(3, w.owner(ownerAddress)))
				w.agent.RetainConfigurations(func(c any) bool { return c == 1 })
				<-failed.Detached()
				expect("after a reload that failed", 1, "parked 0/0")
				change(w, b)
				expect("after a change", 2, "parked 0/0")
				w.rotate()
				expect("after another one", 3, "synced 1/0")
			})
		})
	}
}

// While one owner of a zone may still have a name, it is not denied.
func TestGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		b := w.attach(w.block(1, w.owner(ownerAddress), w.owner("b.example:8008")))
		for _, step := range []struct {
			after time.Duration
			nope  string
		}{{time.Second, "SERVFAIL"}, {28 * time.Second, "SERVFAIL"}, {time.Second, "NXDOMAIN"}} {
			time.Sleep(step.after)
			if web, nope := look(b, "web.fed.example"), look(b, "nope.fed.example"); web != "192.0.2.1 60" || nope != step.nope {
				t.Errorf("web is %s, nope is %s, want %s", web, nope, step.nope)
			}
		}
		// And again for an owner that a reload adds.
		more := w.attach(w.block(2, w.owner(ownerAddress), w.owner("b.example:8008"), w.owner("c.example:8008")))
		if web, nope := look(more, "web.fed.example"), look(more, "nope.fed.example"); web != "192.0.2.1 60" || nope != "SERVFAIL" {
			t.Errorf("web is %s, nope is %s", web, nope)
		}
		time.Sleep(30 * time.Second)
		if got := look(more, "nope.fed.example"); got != "NXDOMAIN" {
			t.Errorf("nope is %s", got)
		}
	})
}

// While an owner is lost, expired or back without its whole catalog, what the zone denies
// may exist, and consumers are told: see Result.Lost. It is neither before an owner was
// ever heard nor once its catalog is complete again.
func TestDenialsOfLostOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		_, stop := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		c := w.owner(ownerAddress)
		c.Rules.Retention = 10 * time.Minute
		b := w.attach(w.block(1, c, w.owner("never.example:8008")))
		expect := func(when, web string, lost bool) {
			t.Helper()
			synctest.Wait()
			if got := look(b, "web.fed.example"); got != web {
				t.Errorf("%s: web is %s, want %s", when, got, web)
			}
			const nope = "nope.fed.example."
			r := b.Zone().Lookup(nope, dns.TypeA, time.Now())
			if got := look(b, nope); got != "NXDOMAIN" || r.HasLostOwner() != lost {
				t.Errorf("%s: nope is %s, lost %t, want %t", when, got, r.HasLostOwner(), lost)
			}
		}
		time.Sleep(10 * time.Minute)
		expect("with the owner", "192.0.2.1 60", false)
		stop()
		time.Sleep(catalog.Grace - time.Nanosecond)
		expect("within the grace", "192.0.2.1 60", false)
		if u := w.agent.OwnerReports(time.Now())[1]; u.State != "synced" || u.Failure != "" || !u.Lost.IsZero() || !u.NextAttempt.IsZero() || u.Judge(time.Now(), status.Consumer).Level > status.Well {
			t.Errorf("within the grace a loss is reported: %+v", u)
		}
		time.Sleep(time.Nanosecond)
		expect("lost", "192.0.2.1 30 stale", true)
		time.Sleep(c.Rules.Retention - catalog.Grace - 12*time.Second - 100*time.Millisecond)
		expect("12.1 s before the end", "192.0.2.1 12 stale", true)
		time.Sleep(11 * time.Second)
		expect("before the last second", "192.0.2.1 1 stale", true)
		time.Sleep(200 * time.Millisecond)
		expect("in the last second, for which there is no TTL", "NXDOMAIN", true)
		time.Sleep(10 * time.Minute)
		expect("long expired", "NXDOMAIN", true)
		w.Misbehave(ownerAddress, "announce\nupsert web web.fed.example 192.0.2.2\nwait 4m\nend\nhang")
		time.Sleep(3 * time.Minute)
		expect("back in part", "192.0.2.2 60", true)
		time.Sleep(4 * time.Minute)
		expect("back", "192.0.2.2 60", false)
	})
}
