package duplex_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var rules = catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour}

// expect waits a moment, and compares what both peers have.
func (w *world) expect(after time.Duration, east, west string) {
	w.t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if got := w.east.shows(); got != east {
		w.t.Errorf("east has %q, expected %q", got, east)
	}
	if got := w.west.shows(); got != west {
		w.t.Errorf("west has %q, expected %q", got, west)
	}
}

// streams returns how many streams a peer publishes on.
func (p *peer) streams() int { return p.server.Stats().Catalogs[""].Consumers[wire.V1Alpha2] }

// TestBoth lets two peers exchange their catalogs, and changes of them, on one stream. The
// stream is lost and comes back, and then ends on purpose.
func TestBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, rules)
		w.east.publish(t, "e", 2, 0)
		w.west.publish(t, "w", 1, 0)
		must.Run(t, w.west.mirror.Run)
		stop := w.listen()
		leave := must.Run(t, w.east.mirror.Run)
		w.expect(time.Second, "synced w0:443", "synced e0:443 e1:443")
		if e, ws := w.east.streams(), w.west.streams(); e != 1 || ws != 1 || w.west.server.Stats().Connections != 1 {
			t.Errorf("east publishes on %d streams and west on %d", e, ws)
		}

		w.east.registry.Delete("e0")
		must.Get(w.east.registry.Upsert(service("e1", 8443, 0)))(t)
		w.west.publish(t, "v", 1, 0)
		w.expect(time.Second, "synced v0:443 w0:443", "synced e1:8443")

		w.cut()
		synctest.Wait()
		if got := w.west.shows(); got != "stale e1:8443" {
			t.Errorf("after the loss west has %q", got)
		}
		w.east.registry.Delete("e1")
		w.expect(time.Minute, "synced v0:443 w0:443", "synced ")

		w.east.publish(t, "e", 1, 0)
		w.expect(time.Second, "synced v0:443 w0:443", "synced e0:443")
		stop()
		w.expect(30*time.Minute, "stale v0:443 w0:443", "stale e0:443")
		w.expect(time.Hour, "expired ", "expired ")
		w.listen()
		w.expect(2*time.Minute, "synced v0:443 w0:443", "synced e0:443")

		leave()
		synctest.Wait()
		if got := w.west.shows(); got != "stale e0:443" {
			t.Errorf("after the departure west has %q", got)
		}
		if ended := w.west.server.Stats().Catalogs[""].Ended; ended[codes.OK] != 1 {
			t.Errorf("for west the streams ended with %v", ended)
		}
		if failure := w.west.mirror.Status().Failure; failure == nil || failure.Error() != "the owner closed the stream" {
			t.Errorf("west says %v of the departure", failure)
		}
		if w.east.streams() != 0 || w.west.streams() != 0 {
			t.Error("streams are left behind")
		}
	})
}

// TestCertificates replaces the certificates of both peers before they expire: another
// stream takes the place of the one before, and neither side takes that for a loss.
func TestCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const short = time.Hour
		w := newWorld(t, 1, rules)
		w.east.publish(t, "e", 20, 0)
		w.west.publish(t, "w", 1, 0)
		var over atomic.Bool
		w.publishing = func(c consumer.Changes) {
			if s := c.Status; !over.Load() && (s.Failure != nil || s.Stale > 0 || s.State == catalog.Stale) {
				t.Errorf("published is %+v", s)
			}
		}
		for _, p := range []*peer{w.east, w.west} {
			p.source.Replace(short)
		}
		must.Run(t, w.west.mirror.Run)
		w.listen()
		must.Run(t, w.east.mirror.Run)
		for i := range 10 {
			time.Sleep(short / 2)
			w.east.source.Replace(short)
			w.west.source.Replace(short)
			must.Get(w.east.registry.Upsert(service("e1", uint16(i+1), 0)))(t)
			must.Get(w.west.registry.Upsert(service("w0", uint16(i+1), 0)))(t)
			time.Sleep(time.Minute)
			synctest.Wait()
			if e, ws, port := w.east.has(), w.west.has(), fmt.Sprint(i+1); e["w0"] != port || ws["e1"] != port || len(ws) != 20 {
				t.Errorf("east has %v and west %v, expected %s", e, ws, port)
			}
		}
		if e, ws := w.east.streams(), w.west.streams(); e != 1 || ws != 1 || w.west.server.Stats().Connections != 1 {
			t.Errorf("east publishes on %d streams and west on %d", e, ws)
		}
		if ended := w.west.server.Stats().Catalogs[""].Ended; len(ended) != 1 || ended[codes.OK] < 5 || ended[codes.OK] > 10 {
			t.Errorf("for west the streams ended with %v", ended)
		}
		over.Store(true)
	})
}

// TestPolicies hides services by the identity of the other side, whoever has dialed.
func TestPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, rules)
		w.east.publish(t, "e", 2, 0)
		w.west.publish(t, "w", 2, 0)
		w.east.registry.SetPolicy(tells(t, westID, "e1"))
		w.west.registry.SetPolicy(tells(t, eastID, "w0"))
		must.Run(t, w.west.mirror.Run)
		w.listen()
		must.Run(t, w.east.mirror.Run)
		w.expect(time.Second, "synced w0:443", "synced e1:443")
		w.east.registry.SetPolicy(tells(t, westID, "e0"))
		w.expect(time.Second, "synced w0:443", "synced e0:443")
		w.east.registry.SetPolicy(tells(t, eastID, "e0")) // who is not the other side
		w.expect(time.Second, "synced w0:443", "synced ")
	})
}

// TestWhoMayNot has a peer that may not subscribe: it is told nothing, and its own
// catalog comes all the same. Once it is turned away, so is the stream.
func TestWhoMayNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, rules)
		w.east.publish(t, "e", 1, 0)
		w.west.publish(t, "w", 1, 0)
		w.east.server.SetAllow(nil)
		must.Run(t, w.west.mirror.Run)
		w.listen()
		must.Run(t, w.east.mirror.Run)
		w.expect(time.Minute, "synced w0:443", "syncing ")
		w.east.server.SetAllow([]federation.ID{must.Value(federation.ParseID(westID))})
		w.cut()
		w.expect(time.Minute, "synced w0:443", "synced e0:443")
		w.east.server.SetAllow(nil)
		w.expect(time.Minute, "synced w0:443", "syncing e0:443")
	})
}

// TestUnavailable makes the catalog of the side that has dialed unavailable: what the
// other side has is stale until it is available again, and east has no harm of it.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, rules)
		w.east.publish(t, "e", 1, 0)
		w.west.publish(t, "w", 1, 0)
		must.Run(t, w.west.mirror.Run)
		w.listen()
		must.Run(t, w.east.mirror.Run)
		w.expect(time.Minute, "synced w0:443", "synced e0:443")
		w.east.registry.SetUnavailable("its source is away")
		w.expect(time.Minute, "synced w0:443", "syncing e0:443")
		w.east.registry.Delete("e0")
		w.east.registry.SetUnavailable("its source is still away")
		w.expect(time.Minute, "synced w0:443", "syncing e0:443")
		w.east.registry.SetUnavailable("")
		w.expect(time.Minute, "synced w0:443", "synced ")
	})
}

// TestPathChanges has the side that dials learn only later by which way its services come,
// as a relay does. It publishes them on a stream that says so.
func TestPathChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, rules)
		w.east.publish(t, "e", 1, 0)
		w.west.publish(t, "w", 1, 0)
		w.east.registry.SetUnavailable("its source is away")
		must.Run(t, w.west.mirror.Run)
		w.listen()
		must.Run(t, w.east.mirror.Run)
		w.expect(time.Minute, "synced w0:443", "syncing ")
		must.Do(t, w.east.registry.SetPath(wire.Path{"origin"}))
		w.east.registry.SetUnavailable("")
		w.expect(time.Minute, "synced w0:443", "synced e0:443")
		if got, want := w.west.mirror.Status().Path, w.east.registry.Path().Header(); got != want {
			t.Errorf("west has the services of east by %s, expected %s", got, want)
		}
	})
}

// TestRefusals has more services than west wants: it has what there is room for, and east
// hears of the refusal.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, catalog.Rules{Settle: 5 * time.Second, Retention: time.Hour, MaxServices: 2})
		w.east.publish(t, "e", 3, 0)
		must.Run(t, w.west.mirror.Run)
		w.listen()
		must.Run(t, w.east.mirror.Run)
		w.expect(time.Minute, "synced ", "synced e0:443 e1:443")
		if refused := w.east.server.Stats().Catalogs[""].Refused; len(refused) != 1 || refused["other"] != 1 {
			t.Errorf("east hears of refusals: %v", refused)
		}
	})
}

// TestTurns opens two streams from east: west subscribes on one of them, and on the other
// once the first is lost. Until then it declines what comes there.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, rules)
		must.Run(t, w.west.mirror.Run)
		w.listen()
		w.east.publish(t, "e", 1, 0)
		leave := must.Run(t, w.east.mirror.Run)
		time.Sleep(time.Second)
		second := open(t, w.connect(eastID))
		second.say("subscribe", "upsert 1 a")
		w.expect(time.Minute, "synced ", "synced e0:443")
		leave()
		second.hear("w: end", "Unimplemented to 1")
		second.hear("subscribe")
		second.say("upsert 2 a")
		second.hear("OK to 2")
	})
}

// TestBig exchanges catalogs that are many times larger than what a stream has room for,
// in both directions at once, with the smallest and a large window. Both sides are slow to
// apply what comes, so that everything is full that can be.
func TestBig(t *testing.T) {
	for _, window := range []int{1, 256} {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 600
				w := newWorld(t, window, rules)
				// This is called under a lock, for which a bubble does not let time pass: so
				// others get their turns, and no time.
				w.publishing = func(consumer.Changes) {
					for range 1000 {
						runtime.Gosched()
					}
				}
				w.east.publish(t, "e", n, 8<<10)
				w.west.publish(t, "w", n, 8<<10)
				must.Run(t, w.west.mirror.Run)
				w.listen()
				begun := time.Now()
				must.Run(t, w.east.mirror.Run)
				for !w.east.complete(n) || !w.west.complete(n) {
					time.Sleep(100 * time.Millisecond)
					if time.Since(begun) > 20*time.Second {
						t.Fatalf("they are stuck: %d and %d services", len(w.east.has()), len(w.west.has()))
					}
				}
			})
		})
	}
}

func (p *peer) complete(n int) bool {
	s := p.mirror.Status()
	return s.State == catalog.Synced && s.Services == n
}

// tells returns a policy that tells an identity of one service, and others of nothing.
func tells(t *testing.T, to, name string) *policy.Policy {
	t.Helper()
	p, mistakes := policy.New([]policy.Rule{{FQDNs: []string{name + ".fed.example"}, To: []string{to}}})
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	return p
}
