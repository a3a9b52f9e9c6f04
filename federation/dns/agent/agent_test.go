package agent_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// The life of an owner, state by state, with what is answered in each.
func TestLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		stop := func() {}
		serve := func() { _, stop = w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1")) }
		for _, step := range []struct {
			what      string
			do        func()
			after     time.Duration
			state     string
			web, nope string
		}{
			{"start without the owner", func() {}, time.Hour, "connecting 0/0", "SERVFAIL", "SERVFAIL"},
			{"the owner comes", serve, 61 * time.Second, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{"it is idle", func() {}, 48 * time.Hour, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{"it goes", func() { stop() }, time.Second, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{"the grace is over", func() {}, 5 * time.Second, "stale 1/1", "192.0.2.1 30 stale", "NXDOMAIN"},
			{"still away", func() {}, 24*time.Hour - 16*time.Second, "stale 1/1", "192.0.2.1 10 stale", "NXDOMAIN"},
			{"in the last second", func() {}, 9*time.Second + 500*time.Millisecond, "stale 1/1", "NXDOMAIN", "NXDOMAIN"},
			{"the retention is over", func() {}, time.Second, "expired 0/0", "NXDOMAIN", "NXDOMAIN"},
			{"it stays away", func() {}, 24 * time.Hour, "expired 0/0", "NXDOMAIN", "NXDOMAIN"},
			{"it returns", serve, 61 * time.Second, "synced 1/0", "192.0.2.1 60", "NXDOMAIN"},
			{
				"it turns us away",
				func() { stop(); _, stop = w.misbehave(ownerAddress, "status Unauthenticated") },
				time.Minute, "parked 1/1", "192.0.2.1 30 stale", "NXDOMAIN",
			},
			{"it would take us again", func() { stop(); serve() }, time.Hour, "parked 1/1", "192.0.2.1 30 stale", "NXDOMAIN"},
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

// After these codes there is one attempt, and no other before something changes
// that could make a difference.
func TestParked(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"Unauthenticated", "InvalidArgument"} {
		for name, change := range map[string]func(w *world, b *agent.Block){
			"files": func(w *world, _ *agent.Block) { w.rotate() },
			"configuration": func(w *world, b *agent.Block) {
				w.files = w.issue("consumer.example")
				w.attach(w.block(2, w.owner(ownerAddress)))
				w.agent.Detach(b)
			},
			"reload of the same": func(w *world, b *agent.Block) {
				w.attach(w.block(2, w.owner(ownerAddress)))
				w.agent.Detach(b)
			},
		} {
			t.Run(code+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.misbehave(ownerAddress, "status "+code+"\n---\nstatus "+code+"\n---\nupsert web web.fed.example 192.0.2.1\nhang")
					b := w.attach(w.block(1, w.owner(ownerAddress)))
					time.Sleep(240 * time.Hour)
					if n := w.attempts(); n != 1 || w.state() != "parked 0/0" {
						t.Fatalf("%d attempts, owner is %s", n, w.state())
					}
					// A reload that fails is no reason to try again.
					failed := w.attach(w.block(3, w.owner(ownerAddress)))
					w.agent.Retain([]any{1})
					<-failed.Detached()
					time.Sleep(time.Hour)
					if n := w.attempts(); n != 1 {
						t.Fatalf("%d attempts after a reload that failed", n)
					}
					change(w, b)
					time.Sleep(240 * time.Hour)
					if n := w.attempts(); n != 2 || w.state() != "parked 0/0" {
						t.Fatalf("%d attempts, owner is %s", n, w.state())
					}
					w.rotate()
					time.Sleep(time.Minute)
					if n := w.attempts(); n != 3 || w.state() != "synced 1/0" {
						t.Errorf("%d attempts, owner is %s", n, w.state())
					}
				})
			})
		}
	}
}

// What is held through another loss keeps its own time, and no answer from it
// outlives that.
func TestHeldThroughLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.misbehave(ownerAddress, "services 0 20 fed.example\nwait 1h\nreset\n---\nservices 0 5 fed.example\nwait 50m\nreset\n---\nstatus Unavailable")
		c := w.owner(ownerAddress)
		c.Rules.Retention = time.Hour
		b := w.attach(w.block(1, c))
		time.Sleep(time.Hour)
		synctest.Wait()
		lost := time.Now()
		time.Sleep(52 * time.Minute)
		for ; c.Rules.Retention-time.Since(lost) >= time.Second; time.Sleep(time.Second) {
			left := int((c.Rules.Retention - time.Since(lost)).Seconds())
			if got, want := look(b, "s19.fed.example"), fmt.Sprintf("10.0.0.19 %d stale", min(30, left)); got != want {
				t.Fatalf("%v after the loss s19 is %s, want %s", time.Since(lost), got, want)
			}
		}
		time.Sleep(time.Second)
		if held, kept := look(b, "s19.fed.example"), look(b, "s3.fed.example"); held != "NXDOMAIN" || kept != "10.0.0.3 30 stale" {
			t.Errorf("after the retention of what was held s19 is %s, s3 is %s", held, kept)
		}
	})
}

// While one owner of a zone may still have a name, it is not denied.
func TestGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
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
		w := newWorld(t)
		_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
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
			if got := look(b, nope); got != "NXDOMAIN" || r.Lost() != lost {
				t.Errorf("%s: nope is %s, lost %t, want %t", when, got, r.Lost(), lost)
			}
		}
		time.Sleep(time.Hour)
		expect("with the owner", "192.0.2.1 60", false)
		stop()
		time.Sleep(catalog.Grace - time.Nanosecond)
		expect("within the grace", "192.0.2.1 60", false)
		if u := w.agent.Owners(time.Now())[1]; u.State != "synced" || u.Failure != "" || !u.Lost.IsZero() || !u.NextAttempt.IsZero() || u.Judge(time.Now(), false).Level > status.Well {
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
		time.Sleep(time.Hour)
		expect("long expired", "NXDOMAIN", true)
		w.misbehave(ownerAddress, "announce\nupsert web web.fed.example 192.0.2.2\nwait 4m\nend\nhang")
		time.Sleep(3 * time.Minute)
		expect("back in part", "192.0.2.2 60", true)
		time.Sleep(4 * time.Minute)
		expect("back", "192.0.2.2 60", false)
	})
}

// Secondaries are told of changes, and an attempt that fails is none.
func TestSerial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		serial := func() uint32 { return b.Zone().SOA("fed.example.").Serial }
		time.Sleep(time.Hour)
		live := serial()
		stop()
		time.Sleep(catalog.Grace - time.Second)
		if serial() != live {
			t.Error("a loss within the grace has moved the serial")
		}
		time.Sleep(2 * time.Second)
		lost := serial()
		if lost == live {
			t.Error("the loss, which changes TTLs, has not moved the serial")
		}
		w.misbehave(ownerAddress, "status Unavailable")
		time.Sleep(time.Hour)
		if got := serial(); got != lost {
			t.Errorf("%d attempts that failed have moved the serial from %d to %d", w.attempts(), lost, got)
		}
	})
}

// An owner that sends as fast as it can is slowed to what is applied, and the
// updates of others are not delayed. It needs a real clock: in a bubble nothing
// takes time.
func TestFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	flood, _ := w.misbehave(ownerAddress, "flood 100000000 a a.fed.example 192.0.2.1")
	neighbour, _ := w.serve("b.example:8008", services.At("web.fed.example", "192.0.2.0"))
	b := w.attach(w.block(1, w.owner(ownerAddress), w.owner("b.example:8008")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	await := func(want string) {
		t.Helper()
		for look(b, "web.fed.example") != want || look(b, "a.fed.example") != "192.0.2.1 60" {
			select {
			case <-b.Changed():
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("web is %s and not %s", look(b, "web.fed.example"), want)
			}
		}
	}
	await("192.0.2.0 60")
	flooded := func() int { return w.counted("responded " + ownerAddress + " upsert") }
	before := flooded()
	var slowest time.Duration
	for i := 1; i <= 100 || flooded() < before+1000; i++ {
		address := fmt.Sprintf("192.0.2.%d", i%200)
		start := time.Now()
		must.Get(neighbour.Upsert(services.At("web.fed.example", address)))(t)
		await(address + " 60")
		slowest = max(slowest, time.Since(start))
	}
	if slowest > 20*time.Second {
		t.Errorf("an update of the neighbour took %v", slowest)
	}
	if _, open := flood.Streams(); open != 1 {
		t.Errorf("%d streams of the owner that floods", open)
	}
}
