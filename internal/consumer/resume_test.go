package consumer_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// many is how many services there are in tests of resumed streams: enough for eight
// buckets.
const many = 300

// shop returns the i-th service of an owner. Text makes it another version.
func shop(t *testing.T, i int, text string) *federation.Service {
	t.Helper()
	s := services.At(fmt.Sprintf("s%d.fed.example", i), "192.0.2.1")
	s.SANs = []string{"spiffe://fed.example/shop"}
	s.Description = text
	return s
}

// shops returns all services of an owner.
func shops(t *testing.T) []*federation.Service {
	t.Helper()
	services := make([]*federation.Service, many)
	for i := range services {
		services[i] = shop(t, i, "")
	}
	return services
}

// TestResume loses an owner, and compares what it sends when it is back with what it
// need have sent: nothing but what differs, up to a bucket. Until the catalog is complete
// again nothing changes for anybody who reads it, and then it is the owner's.
func TestResume(t *testing.T) {
	for name, tc := range map[string]struct {
		version   wire.APIVersion
		admit     func(*federation.Service) *federation.InvalidError
		meanwhile func(services []*federation.Service) []*federation.Service // at the owner
		configure func(rules *catalog.Rules)                                 // here
		restart   bool                                                       // of the mirror, with its file
		refetch   bool                                                       // instead of a loss

		upserts [2]int // at least, and at most, on the new stream
		whole   bool   // the stream does not resume
	}{
		"nothing has changed": {upserts: [2]int{0, 0}},
		"by v1alpha1":         {version: wire.V1Alpha1, upserts: [2]int{many, many}, whole: true},
		"a service has changed": {
			meanwhile: func(s []*federation.Service) []*federation.Service {
				s[7] = shop(t, 7, "new")
				return s
			},
			upserts: [2]int{1, many / 4},
		},
		"a service has come": {
			meanwhile: func(s []*federation.Service) []*federation.Service { return append(s, shop(t, many, "")) },
			upserts:   [2]int{1, many / 4},
		},
		"a service has gone": {
			meanwhile: func(s []*federation.Service) []*federation.Service { return s[1:] },
			upserts:   [2]int{0, many / 4},
		},
		"all have changed": {
			meanwhile: func(s []*federation.Service) []*federation.Service {
				for i := range s {
					s[i] = shop(t, i, "new")
				}
				return s
			},
			upserts: [2]int{many, many}, whole: true,
		},
		"all have gone": {
			meanwhile: func([]*federation.Service) []*federation.Service { return nil },
			whole:     true,
		},
		"a service is refused": {
			admit: func(s *federation.Service) *federation.InvalidError {
				if s.Name == "s7" {
					return &federation.InvalidError{Reason: federation.ReasonOutOfZone, Rule: "no"}
				}
				return nil
			},
			upserts: [2]int{1, many / 4},
		},
		"a version is refused, and the one before is back": {
			admit: func(s *federation.Service) *federation.InvalidError {
				if s.Description == "bad" {
					return &federation.InvalidError{Reason: federation.ReasonOutOfZone, Rule: "no"}
				}
				return nil
			},
			meanwhile: func(s []*federation.Service) []*federation.Service {
				s[7] = shop(t, 7, "bad")
				return s
			},
			upserts: [2]int{1, many / 4},
		},
		"most are not imported": {
			admit: func(s *federation.Service) *federation.InvalidError {
				if !strings.HasSuffix(s.Name, "7") {
					return catalog.ErrNotImported
				}
				return nil
			},
			upserts: [2]int{many, many}, whole: true,
		},
		"one is not imported": {
			admit: func(s *federation.Service) *federation.InvalidError {
				if s.Name == "s7" {
					return catalog.ErrNotImported
				}
				return nil
			},
			upserts: [2]int{1, many / 4},
		},
		"all are imported from now on": {
			admit: func(s *federation.Service) *federation.InvalidError {
				if !strings.HasSuffix(s.Name, "7") {
					return catalog.ErrNotImported
				}
				return nil
			},
			configure: func(rules *catalog.Rules) { rules.Admit = nil },
			upserts:   [2]int{many * 9 / 10, many}, whole: true,
		},
		"there is a limit from now on": {
			configure: func(rules *catalog.Rules) { rules.MaxCatalog = 100 * catalog.Size(shop(t, many, ""), false) },
			upserts:   [2]int{many - 100, many}, whole: true,
		},
		"restored from the file": {restart: true, upserts: [2]int{0, 0}},
		"fetched once more":      {refetch: true, upserts: [2]int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
				config := sim.config()
				config.Subscription.Version = tc.version
				config.Rules.Admit = tc.admit
				if tc.restart {
					config.Subscription.File, config.Store = "catalog", new(disk)
				}
				services := shops(t)
				registry, stop := sim.serve(services...)
				m, end := sim.run(config)
				sim.synced(m)
				before := sim.names()
				counts := m.Status()

				if tc.meanwhile != nil {
					services = tc.meanwhile(slices.Clone(services))
				}
				sim.forget()
				switch {
				case tc.restart:
					end()
					stop()
					registry, _ = sim.serve(services...)
					clear(sim.services)
					m, _ = sim.run(config)
				case tc.refetch:
					must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
				default:
					stop()
					for m.Status().State == catalog.Synced {
						time.Sleep(time.Millisecond)
						synctest.Wait()
					}
					if tc.configure != nil {
						tc.configure(&config.Rules)
						m.Configure(config.Rules)
						before = sim.names()
						sim.forget()
					}
					registry, _ = sim.serve(services...)
				}
				time.Sleep(10 * time.Minute)
				sim.synced(m)

				for _, c := range sim.take() {
					if c.Status.State == catalog.Syncing && c.Status.Generation > 1 && c.Status.Known && c.Status.Services < strings.Count(before, " ")+1 {
						t.Fatalf("%d services are known while the stream is %s", c.Status.Services, c.Status.State)
					}
				}
				if got := sim.counted("responded upsert") + sim.counted("refused out_of_zone") + sim.counted("refused limit"); got < tc.upserts[0] || got > tc.upserts[1] {
					t.Errorf("%d services were sent, want %v", got, tc.upserts)
				}
				s := m.Status()
				if s.Resumed == tc.whole || s.Resumes > 1 {
					t.Errorf("resumed is %v, %d times", s.Resumed, s.Resumes)
				}
				if tc.configure == nil && tc.meanwhile == nil && (s.NotImported != counts.NotImported || s.Refused != counts.Refused || s.Octets != counts.Octets) {
					t.Errorf("%d are not imported, %d refused, with %d octets, want %d, %d and %d",
						s.NotImported, s.Refused, s.Octets, counts.NotImported, counts.Refused, counts.Octets)
				}
				if s.Hops() != 1 || s.Path != registry.Path().Header() {
					t.Errorf("the services come through %q, want %q", s.Path, registry.Path().Header())
				}
				sim.compare(config, services)
			})
		})
	}
}

// synced waits until the mirror is synced.
func (sim *testMirror) synced(m *consumer.Mirror) {
	sim.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		synctest.Wait()
		if m.Status().State == catalog.Synced {
			return
		}
		if time.Since(start) > time.Hour {
			sim.Fatalf("the owner is %s: %v", m.Status().State, m.Status().Failure)
		}
	}
}

// compare compares what was published with the services of the owner.
func (sim *testMirror) compare(config consumer.Config, services []*federation.Service) {
	sim.Helper()
	synctest.Wait()
	sim.mu.Lock()
	defer sim.mu.Unlock()
	n := 0
	for _, s := range services {
		if got := sim.services[s.Name]; got != nil {
			n++
			refused := config.Rules.Admit != nil && config.Rules.Admit(s) != nil
			if got.Description != s.Description && !refused {
				sim.Errorf("%s is %q, and the owner has %q", s.Name, got.Description, s.Description)
			}
		} else if (config.Rules.Admit == nil || config.Rules.Admit(s) == nil) && config.Rules.MaxCatalog == 0 {
			sim.Errorf("%s is missing", s.Name)
		}
	}
	if n != len(sim.services) {
		sim.Errorf("%d services are published that the owner does not have", len(sim.services)-n)
	}
}

// A mirror that is cut off again and again before the catalog is complete takes what
// differs in the end, and withdraws nothing meanwhile.
func TestResumeIsCut(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		services := shops(t)
		_, stop := sim.serve(services...)
		config := sim.config()
		var cut atomic.Bool
		var room atomic.Int64
		sim.Wrap = func(conn net.Conn) net.Conn {
			if !cut.Load() {
				return conn
			}
			return &short{Conn: conn, room: int(room.Add(400))} // octets more with every attempt
		}
		sim.publish = func(c consumer.Changes) {
			for _, change := range c.Services {
				if cut.Load() && change.Kind() == catalog.Gone {
					t.Errorf("%s is withdrawn", change.Name)
				}
			}
		}
		m, _ := sim.run(config)
		sim.synced(m)
		stop()
		for i := range services {
			if i%20 == 0 {
				services[i] = shop(t, i, "new")
			}
		}
		cut.Store(true)
		before := sim.attempts()
		sim.serve(services...)
		time.Sleep(2 * time.Hour)
		sim.synced(m)
		sim.compare(config, services)
		if n := sim.attempts() - before; n < 10 {
			t.Errorf("synced with the attempt number %d", n)
		}
	})
}

// TestFirstCatalogIsCut loses an owner in the middle of its first catalog. The next stream brings
// the rest. Before its end nobody takes the part for the whole, and no file has it.
func TestFirstCatalogIsCut(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		const all = 1500 // more than an owner sends in the order of names
		services := make([]*federation.Service, all)
		for i := range services {
			services[i] = shop(t, i, "")
		}
		sim.serve(services...)
		config := sim.config()
		config.Subscription.File = filepath.Join(t.TempDir(), "catalog")
		room := 150_000 // octets, of about 300,000
		sim.Wrap = func(conn net.Conn) net.Conn {
			if room == 0 {
				return conn
			}
			cut := &short{Conn: conn, room: room}
			room = 0
			return cut
		}
		sim.publish = func(c consumer.Changes) {
			if c.Status.Known && c.Status.Services < all {
				t.Errorf("the catalog is %s and known, with %d services", c.Status.State, c.Status.Services)
			}
		}
		m, _ := sim.run(config)
		for m.Status().State != catalog.Stale {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		held := m.Status().Services
		if held < all/4 || held > all*3/4 {
			t.Fatalf("%d services have come", held)
		}
		if _, err := os.Stat(config.Subscription.File); err == nil {
			t.Error("there is a file of a part")
		}
		sim.forget()
		sim.synced(m)
		sim.compare(config, services)
		if sent := sim.counted("responded upsert"); sent > all-held+all/8 || !m.Status().Resumed {
			t.Errorf("%d services were sent when %d of %d were there", sent, held, all)
		}
	})
}

// short is a connection that breaks after some octets.
type short struct {
	net.Conn

	room int
}

func (s *short) Read(p []byte) (int, error) {
	if s.room <= 0 {
		s.Close()
	}
	n, err := s.Conn.Read(p[:min(len(p), max(s.room, 1))])
	s.room -= n
	return n, err
}

// A replica that cannot resume sends everything.
func TestReplicaWithoutResume(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		_, stop := sim.serve(shops(t)[:2]...)
		m, _ := sim.run(sim.config())
		sim.synced(m)
		stop()
		sim.misbehave("announce\nupsert s1 s1.fed.example 192.0.2.1\nend\nhang")
		time.Sleep(time.Minute)
		sim.synced(m)
		if s := m.Status(); s.Resumed || s.Path != "" || s.Hops() != 0 || sim.names() != "s1" {
			t.Errorf("resumed is %v, the path %q, and the services are %s", s.Resumed, s.Path, sim.names())
		}
	})
}

// A stream that is not accepted is given up before anything of it is applied, and is
// not opened again soon.
func TestAccept(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		registry, _ := sim.serve(services.At("web.fed.example", "192.0.2.1"))
		config := sim.config()
		unwanted := errors.New("they have been here before")
		var path wire.OwnerPath
		config.Accept = func(p wire.OwnerPath) error {
			path = p
			return unwanted
		}
		m, _ := sim.run(config)
		time.Sleep(time.Hour)
		if s := m.Status(); !errors.Is(s.Failure, unwanted) || s.Services != 0 || s.Path != "" || s.Parked {
			t.Errorf("status %+v", s)
		}
		if path.Header() != registry.Path().Header() {
			t.Errorf("the path was %v, want %v", path, registry.Path())
		}
		if n := sim.attempts(); n < 12 || n > 50 {
			t.Errorf("%d attempts in an hour", n)
		}
		sim.wantLog("WARN msg=\"not connected to owner, still trying\" address=" + ownerAddress + " error=\"header: they have been here before\"")
	})
}
