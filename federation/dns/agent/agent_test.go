package agent_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// The life of an owner, state by state, with what is answered in each.
func TestLife(t *testing.T) {
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
			{"it goes", func() { stop() }, time.Second, "stale 1/1", "192.0.2.1 30 stale", "NXDOMAIN"},
			{"still away", func() {}, 24*time.Hour - 11*time.Second, "stale 1/1", "192.0.2.1 11 stale", "NXDOMAIN"},
			{"one more second is left", func() {}, 10 * time.Second, "stale 1/1", "192.0.2.1 1 stale", "NXDOMAIN"},
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

// What repeats is not logged, however the attempts fail.
func TestLogOfRetries(t *testing.T) {
	for name, tc := range map[string]struct {
		fail    func(w *world)
		retries int
		lines   int // of the first ones
	}{
		"nobody listens":      {func(*world) {}, 1000, 1},
		"hang in handshake":   {func(w *world) { w.Listen(ownerAddress) }, 1000, 1},
		"proxy without owner": {func(w *world) { w.misbehave(ownerAddress, "status Unavailable") }, 100, 0}, // the loss had that reason
		"stream ends at once": {func(w *world) { w.misbehave(ownerAddress, "status OK") }, 100, 1},
		"every service is refused": {
			func(w *world) { w.misbehave(ownerAddress, "services 0 20 other.example\nstatus Internal") }, 100, loglimit.PerMinute + 1 + 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
				c := w.owner(ownerAddress)
				c.Retention = 0
				b := w.attach(w.block(1, c))
				time.Sleep(time.Minute)
				stop()
				synctest.Wait()
				before := len(w.log.Lines())
				tc.fail(w)
				for w.attempts() < tc.retries {
					time.Sleep(time.Minute)
				}
				if lines := w.log.Lines(); len(lines) != before+tc.lines {
					t.Errorf("%d lines before the retries, %d after, want %d:\n%s", before, len(lines), before+tc.lines, strings.Join(lines, ""))
				}
				if got := look(b, "web.fed.example"); got != "192.0.2.1 30 stale" {
					t.Errorf("web is %s", got)
				}
			})
		})
	}
}

// An owner that returns is found within one of our steps.
func TestReturn(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
			b := w.attach(w.block(1, w.owner(ownerAddress)))
			time.Sleep(time.Hour)
			stop()
			time.Sleep(10 * time.Minute)
			w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.2"))
			for range 61 {
				if look(b, "web.fed.example") == "192.0.2.2 60" {
					return
				}
				time.Sleep(time.Second)
			}
			t.Errorf("owner is %s after 61 s", w.state())
		})
	}
}

// After these codes there is one attempt, and no other before something changes
// that could make a difference.
func TestParked(t *testing.T) {
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

// The retention counts from the loss of the last stream that was complete,
// whatever happens in between.
func TestRetention(t *testing.T) {
	const retention = 10 * time.Minute
	for name, away := range map[string]string{
		"nobody listens":           "",
		"streams end at once":      "status Unavailable",
		"streams say nothing":      "wait 3m\nstatus Unavailable",
		"streams are only alive":   "end\nwait 1m\nstatus Unavailable",
		"streams with a part":      "upsert api api.fed.example 192.0.2.2\nwait 1s\nreset",
		"marked, without the mark": "announce\nupsert web web.fed.example 192.0.2.1\nwait 3m\nreset",
		"one stream says nothing":  "hang",
		"all services are refused": "wait 1s\nupsert web web.other.example 192.0.2.1\nhang",
		"parked":                   "status Unauthenticated",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("db.fed.example", "192.0.2.3"))
				c := w.owner(ownerAddress)
				c.Retention = retention
				b := w.attach(w.block(1, c))
				time.Sleep(3 * time.Hour)
				lost := time.Now()
				stop()
				synctest.Wait()
				if away != "" {
					w.misbehave(ownerAddress, away)
				}
				for ; time.Since(lost) < retention; time.Sleep(time.Second) {
					left := int((retention - time.Since(lost)).Seconds()) + 1 // the last second has a TTL, too
					if got, want := look(b, "db.fed.example"), fmt.Sprintf("192.0.2.3 %d stale", min(30, left)); got != want {
						t.Fatalf("%v after the loss db is %s, want %s", time.Since(lost), got, want)
					}
				}
				time.Sleep(time.Second)
				if got := look(b, "db.fed.example"); got != "NXDOMAIN" {
					t.Errorf("after the retention db is %s", got)
				}
			})
		})
	}
}

// An owner without an end marker that comes back with less than half is not
// believed, but for what it says itself.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.misbehave(ownerAddress, `
			services 0 20 fed.example
			wait 1h
			reset
			---
			services 0 5 fed.example
			wait 30m
			delete s7
			services 8 9 fed.example
			hang`)
		c := w.owner(ownerAddress)
		c.Retention = time.Hour
		b := w.attach(w.block(1, c))
		time.Sleep(time.Hour)
		time.Sleep(10 * time.Minute)
		if got := w.state(); got != "synced 20/15" || w.agent.Status()[0].Held != 15 {
			t.Errorf("owner is %s, %d held", got, w.agent.Status()[0].Held)
		}
		time.Sleep(30 * time.Minute)
		for name, want := range map[string]string{
			"s3.fed.example":  "10.0.0.3 60",
			"s7.fed.example":  "NXDOMAIN", // deleted
			"s8.fed.example":  "10.0.0.8 60",
			"s19.fed.example": "10.0.0.19 30 stale",
		} {
			if got := look(b, name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		time.Sleep(21 * time.Minute)
		if got := w.state(); got != "synced 6/0" || look(b, "s19.fed.example") != "NXDOMAIN" || look(b, "s3.fed.example") != "10.0.0.3 60" {
			t.Errorf("owner is %s after the retention", got)
		}
	})
}

// What is held through another loss keeps its own time, and no answer from it
// outlives that.
func TestHeldThroughLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.misbehave(ownerAddress, "services 0 20 fed.example\nwait 1h\nreset\n---\nservices 0 5 fed.example\nwait 50m\nreset\n---\nstatus Unavailable")
		c := w.owner(ownerAddress)
		c.Retention = time.Hour
		b := w.attach(w.block(1, c))
		time.Sleep(time.Hour)
		synctest.Wait()
		lost := time.Now()
		time.Sleep(52 * time.Minute)
		for ; time.Since(lost) < c.Retention; time.Sleep(time.Second) {
			left := int((c.Retention - time.Since(lost)).Seconds()) + 1
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

// cable is a connection that can be cut without either end being told.
type cable struct {
	net.Conn
	cut    <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (c *cable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.cut:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *cable) Write(p []byte) (int, error) {
	select {
	case <-c.cut:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func (c *cable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// An owner that is gone without a word is found by pings, and its records are
// stale from then on.
func TestHungOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cut := make(chan struct{})
		first := true
		w.wrap = func(conn net.Conn) net.Conn {
			if !first {
				return conn
			}
			first = false
			return &cable{Conn: conn, cut: cut, closed: make(chan struct{})}
		}
		registry, _ := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Hour)
		close(cut)
		must.Get(registry.Upsert(services.At("web.fed.example", "192.0.2.2")))(t)
		lost := time.Now()
		for look(b, "web.fed.example") == "192.0.2.1 60" {
			time.Sleep(time.Second)
		}
		if took := time.Since(lost); took > 2*time.Minute+20*time.Second {
			t.Errorf("found after %v", took)
		}
		if got := look(b, "web.fed.example"); got != "192.0.2.1 30 stale" && got != "192.0.2.2 60" {
			t.Errorf("web is %s", got)
		}
		time.Sleep(5 * time.Second)
		if got := look(b, "web.fed.example"); got != "192.0.2.2 60" {
			t.Errorf("web is %s after the owner was reached again", got)
		}
	})
}

// An owner that complains of pings is no failing owner.
func TestTooManyPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.misbehaveWith(ownerAddress, faultowner.Config{
			Script: w.parse("upsert web web.fed.example 192.0.2.1\nhang"), Credentials: w.source(ownerAddress).Server(), Pings: 5 * time.Minute,
		})
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Second)
		stale := 0
		for range 24 * 60 * 60 {
			switch got := look(b, "web.fed.example"); got {
			case "192.0.2.1 60":
			case "192.0.2.1 30 stale":
				stale++
			default:
				t.Fatalf("web is %s", got)
			}
			time.Sleep(time.Second)
		}
		// Each loss lasts for a second, and a look may fall on either end of it.
		if n := strings.Count(strings.Join(w.log.Lines(), ""), "set keepalive"); n != 3 || stale > 2*n || w.attempts() != 4 {
			t.Errorf("interval doubled %d times, %d attempts, %d s stale:\n%s", n, w.attempts(), stale, strings.Join(w.log.Lines(), ""))
		}
	})
}

// The last good version of a service stays while the owner offers a bad one.
func TestRefusedServiceStays(t *testing.T) {
	for name, bad := range map[string]string{
		"by the rules":  "upsert web web.fed.example 127.0.0.1",
		"by the zones":  "upsert web web.other.example 192.0.2.2",
		"as unreadable": "truncated web web.fed.example 192.0.2.2",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.misbehave(ownerAddress, "upsert web web.fed.example 192.0.2.1\nwait 1m\nreset\n---\n"+
					bad+"\nupsert api api.fed.example 192.0.2.3\nwait 1h\ndelete web\nhang")
				b := w.attach(w.block(1, w.owner(ownerAddress)))
				time.Sleep(30 * time.Minute)
				if web, api := look(b, "web.fed.example"), look(b, "api.fed.example"); web != "192.0.2.1 60" || api != "192.0.2.3 60" {
					t.Errorf("web is %s, api is %s", web, api)
				}
				time.Sleep(time.Hour)
				if got := look(b, "web.fed.example"); got != "NXDOMAIN" {
					t.Errorf("web is %s after its deletion", got)
				}
			})
		})
	}
}

// While one owner of a zone may still have a name, it is not denied.
func TestGrace(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		c := w.owner(ownerAddress)
		c.Retention = 10 * time.Minute
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
		expect("lost", "192.0.2.1 30 stale", true)
		time.Sleep(c.Retention) // the last second has a TTL, too
		expect("before the end", "192.0.2.1 1 stale", true)
		time.Sleep(time.Second)
		expect("at the end", "NXDOMAIN", true)
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		serial := func() uint32 { return b.Zone().SOA("fed.example.").Serial }
		time.Sleep(time.Hour)
		live := serial()
		stop()
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
