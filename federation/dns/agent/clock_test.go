package agent_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// A machine that starts with its clock two days behind restores the catalog as what
// it is, and what it saves is not too old for those who start later with the right
// time.
func TestBootedBehind(t *testing.T) {
	const behind = 48 * time.Hour
	for name, tc := range map[string]struct {
		back    bool          // the owner is, in the second process
		correct time.Duration // of the clock, that much after the start; 0: not before its end
		left    time.Duration // of the retention, at the start of the third process
	}{
		"owner is back":                  {true, 0, 50 * time.Minute}, // nobody knew of the 5 minutes before the second start
		"owner is away":                  {false, 0, 30 * time.Minute},
		"owner is back, clock corrected": {true, 10 * time.Minute, 55 * time.Minute},
		"owner is away, clock corrected": {false, 10 * time.Minute, 30 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				file := filepath.Join(t.TempDir(), "catalog")
				web := services.At("web.fed.example", "192.0.2.1")
				_, stop := w.serve(ownerAddress, web)
				b := w.attach(w.block(1, w.kept(file)))
				time.Sleep(time.Hour)
				w.agent.Detach(b)
				stop()

				time.Sleep(5 * time.Minute)
				w.setClock(-behind)
				w.start()
				b = w.attach(w.block(1, w.kept(file)))
				synctest.Wait()
				if tc.back {
					_, stop = w.serve(ownerAddress, web)
				}
				for passed := range 20 * 60 {
					if at := time.Duration(passed) * time.Second; tc.correct > 0 && at == tc.correct {
						w.setClock(behind)
						time.Sleep(time.Second) // in which the clock is looked at
						synctest.Wait()
					}
					if got := w.look(b, "web.fed.example"); got != "192.0.2.1 60" && got != "192.0.2.1 30 stale" {
						t.Fatalf("web is %s after %d s", got, passed)
					}
					time.Sleep(time.Second)
				}
				w.agent.Detach(b)
				stop()
				if tc.correct == 0 {
					w.setClock(behind)
				}

				time.Sleep(5 * time.Minute)
				w.start()
				b = w.attach(w.block(1, w.kept(file)))
				synctest.Wait()
				started := time.Now()
				for w.look(b, "web.fed.example") != "NXDOMAIN" {
					if time.Since(started) == 0 && w.look(b, "web.fed.example") != "192.0.2.1 30 stale" {
						t.Fatalf("web is %s after the last start", w.look(b, "web.fed.example"))
					}
					time.Sleep(time.Second)
				}
				if lived := time.Since(started); (lived - tc.left).Abs() > 10*time.Second {
					t.Errorf("lived for %v, want %v", lived, tc.left)
				}
			})
		})
	}
}

// The retention goes on while the machine is suspended, which its timers do not
// know of.
func TestRetentionWhileSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Hour)
		stop()
		time.Sleep(10 * time.Minute)
		w.setClock(23 * time.Hour)
		if got := w.look(b, "web.fed.example"); got != "192.0.2.1 30 stale" {
			t.Errorf("web is %s within the retention", got)
		}
		time.Sleep(time.Minute)
		w.setClock(time.Hour)
		if got := w.look(b, "web.fed.example"); got != "NXDOMAIN" {
			t.Errorf("web is %s on the first query after the retention", got)
		}
		time.Sleep(time.Second)
		if got := w.state(); got != "expired 0/0" {
			t.Errorf("owner is %s", got)
		}
	})
}

// A wall-clock that is set back makes no record live longer, and one that is
// set forward again none shorter.
func TestRetentionWhileClockIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Hour)
		stop()
		lost := time.Now()
		for i := range 20 {
			time.Sleep(time.Hour)
			w.setClock(10 * time.Hour * time.Duration(i%2*2-1))
			time.Sleep(time.Second) // in which the clock is looked at
			synctest.Wait()
		}
		for w.look(b, "web.fed.example") == "192.0.2.1 30 stale" {
			if left := w.agent.Status()[0].Remaining(w.wall()) - (24*time.Hour - time.Since(lost)); left.Abs() > 2*time.Second {
				t.Fatalf("%v more are left than there are", left)
			}
			time.Sleep(time.Second)
		}
		if lived := time.Since(lost); lived < 24*time.Hour-31*time.Second || lived > 24*time.Hour {
			t.Errorf("full TTL for %v", lived)
		}
	})
}

// Time in which nothing could be read is no silence: a process that was stopped, or
// suspended with its machine, in the middle of a catalog sweeps nothing before it
// has listened for the whole of settle.
func TestSettleAfterPause(t *testing.T) {
	for name, pause := range map[string]func(*world){
		"stopped":         func(w *world) { w.stop(time.Hour) },
		"stopped shortly": func(w *world) { w.stop(4 * time.Second) },
		"suspended":       func(w *world) { w.setClock(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.misbehave(ownerAddress, `
					upsert web web.fed.example 192.0.2.1
					upsert old old.fed.example 192.0.2.2
					wait 10m
					reset
					---
					upsert web web.fed.example 192.0.2.1
					wait 8s
					upsert old old.fed.example 192.0.2.2
					hang`)
				b := w.attach(w.block(1, w.owner(ownerAddress)))
				time.Sleep(10 * time.Minute)
				for w.state() != "syncing 2/1" {
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(4 * time.Second)
				pause(w)
				for range 60 {
					time.Sleep(100 * time.Millisecond)
					if got := w.look(b, "old.fed.example"); got != "192.0.2.2 60" && got != "192.0.2.2 30 stale" {
						t.Fatalf("old is %s", got)
					}
				}
				time.Sleep(5 * time.Second)
				if got := w.state(); got != "synced 2/0" {
					t.Errorf("owner is %s", got)
				}
			})
		})
	}
}
