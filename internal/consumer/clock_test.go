package consumer_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/snapshot"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// left is how long the services are kept from now on.
func (sim *testMirror) left(m *consumer.Mirror) time.Duration {
	synctest.Wait()
	s := m.Status()
	if s.Expires.IsZero() {
		return 0
	}
	return s.Expires.Sub(sim.wall())
}

// The retention goes on while the machine is suspended, which its timers do not know
// of. The end is noticed within a second.
func TestRetentionWhileSuspended(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		_, stop := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		m, _ := sim.run(sim.config())
		sim.await(m, "synced 1/0")
		stop()
		time.Sleep(10 * time.Minute)
		sim.SetClock(40 * time.Minute)
		time.Sleep(time.Second)
		if got, left := state(m), sim.left(m); got != "stale 1/1" || left != 10*time.Minute-time.Second {
			t.Errorf("owner is %s with %v left", got, left)
		}
		sim.SetClock(10 * time.Minute)
		time.Sleep(time.Second)
		if got := state(m); got != "expired 0/0" || sim.names() != "" {
			t.Errorf("owner is %s with %s", got, sim.names())
		}
	})
}

// A wall clock that is set back makes no service live longer, and one that is set
// forward again none shorter. The times of the status are by the wall clock.
func TestRetentionWhileClockIsSetBack(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		_, stop := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		m, _ := sim.run(sim.config())
		sim.await(m, "synced 1/0")
		synced := sim.wall()
		stop()
		synctest.Wait()
		lost := time.Now()
		for i := range 20 {
			time.Sleep(2 * time.Minute)
			sim.SetClock(10 * time.Hour * time.Duration(i%2*2-1)) // back, forward, back...
			time.Sleep(time.Second)
			if left, want := sim.left(m), time.Hour-time.Since(lost); left != want {
				t.Fatalf("%v are left, want %v", left, want)
			}
			set := -10 * time.Hour * time.Duration((i+1)%2)
			s := m.Status()
			for name, at := range map[string]time.Time{"LastSync": s.LastSync, "Lost": s.Lost} {
				if !at.Equal(synced.Add(set)) {
					t.Fatalf("%s is %v, want %v", name, at, synced.Add(set))
				}
			}
			if !s.Soonest.Equal(s.Expires) || !s.Expires.Equal(synced.Add(set+time.Hour)) {
				t.Fatalf("expires %v, the first service %v", s.Expires, s.Soonest)
			}
		}
		if took := sim.await(m, "expired 0/0"); took+20*(2*time.Minute+time.Second) != time.Hour {
			t.Errorf("expired %v after the loss", took+20*(2*time.Minute+time.Second))
		}
	})
}

// A clock that differs by less than a second from the other was not set: the clocks
// are not read at the same instant. Of a second it was, and what is saved never goes
// back.
func TestClockIsSetBackByLittle(t *testing.T) {
	for by, want := range map[time.Duration]time.Duration{
		-time.Second:     0,
		-time.Second + 1: -time.Second + 1,
		time.Second:      time.Second,
		-time.Hour:       0,
	} {
		t.Run(by.String(), func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				d := new(disk)
				registry, _ := sim.serve(services.At("web.fed.example", "192.0.2.1"))
				m, _ := sim.run(sim.kept(d, "catalog"))
				sim.await(m, "synced 1/0")
				time.Sleep(time.Minute)
				d.take()
				sim.SetClock(by)
				must.Get(registry.Upsert(services.At("web.fed.example", "192.0.2.2")))(t)
				time.Sleep(time.Second)
				saves := d.take()
				if len(saves) != 1 || saves[0].Saved.Sub(saves[0].at) != want || !saves[0].LastUp.Equal(saves[0].Saved) {
					t.Errorf("the saves are %+v, want one whose time is %v away", saves, want)
				}
			})
		})
	}
}

// A machine that starts with its clock behind goes on from the later of the times in
// the file, and what it saves is not earlier.
func TestBootedBehind(t *testing.T) {
	for name, tc := range map[string]struct {
		up, saved time.Duration // in the file, from the wall clock on
		left      time.Duration // of the retention of an hour
	}{
		"clock is right":                  {-20 * time.Minute, -10 * time.Minute, 40 * time.Minute},
		"behind what was saved":           {-20 * time.Minute, 10 * time.Minute, 30 * time.Minute},
		"behind both":                     {48 * time.Hour, 48*time.Hour + 5*time.Minute, 55 * time.Minute},
		"file without a time of the save": {10 * time.Minute, -10 * time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				d := new(disk)
				now := time.Now().Round(0)
				web := services.At("web.fed.example", "192.0.2.1")
				kept := &snapshot.Snapshot{Owner: ownerAddress, LastUp: now.Add(tc.up), Saved: now.Add(tc.saved)}
				kept.Services = append(kept.Services, packed.PackService(web))
				must.Do(t, d.Save("catalog", kept))
				m, _ := sim.run(sim.kept(d, "catalog"))
				if got, left := state(m), sim.left(m); got != "stale 1/1" || left != tc.left {
					t.Errorf("owner is %s with %v left", got, left)
				}
				d.take()
				time.Sleep(10 * time.Minute)
				sim.SetClock(48 * time.Hour) // corrected
				time.Sleep(time.Second)
				if tc.up > time.Hour { // which is no suspension
					if got, left := state(m), sim.left(m); got != "stale 1/1" || left != tc.left-10*time.Minute-time.Second {
						t.Errorf("owner is %s with %v left after the correction", got, left)
					}
				}
				for _, s := range d.take() {
					if s.Saved.Before(kept.Saved) || s.Saved.Before(s.LastUp) || !s.LastUp.Equal(kept.LastUp) {
						t.Errorf("saved at %v, up until %v", s.Saved, s.LastUp)
					}
				}
			})
		})
	}
}

// Time in which nothing could be read is no silence. Settle counts again when the
// clocks were not read for longer than a quarter of it, or than 250 ms.
func TestSettleAfterPause(t *testing.T) {
	const at = 2500 * time.Millisecond // when the process pauses; the next reading is half a second later
	for name, tc := range map[string]struct {
		settle time.Duration
		pause  func(*testMirror)
		after  time.Duration // until the owner is synced, without the pause
	}{
		"no pause":            {8 * time.Second, func(*testMirror) {}, 8 * time.Second},
		"a quarter":           {8 * time.Second, func(sim *testMirror) { sim.Suspend(time.Second) }, 7 * time.Second},
		"more than a quarter": {8 * time.Second, func(sim *testMirror) { sim.Suspend(time.Second + 1) }, 11 * time.Second},
		"suspended":           {8 * time.Second, func(sim *testMirror) { sim.SetClock(time.Hour) }, 11 * time.Second},
		"clock is set back":   {8 * time.Second, func(sim *testMirror) { sim.SetClock(-time.Hour) }, 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				sim.misbehave("upsert web web.fed.example 192.0.2.1\nhang")
				config := sim.config()
				config.Rules.Settle = tc.settle
				m, _ := sim.run(config)
				start := time.Now()
				time.Sleep(at)
				tc.pause(sim)
				sim.await(m, "synced 1/0")
				if got := time.Since(start); got != tc.after {
					t.Errorf("synced after %v, want %v", got, tc.after)
				}
			})
		})
	}
	for pause, after := range map[time.Duration]time.Duration{
		0: 800 * time.Millisecond, 125 * time.Millisecond: 700 * time.Millisecond, 125*time.Millisecond + 1: 1100 * time.Millisecond,
	} {
		t.Run("shorter than 250 ms, pause "+pause.String(), func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				sim.misbehave("upsert web web.fed.example 192.0.2.1\nhang")
				config := sim.config()
				config.Rules.Settle = 800 * time.Millisecond // a quarter of which is 200 ms
				m, _ := sim.run(config)
				start := time.Now()
				time.Sleep(200 * time.Millisecond) // the clocks are read every 125 ms
				sim.Suspend(pause)
				sim.await(m, "synced 1/0")
				if got := time.Since(start); got != after {
					t.Errorf("synced after %v, want %v", got, after)
				}
			})
		})
	}
}

// The clocks are read only as often as something may be due: twice in a quarter of
// settle, once a second while the retention runs, and otherwise once an hour.
func TestClockIsRead(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		stop := sim.misbehave(`upsert web web.fed.example 192.0.2.1
			wait 10h
			upsert web web.fed.example 192.0.2.2
			upsert web web.fed.example 192.0.2.3
			hang`)
		config := sim.config()
		config.Rules.Settle = 8 * time.Second
		var reads atomic.Int64
		config.Clock = func() (time.Time, time.Duration) {
			reads.Add(1)
			return sim.Clock()
		}
		m, _ := sim.run(config)
		expect := func(what string, want int64, passed time.Duration) {
			t.Helper()
			synctest.Wait()
			before := reads.Load()
			time.Sleep(passed)
			synctest.Wait()
			if got := reads.Load() - before; got != want {
				t.Errorf("%s: %d readings, want %d", what, got, want)
			}
		}
		expect("while it settles", 7, 7500*time.Millisecond)
		sim.await(m, "synced 1/0")
		time.Sleep(time.Minute)
		expect("while it is synced", 9, 9*time.Hour)
		time.Sleep(59*time.Minute - 10*time.Second)
		expect("two updates", 2, 5*time.Second)
		stop()
		sim.misbehave("status Unauthenticated")
		sim.await(m, "parked 1/1")
		expect("while it is stale", 8, 8*time.Second)
	})
}
