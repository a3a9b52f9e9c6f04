package consul

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

const (
	one = "192.0.2.1"
	two = "192.0.2.2"
)

// What is registered, changes its health and is deregistered is published at once, with one request
// for the service, and one for the list where that has changed.
func TestFollow(t *testing.T) {
	runStand(t, Config{}, func(f *fakeConsul) { f.put("web", one) }, func(t *testing.T, s *stand) {
		s.Want(t, "web: 1")
		s.put("web", two)
		s.Want(t, "web: 1 2")
		s.put("db", one)
		s.Want(t, "db: 1, web: 1 2")
		s.requested()
		s.put("web", two+"=critical")
		s.Want(t, "db: 1, web: 1")
		if got := s.requested(); !slices.Equal(got, []string{"/v1/health/service/web"}) {
			t.Errorf("a change of health was asked for by %q", got)
		}
		s.put("web", one+"=critical")
		s.Want(t, "db: 1")
		s.put("web", one, two)
		s.Want(t, "db: 1, web: 1 2")
		s.At(time.Minute) // more changes at once would be taken together
		s.remove("web", one)
		s.Want(t, "db: 1, web: 2")
		s.remove("web", two)
		s.Want(t, "db: 1")
		s.put("web", one)
		s.Want(t, "db: 1, web: 1")
		s.remove("db", "")
		s.Want(t, "web: 1")
		s.remove("web", "")
		s.Want(t, "")
		if s.Part.Times > 0 {
			t.Error("it was said to be away")
		}
	})
}

// At rest there is a request for the list in a minute, and one for each service in five.
func TestRest(t *testing.T) {
	runStand(t, Config{}, func(f *fakeConsul) { f.put("web", one); f.put("db", one) }, func(t *testing.T, s *stand) {
		s.Want(t, "db: 1, web: 1")
		updates := s.Part.Updates
		s.requested()
		s.At(time.Hour)
		counts := make(map[string]int)
		for _, path := range s.requested() {
			counts[path]++
		}
		if got, want := fmt.Sprint(counts), "map[/v1/catalog/services:56 /v1/health/service/db:11 /v1/health/service/web:11]"; got != want {
			t.Errorf("requests in an hour: %s, want %s", got, want)
		}
		if s.Part.Updates != updates || s.Part.Times > 0 {
			t.Error("an answer without news was published, or it was said to be away")
		}
	})
}

// Services are chosen by name and by tag, and Consul's own are left out unless they are named.
func TestSelection(t *testing.T) {
	prepare := func(f *fakeConsul) {
		f.tags = map[string][]string{"web": {"public", "v1"}, "shop-a": {"public"}, "shop-b": nil}
		for _, name := range []string{"web", "shop-a", "shop-b", "consul", "a.b", "_x"} {
			f.put(name, one)
		}
	}
	for _, tc := range []struct {
		config  Config
		want    string
		refused string
	}{
		{Config{}, "shop-a: 1, shop-b: 1, web: 1", "map[name:2]"},
		{Config{Services: []string{"web", "shop-*"}}, "shop-a: 1, shop-b: 1, web: 1", "map[]"},
		{Config{Services: []string{"consul"}}, "consul: 1", "map[]"},
		{Config{Tags: []string{"public"}}, "shop-a: 1, web: 1", "map[]"},
		{Config{Tags: []string{"public", "v1"}, Services: []string{"*"}}, "web: 1", "map[]"},
		{Config{Services: []string{"nothing"}}, "", "map[]"},
		{Config{Datacenter: "dc1", Services: []string{"web"}}, "dc1/web: 1", "map[]"},
	} {
		runStand(t, tc.config, prepare, func(t *testing.T, s *stand) {
			s.Want(t, tc.want)
			if got := fmt.Sprint(s.Part.Refused); got != tc.refused {
				t.Errorf("%+v: refused: %s, want %s", tc.config, got, tc.refused)
			}
		})
	}
}

// A service that loses a tag that is wanted is withdrawn, and one that gets it is published.
func TestTagChanges(t *testing.T) {
	runStand(t, Config{Tags: []string{"public"}}, func(f *fakeConsul) { f.put("web", one) }, func(t *testing.T, s *stand) {
		s.Want(t, "")
		s.set(func() { s.tags["web"] = []string{"public"}; s.index++; s.list, s.indexes["web"] = s.index, s.index })
		s.Want(t, "web: 1")
		s.set(func() { s.tags["web"] = nil; s.index++; s.list, s.indexes["web"] = s.index, s.index })
		s.Want(t, "")
	})
}

// Nothing is published before everything is known, and no more than a few requests are under way.
func TestFirstState(t *testing.T) {
	runStand(t, Config{}, func(f *fakeConsul) {
		f.slow = time.Second
		for i := range 100 {
			f.put(fmt.Sprintf("s%02d", i), one)
		}
	}, func(t *testing.T, s *stand) {
		s.At(7 * time.Second)
		s.Want(t, "silent")
		s.At(8 * time.Second) // a second for the list, and for 16 at a time
		if got := strings.Count(s.Part.String(), ":"); got != 100 {
			t.Errorf("%d services", got)
		}
		if s.most != maxReads {
			t.Errorf("%d requests at a time", s.most)
		}
	})
}

// What is published stays while Consul cannot be asked, or says something that is no emptiness, and what
// has changed meanwhile is published when it can.
func TestAway(t *testing.T) {
	for _, tc := range []struct {
		what       string
		from, back func(s *stand)
		want       string // why it is away
	}{
		{"down", func(s *stand) { s.stop() }, func(s *stand) { s.start() }, "connection refused"},
		{"500", func(s *stand) { s.status, s.body = 500, "No cluster leader" }, nil, "it answers 500: No cluster leader"},
		{"429", func(s *stand) { s.status, s.body = 429, "" }, nil, "raise limits.http_max_conns_per_client"},
		{"503 of a service", func(s *stand) { s.status, s.body, s.only = 503, "\x1b[31m", "/v1/health/service/web" }, nil, `503: \x1b[31m`},
		{"moved", func(s *stand) { s.status = 301 }, nil, "it answers 301"},
		{"token that was revoked", func(s *stand) { s.status, s.body = 403, "ACL not found" }, nil, "it refuses the token (403: ACL not found)"},
		{"token that may read nothing", func(s *stand) { s.filtered = true; s.index += 10; s.list = s.index }, nil, "the token may read no service"},
		{"no leader", func(s *stand) {
			s.header = map[string]string{"X-Consul-Knownleader": "false"}
			s.index++
			s.list = s.index
		}, nil, "its servers have no leader"},
		{"old", func(s *stand) {
			s.header = map[string]string{"X-Consul-Lastcontact": "10001"}
			s.index++
			s.list = s.index
		}, nil, "has not heard of the leader for 10.001s"},
		{"no Consul", func(s *stand) { s.header = map[string]string{"X-Consul-Index": ""}; s.index++; s.list = s.index }, nil, "it is no Consul"},
		{"stalled", func(s *stand) { s.stalled = true }, nil, "no answer in time"},
	} {
		runStand(t, Config{}, func(f *fakeConsul) { f.put("web", one); f.put("db", one) }, func(t *testing.T, s *stand) {
			s.Want(t, "db: 1, web: 1")
			s.At(30 * time.Second)
			if tc.what == "down" {
				tc.from(s)
			} else {
				s.set(func() { tc.from(s) })
			}
			s.At(4 * time.Minute)
			s.WantAway(t, tc.want)
			s.Want(t, "db: 1, web: 1")
			if n := len(s.requested()); n > 200 {
				t.Errorf("%s: %d requests in four minutes", tc.what, n)
			}
			if tc.back != nil {
				tc.back(s)
			}
			s.set(func() { s.status, s.filtered, s.header, s.stalled, s.only = 0, false, nil, false, "" })
			s.put("web", two)
			s.At(5 * time.Minute)
			s.WantAway(t, "")
			s.Want(t, "db: 1, web: 1 2")
			if s.Part.Times != 1 {
				t.Errorf("%s: it was away %d times", tc.what, s.Part.Times)
			}
		})
	}
}

// A server that answers at once, although nothing has changed, is not asked without end.
func TestBusyLoop(t *testing.T) {
	runStand(t, Config{}, func(f *fakeConsul) {
		f.put("web", one)
		f.header = map[string]string{"X-Consul-Index": "0"}
	}, func(t *testing.T, s *stand) {
		s.requested()
		s.At(time.Minute)
		s.Want(t, "web: 1")
		if n := len(s.requested()); n > 2*(30+answerBurst) {
			t.Errorf("%d requests in a minute", n)
		}
	})
}

// A registry that has begun anew, or went back to an old state, withdraws nothing before agents have registered
// everything again, or had the time to.
func TestBegunAnew(t *testing.T) {
	prepare := func(f *fakeConsul) { f.put("web", one, two); f.put("db", one) }
	t.Run("while it runs", func(t *testing.T) {
		runStand(t, Config{}, prepare, func(t *testing.T, s *stand) {
			s.At(time.Minute)
			s.lose()
			s.At(2 * time.Minute)
			s.WantAway(t, "went back")
			s.put("web", one)
			s.At(time.Minute + convergence - time.Second)
			s.Want(t, "db: 1, web: 1 2")
			s.At(2*time.Minute + convergence)
			s.WantAway(t, "")
			s.Want(t, "web: 1")
		})
	})
	t.Run("restarted", func(t *testing.T) {
		runStand(t, Config{}, prepare, func(t *testing.T, s *stand) {
			s.At(time.Minute)
			s.stop()
			s.lose()
			s.At(2 * time.Minute)
			s.WantAway(t, "connection refused")
			s.start()
			s.At(150 * time.Second)
			s.WantAway(t, "went back")
			s.Want(t, "db: 1, web: 1 2")
			s.put("web", two, "192.0.2.9") // as a backup may have it
			s.put("db", one)
			s.WantAway(t, "went back")
			s.remove("web", "192.0.2.9")
			s.Want(t, "db: 1, web: 1 2")
			s.put("web", one)
			s.WantAway(t, "") // all is back
			s.Want(t, "db: 1, web: 1 2")
			s.remove("db", one) // and from now on it is believed
			s.Want(t, "web: 1 2")
		})
	})
	t.Run("nothing is left, with a later index", func(t *testing.T) {
		runStand(t, Config{}, prepare, func(t *testing.T, s *stand) {
			s.At(time.Minute)
			s.stop()
			s.lose()
			s.set(func() { s.index, s.list = 1000, 1000 })
			s.start()
			s.At(2 * time.Minute)
			s.Want(t, "db: 1, web: 1 2")
			s.At(2*time.Minute + convergence)
			s.WantAway(t, "")
			s.Want(t, "")
		})
	})
}

// A service whose instances the token must not read is withdrawn and counted, as one that it must not
// see in the list. If that is so of all, nothing is.
func TestFilteredService(t *testing.T) {
	for _, header := range []string{"true", ""} { // which requests without a token do not get
		runStand(t, Config{}, func(f *fakeConsul) { f.put("web", one); f.put("db", one) }, func(t *testing.T, s *stand) {
			s.Want(t, "db: 1, web: 1")
			s.At(time.Minute)
			s.set(func() {
				s.header = map[string]string{"X-Consul-Results-Filtered-By-Acls": header}
				s.filtered, s.only = true, "/v1/health/service/web"
				s.index++
				s.indexes["web"] = s.index
			})
			s.At(2 * time.Minute)
			s.Want(t, "db: 1")
			s.WantAway(t, "")
			if got := fmt.Sprint(s.Part.Refused); got != "map[acl:1]" {
				t.Errorf("refused: %s", got)
			}
			s.requested()
			s.put("web", two)
			s.At(150 * time.Second)
			if n := len(s.requested()); n > 4 {
				t.Errorf("a change that must not be read is asked for by %d requests", n)
			}
			s.set(func() {
				s.only = "/v1/health/service/db"
				s.index++
				s.indexes["db"], s.indexes["web"] = s.index, s.index
			})
			s.At(3 * time.Minute)
			s.Want(t, "web: 1 2")
			s.set(func() { s.only = ""; s.index++; s.list, s.indexes["db"], s.indexes["web"] = s.index, s.index, s.index })
			s.At(4 * time.Minute)
			s.WantAway(t, "the token may read no service")
			s.Want(t, "web: 1 2")
		})
	}
	t.Run("and no index tells, when the policy of the token changes", func(t *testing.T) {
		runStand(t, Config{}, func(f *fakeConsul) { f.put("web", one); f.put("db", one) }, func(t *testing.T, s *stand) {
			s.At(time.Minute)
			s.set(func() { s.unreadable = true })
			s.At(time.Minute + serviceWait + serviceWait/16 + 2*listGrace)
			s.WantAway(t, "the token may read no service")
			s.Want(t, "db: 1, web: 1")
		})
	})
	t.Run("of all, and the list is readable", func(t *testing.T) {
		runStand(t, Config{}, func(f *fakeConsul) { f.put("web", one); f.put("db", one) }, func(t *testing.T, s *stand) {
			s.At(time.Minute)
			s.set(func() { s.unreadable = true; s.index++; s.indexes["db"], s.indexes["web"] = s.index, s.index })
			s.At(2 * time.Minute)
			s.WantAway(t, "the token may read no service")
			s.Want(t, "db: 1, web: 1")
		})
	})
	t.Run("without a token, which no header tells", func(t *testing.T) {
		runStand(t, Config{}, func(f *fakeConsul) {
			f.put("web", one)
			f.filtered, f.header = true, map[string]string{"X-Consul-Results-Filtered-By-Acls": ""}
		}, func(t *testing.T, s *stand) {
			s.Want(t, "silent")
			s.WantAway(t, "the token may read no service")
			s.set(func() { s.filtered = false })
			s.At(time.Minute)
			s.Want(t, "web: 1")
		})
	})
	t.Run("of none", func(t *testing.T) {
		runStand(t, Config{}, func(f *fakeConsul) {
			f.put("web", one)
			f.filtered, f.only = true, "/v1/health/service/web"
		}, func(t *testing.T, s *stand) {
			s.At(2 * listGrace)
			s.Want(t, "silent")
			s.WantAway(t, "the token may read no service")
		})
	})
}

// The token is read for each request, so that it may be replaced.
func TestToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(token string) { must.Do(t, os.WriteFile(path, []byte(token), 0o600)) }
	write("first\n")
	runStand(t, Config{TokenFile: path}, func(f *fakeConsul) { f.token = "first"; f.put("web", one) }, func(t *testing.T, s *stand) {
		s.Want(t, "web: 1")
		write("second")
		s.set(func() { s.token = "second" })
		s.put("web", two)
		s.At(time.Minute)
		s.Want(t, "web: 1 2")
		write("")
		s.stop()
		s.start()
		s.At(2 * time.Minute)
		s.WantAway(t, "is empty")
		must.Do(t, os.Remove(path))
		s.At(3 * time.Minute)
		s.WantAway(t, "no such file")
		write("second")
		s.At(4 * time.Minute)
		s.WantAway(t, "")
	})
	runStand(t, Config{Token: "one of the environment"}, func(f *fakeConsul) { f.token = "one of the environment"; f.put("web", one) }, func(t *testing.T, s *stand) {
		s.Want(t, "web: 1")
	})
}

// Over http more services than may have a connection each are read in turns, with as few connections.
func TestTurns(t *testing.T) {
	runStand(t, Config{}, func(f *fakeConsul) {
		for i := range mostPlain + 50 {
			f.put(fmt.Sprintf("s%03d", i), one)
		}
	}, func(t *testing.T, s *stand) {
		if got := strings.Count(s.Part.String(), ":"); got != mostPlain+50 {
			t.Errorf("%d services", got)
		}
		s.At(time.Minute)
		if s.waiting != 1 || s.most > maxReads {
			t.Errorf("%d queries wait, and %d were under way", s.waiting, s.most)
		}
		s.requested()
		s.put("s007", one+"=critical")
		s.At(time.Minute + 3*leastTurn/2)
		if got := s.Part.String(); strings.Contains(got, "s007") || strings.Count(got, ":") != mostPlain+49 {
			t.Errorf("it is published still")
		}
		if n := len(s.requested()); n > 2*(mostPlain+50) {
			t.Errorf("%d requests", n)
		}
		for i := range 50 {
			s.remove(fmt.Sprintf("s%03d", i+100), "")
		}
		s.At(5 * time.Minute)
		if s.waiting != mostPlain+1 {
			t.Errorf("%d queries wait", s.waiting)
		}
	})
}

// A source may come to have the names that begin with its own, and those in its zone.
func TestClaims(t *testing.T) {
	src := New(Config{Zone: services.FQDN("consul.example"), Datacenter: "dc1"})
	got := make(map[string]bool)
	for _, tc := range [][2]string{{"consul/dc1/web", "other.example"}, {"consul/web", "other.example"}, {"x", "web.consul.example"}} {
		got[tc[0]] = src.MayClaim(tc[0], services.FQDN(tc[1]))
	}
	if want := map[string]bool{"consul/dc1/web": true, "consul/web": false, "x": true}; !maps.Equal(got, want) {
		t.Errorf("claims are %v", got)
	}
}

// Of several services all can go at once only after the convergence period; the last one goes at once.
func TestAllGone(t *testing.T) {
	runStand(t, Config{}, func(f *fakeConsul) { f.put("web", one); f.put("db", one) }, func(t *testing.T, s *stand) {
		s.At(time.Minute)
		s.set(func() { clear(s.services); s.index++; s.list = s.index })
		s.WantAway(t, "its catalog is empty")
		s.Want(t, "db: 1, web: 1")
		s.At(2*time.Minute + convergence)
		s.WantAway(t, "")
		s.Want(t, "")
	})
}
