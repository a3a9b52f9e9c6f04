package consumer_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// Silence ends a catalog of which something came, but not one whose end will be
// marked; what says nothing of services is no catalog. No heartbeat comes at the very end
// of a silence, which it would break.
func TestSynced(t *testing.T) {
	const never = 30 * time.Minute
	for name, tc := range map[string]struct {
		script string
		synced time.Duration
	}{
		"slow":                {"upsert a a.fed.example 192.0.2.1\nwait 4s\nupsert b b.fed.example 192.0.2.2\nwait 4s\nupsert c c.fed.example 192.0.2.3", 13 * time.Second},
		"slow and refused":    {"upsert a a.fed.example 192.0.2.1\nwait 4s\ntruncated b b.fed.example 192.0.2.2", 9 * time.Second},
		"with heartbeats":     {"upsert a a.fed.example 192.0.2.1\nheartbeats 900ms", 5 * time.Second},
		"silent, then loaded": {"wait 10m\nupsert a a.fed.example 192.0.2.1", 10*time.Minute + 5*time.Second},
		"alive, then loaded":  {"end\nwait 10m\nend\nupsert a a.fed.example 192.0.2.1", 10*time.Minute + 5*time.Second},
		"marked":              {"announce\nupsert a a.fed.example 192.0.2.1\nwait 10m\nend", 10 * time.Minute},
		"marked and empty":    {"announce\nwait 10m\nheader\nend", 10 * time.Minute},
		"header, then silent": {"announce\nheader\nwait 10m\nend", 10 * time.Minute},
		"silent":              {"hang", never},
		"only alive":          {"heartbeats 1s", never},
		"header only":         {"announce\nheader\nhang", never},
		"only refused":        {"truncated b b.fed.example 192.0.2.2\nhang", never},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				sim.misbehave(tc.script)
				m, _ := sim.run(sim.config())
				start := time.Now()
				for m.Status().State != catalog.Synced && time.Since(start) < never {
					if m.Status().Known {
						t.Fatal("the catalog is known before it is complete")
					}
					time.Sleep(500 * time.Millisecond)
					synctest.Wait()
				}
				if got := time.Since(start); got != tc.synced {
					t.Errorf("synced after %v, want %v", got, tc.synced)
				}
			})
		})
	}
}

// The retention counts from the loss of the last stream that was complete, whatever
// happens in between.
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
		"all services are refused": "wait 1s\ntruncated web web.fed.example 192.0.2.1\nhang",
		"parked":                   "status Unauthenticated",
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				_, stop := sim.serve(services.At("web.fed.example", "192.0.2.1"), services.At("db.fed.example", "192.0.2.3"))
				config := sim.config()
				config.Rules.Retention = retention
				m, _ := sim.run(config)
				sim.await(m, "synced 2/0")
				time.Sleep(10 * time.Minute)
				stop()
				synctest.Wait()
				lost := time.Now()
				if away != "" {
					sim.misbehave(away)
				}
				time.Sleep(retention - 1)
				if s := m.Status(); !s.Lost.Equal(lost) || !s.Expires.Equal(lost.Add(retention)) || !strings.Contains(sim.names(), "db") {
					t.Errorf("lost %v and expires %v after the loss, with %s", s.Lost.Sub(lost), s.Expires.Sub(lost), sim.names())
				}
				time.Sleep(time.Second)
				if s := m.Status(); s.Lost.Equal(lost) && !s.Expired || strings.Contains(sim.names(), "db") {
					t.Errorf("after the retention the status is %+v with %s", s, sim.names())
				}
			})
		})
	}
}

// Without rules, an owner that does not mark the end of its catalog is synced after five
// seconds of silence, and once lost its services are kept for a day.
func TestDefaultRules(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		time.AfterFunc(time.Hour, sim.misbehave("upsert web web.fed.example 192.0.2.1\nhang"))
		config := sim.config()
		config.Rules = catalog.Rules{}
		m, _ := sim.run(config)
		for _, step := range []struct {
			after time.Duration
			want  string
		}{
			{5*time.Second - 1, "syncing 1/0"},
			{1, "synced 1/0"},
			{time.Hour, "stale 1/1"},
		} {
			time.Sleep(step.after)
			synctest.Wait()
			if got := state(m); got != step.want {
				t.Errorf("%v later the owner is %s, want %s", step.after, got, step.want)
			}
		}
		if s := m.Status(); s.Expires.Sub(s.Lost) != 24*time.Hour {
			t.Errorf("the services are kept for %v", s.Expires.Sub(s.Lost))
		}
	})
}

// An owner without an end marker that comes back with less than half is not believed.
// What is held keeps its own time through another loss.
func TestPaused(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		sim.misbehave("services 0 20 fed.example\nwait 1h\nreset\n---\nservices 0 5 fed.example\nwait 40m\ndelete s7\nwait 10m\nreset\n---\nstatus Unavailable")
		m, _ := sim.run(sim.config())
		time.Sleep(time.Hour)
		synctest.Wait()
		lost := time.Now()
		sim.wantLog(`INFO msg="connected to owner"`, `INFO msg="owner is synced" services=20 refused=0`, `INFO msg="stream of owner has ended, opening another one"`)
		time.Sleep(10 * time.Minute)
		if got := state(m); got != "synced 20/15" || m.Status().Paused != 15 {
			t.Errorf("owner is %s, %d paused", got, m.Status().Paused)
		}
		sim.wantLog(`WARN msg="owner is synced, but came back without most of its services; their removal is paused, and they are stale until the retention ends" services=20 paused=15`)
		time.Sleep(42 * time.Minute)
		if s := m.Status(); s.Services != 19 || !s.Soonest.Equal(lost.Add(time.Hour)) || !s.Expires.After(s.Soonest.Add(40*time.Minute)) {
			t.Errorf("status is %+v", s)
		}
		time.Sleep(8*time.Minute + time.Second)
		if got := state(m); got != "stale 5/5" || sim.names() != "s0 s1 s2 s3 s4" {
			t.Errorf("owner is %s with %s", got, sim.names())
		}
	})
}

// The lines of a whole life: one for each change.
func TestLog(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		m, _ := sim.run(sim.config())
		time.Sleep(time.Hour)
		sim.wantLog(`WARN msg="not connected to owner, still trying"`)
		_, stop := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		time.Sleep(time.Hour)
		sim.wantLog(`INFO msg="connected to owner"`, `INFO msg="owner is synced" services=1 refused=0`)
		stop()
		time.Sleep(30 * time.Minute)
		sim.wantLog(`INFO msg="stream of owner has ended, opening another one"`, `INFO msg="not connected to owner, still trying"`, `WARN msg="owner is lost, trying to connect again"`)
		stop = sim.misbehave("hang") // opens a stream behind which the services expire
		time.Sleep(2 * time.Hour)
		sim.wantLog(`ERROR msg="owner is expired: the retention is over and its records are gone" services=0`)
		if s := m.Status(); s.State != catalog.Syncing || !s.Expired {
			t.Errorf("status is %+v", s)
		}
		stop()
		sim.misbehave("status Unauthenticated")
		time.Sleep(2 * time.Hour)
		if lines := sim.logged(); strings.Count(lines, "owner is expired") != 0 || strings.Count(lines, "owner is parked") != 1 {
			t.Errorf("logged is\n%s", lines)
		}
	})
}
