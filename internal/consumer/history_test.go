package consumer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
)

// TestHistories plays random histories of an owner, its replica, the network, the
// configuration and the process of the mirror, in which some streams resume. In the end
// the mirror has what the owner has.
func TestHistories(t *testing.T) {
	var resumes uint64
	seeds := nightly.Cases[uint64](8, 5)
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) { resumes += history(t, sim, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
	if resumes == 0 {
		t.Error("no stream has resumed")
	}
}

// history plays one, and returns how many streams have resumed.
func history(t *testing.T, sim *testMirror, r *rand.Rand) (resumes uint64) {
	t.Helper()
	const names = 300
	var conns sync.Map
	sim.Wrap = func(conn net.Conn) net.Conn {
		conns.Store(conn, nil)
		return conn
	}
	random := func(i int) *federation.Service {
		return shop(t, i, []string{"", "", "", "one", "two", "three"}[r.IntN(6)])
	}
	all := make(map[string]*federation.Service) // what the owner has
	for i := range names {
		if r.IntN(3) > 0 {
			s := random(i)
			all[s.Name] = s
		}
	}
	var registry *registry.Registry // nil: the owner is away
	var stop func()
	start := func(services map[string]*federation.Service) {
		registry, stop = sim.serve(slices.Collect(maps.Values(services))...)
	}
	start(all)

	config := sim.kept(new(disk), "catalog")
	largest := catalog.Size(shop(t, names-1, "three"), false)
	rules := func() catalog.Rules {
		rules := catalog.Rules{Settle: 5 * time.Second, Retention: []time.Duration{catalog.Forever, time.Minute, time.Hour}[r.IntN(3)]}
		wanted, bad := []string{"", "one", "two", "three"}[r.IntN(4)], []string{"none", "one", "two", "three"}[r.IntN(4)]
		filters := r.IntN(4) == 0 // what they leave out comes again, instead of a resumption
		rules.Admit = func(s *federation.Service) *federation.InvalidError {
			switch {
			case filters && s.Description != wanted:
				return catalog.ErrNotImported
			case s.Description == bad:
				return &federation.InvalidError{Reason: federation.ReasonOutOfZone, Rule: "no"}
			}
			return nil
		}
		rules.MaxCatalog = []int64{0, 0, 0, 100 * largest}[r.IntN(4)]
		return rules
	}
	config.Rules = rules()
	m, end := sim.run(config)
	var log []string
	for range 25 {
		op := []string{"services", "services", "services", "owner", "replica", "network", "reload", "version", "restart"}[r.IntN(9)]
		switch op {
		case "services": // change
			for range 1 + r.IntN(2) {
				s := random(r.IntN(names))
				if r.IntN(3) == 0 {
					delete(all, s.Name)
				} else {
					all[s.Name] = s
				}
				switch {
				case registry == nil:
				case all[s.Name] == nil:
					registry.Delete(s.Name)
				default:
					must.Get(registry.Upsert(s))(t)
				}
			}
		case "owner": // goes, or comes
			if registry != nil {
				stop()
				registry = nil
			} else {
				start(all)
			}
		case "replica": // another one, which lags behind
			if registry != nil {
				stop()
				behind := maps.Clone(all)
				for range r.IntN(3) {
					delete(behind, fmt.Sprint("s", r.IntN(names)))
				}
				start(behind)
				if r.IntN(2) == 0 {
					time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
				}
				must.Get(registry.Set(slices.Collect(maps.Values(all))))(t)
			}
		case "network":
			conns.Range(func(conn, _ any) bool {
				conn.(net.Conn).Close() //nolint:forcetypeassert // nothing else is in there
				conns.Delete(conn)
				return true
			})
		case "reload":
			config.Rules = rules()
			must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		case "version": // of the API, by a reload
			config.Subscription.Version = []wire.APIVersion{wire.V1Alpha2, wire.V1Alpha1}[r.IntN(2)]
			must.Do(t, m.Resubscribe(config.Subscription, config.Rules))
		case "restart": // of the mirror
			resumes += m.Status().Resumes
			end()
			clear(sim.services)
			if r.IntN(2) == 0 {
				config.Rules = rules()
			}
			m, end = sim.run(config)
		}
		d := []time.Duration{0, 0, time.Duration(r.IntN(3000)) * time.Millisecond, 20 * time.Second, 2 * time.Minute}[r.IntN(5)]
		log = append(log, fmt.Sprint(op, " ", d))
		time.Sleep(d)
		if r.IntN(2) == 0 {
			synctest.Wait()
		}
	}
	if registry == nil {
		start(all)
	}
	time.Sleep(20 * time.Minute)
	sim.synced(m)
	time.Sleep(5 * time.Minute)
	sim.synced(m)
	resumes += m.Status().Resumes

	sim.mu.Lock()
	defer sim.mu.Unlock()
	admitted, told := 0, int64(0)
	for name, s := range all {
		invalid := config.Rules.Admit(s)
		if invalid != catalog.ErrNotImported {
			told++
		}
		got := sim.services[name]
		switch {
		case invalid == catalog.ErrNotImported && got != nil:
			t.Errorf("%s is not imported, and there", name)
		case invalid == nil && got != nil && got.Description != s.Description:
			t.Errorf("%s is %q, and the owner has %q", name, got.Description, s.Description)
		case invalid == nil:
			admitted++
			if got == nil && config.Rules.MaxCatalog == 0 {
				t.Errorf("%s is missing", name)
			}
		}
	}
	octets := int64(0)
	for name, s := range sim.services {
		if all[name] == nil {
			t.Errorf("%s is there, and the owner has none", name)
		}
		octets += catalog.Size(s, false)
	}
	if limit := config.Rules.MaxCatalog; limit > 0 && (octets > limit || told*largest <= limit && len(sim.services) < admitted) {
		t.Errorf("%d services are there, of %d, in %d octets, with a limit of %d", len(sim.services), admitted, octets, limit)
	}
	if t.Failed() {
		t.Logf("after %s: %+v", strings.Join(log, ", "), m.Status())
	}
	return resumes
}
