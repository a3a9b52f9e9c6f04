package registration_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
)

const modelRules = `
rules:
- name: all
  providers: ["spiffe://acme.example/*"]
  services: ["*.acme.example"]
  addresses: ["192.0.2.0/24"]
  ttl: {min: 1s, max: 1m, default: 10s}
  quota: 100
observers: ["spiffe://acme.example/*"]
`

// program is a provider of the model: what it wants to be registered, and what it was
// told.
type program struct {
	id     int
	at     int       // the owner that it is connected to
	stream *provider // nil: none
	stale  []*provider
	wants  map[string]bool      // "service URI"
	grants map[string]time.Time // when it was told that it is registered, and not otherwise since
	beat   int                  // the step in which it speaks
}

// model is a few owners on one store, and programs.
type model struct {
	t        *testing.T
	random   *rand.Rand
	cluster  *cluster
	stores   []*fakeStore
	owners   []*world
	programs []*program
	step     int
	trace    []string
	leases   []func() // what is to happen to nodes of owners that were restarted
}

func (m *model) notef(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf("%d: ", m.step)+fmt.Sprintf(format, args...))
}

func (m *model) failf(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("step %d: %s\n%s", m.step, fmt.Sprintf(format, args...), strings.Join(m.trace[max(0, len(m.trace)-60):], "\n"))
}

func (m *model) start(i int) {
	if m.stores[i] != nil {
		m.cluster.mu.Lock()
		m.cluster.stores = slices.DeleteFunc(m.cluster.stores, func(s *fakeStore) bool { return s == m.stores[i] })
		m.cluster.mu.Unlock()
	}
	m.stores[i] = m.cluster.store(m.random.IntN(2) == 0)
	m.stores[i].lag = anyLag(rand.New(rand.NewPCG(m.random.Uint64(), 0)), 50*time.Millisecond)
	m.owners[i] = newWorld(m.t, registration.Config{
		Store: m.stores[i], Owner: fmt.Sprint("owner-", i), Convergence: time.Minute,
		Linger: 5 * time.Second, Rules: rulesOf(m.t, modelRules),
	})
}

// restart ends an owner, and starts it again.
func (m *model) restart(i int) {
	m.notef("owner %d restarts", i)
	m.owners[i].stop()
	for _, p := range m.programs {
		if p.stream != nil && p.at == i {
			p.stream = nil
			maps.DeleteFunc(p.grants, func(string, time.Time) bool { return true })
		}
	}
	streams := make(map[uint64]bool)
	m.cluster.mu.Lock()
	for _, v := range m.cluster.nodes {
		if v.Node.Owner == fmt.Sprint("owner-", i) {
			streams[v.Node.Stream] = true
		}
	}
	m.cluster.mu.Unlock()
	end := time.Now().Add(time.Minute)
	m.leases = append(m.leases, func() {
		if streams != nil && time.Now().After(end) {
			m.cluster.drop(func(n *node.Node) bool { return streams[n.Stream] })
			streams = nil
		}
	})
	m.start(i)
}

// listen takes what programs were told.
func (m *model) listen() {
	synctest.Wait()
	for _, p := range m.programs {
		if p.stream == nil {
			continue
		}
		for _, line := range p.stream.told() {
			fields := strings.Fields(line)
			switch fields[0] {
			case "Granted":
				if p.grants[fields[1]+" "+fields[2]].IsZero() {
					m.notef("program %d is granted %s by %d", p.id, fields[1]+" "+fields[2], p.at)
				}
				if p.grants[fields[1]+" "+fields[2]].IsZero() && p.wants[fields[1]+" "+fields[2]] {
					p.grants[fields[1]+" "+fields[2]] = time.Now()
				}
			case "Refused":
				if fields[3] != "taken" {
					m.failf("program %d was told %q", p.id, line)
				}
				m.notef("program %d is refused %s: %s", p.id, fields[1]+" "+fields[2], fields[3])
				delete(p.grants, fields[1]+" "+fields[2])
			case "Close":
				m.notef("program %d is sent away by %d", p.id, p.at)
				p.stream = nil
				clear(p.grants)
			case "Expired":
				m.failf("program %d speaks in time, and was told %q", p.id, line)
			}
		}
	}
}

// check fails where a node is not published that its program was granted, and still wants.
func (m *model) check() {
	for _, p := range m.programs {
		if p.stream == nil {
			continue
		}
		shown := m.shown(p.at)
		if shown == nil {
			continue // it has started with a store that has lost its data, and is silent
		}
		for key := range p.grants {
			if !shown[key] {
				m.failf("%s of program %d was granted by owner %d, which does not publish it: %v", key, p.id, p.at, slices.Sorted(maps.Keys(shown)))
			}
		}
	}
}

// shown returns the nodes that an owner publishes, or nil while it is silent.
func (m *model) shown(i int) map[string]bool {
	nodes := make(map[string]bool)
	part := m.owners[i].part
	part.mu.Lock()
	defer part.mu.Unlock()
	if !part.whole {
		return nil
	}
	for _, s := range part.services {
		for _, e := range s.Service().Endpoints {
			nodes[fmt.Sprintf("%s tcp://%s:%d", s.FQDN(), e.Address, e.Port)] = true
		}
	}
	return nodes
}

// act does something at random.
func (m *model) act() {
	p := m.programs[m.random.IntN(len(m.programs))]
	i := m.random.IntN(len(m.owners))
	switch n := m.random.IntN(100); {
	case n < 25: // connect, perhaps elsewhere, and leave the former stream alone
		if p.stream != nil {
			p.stale = append(p.stale, p.stream)
		}
		m.notef("program %d connects to %d", p.id, i)
		p.stream, p.at = m.owners[i].connect(fmt.Sprint(p.id)), i
		clear(p.grants)
		p.beat = m.step
		m.speak(p)
	case n < 35:
		if p.stream != nil {
			m.notef("the stream of program %d to %d breaks", p.id, p.at)
			p.stream.breakStream()
			p.stream = nil
			clear(p.grants)
		}
	case n < 40:
		for _, s := range p.stale {
			s.breakStream()
		}
		p.stale = nil
	case n < 65:
		key := fmt.Sprintf("s%d.acme.example tcp://192.0.2.%d:%d", m.random.IntN(4), p.id, 1+m.random.IntN(3))
		if m.random.IntN(10) == 0 {
			key = "s0.acme.example tcp://192.0.2.100:1" // which others want as well
		}
		m.notef("program %d wants %s", p.id, key)
		p.wants[key] = true
		m.speak(p)
	case n < 80:
		for key := range p.wants {
			m.notef("program %d clears %s", p.id, key)
			delete(p.wants, key)
			delete(p.grants, key)
			if p.stream != nil {
				p.stream.clear(strings.Fields(key)[0], strings.Fields(key)[1])
			}
			break
		}
	case n < 86:
		m.notef("store %d is away", i)
		m.stores[i].setAway(true, false)
	case n < 93:
		gap := m.random.IntN(2) == 0
		m.notef("store %d is back, gap %t", i, gap)
		m.stores[i].setAway(false, gap)
	case n < 97:
		m.notef("store %d fails", i)
		m.stores[i].fail(1 + m.random.IntN(3))
	case n < 98:
		m.restart(i)
	case n < 99:
		m.notef("the data of the store is lost")
		m.cluster.lose()
	}
}

// speak has a program say what it wants.
func (m *model) speak(p *program) {
	if p.stream == nil {
		return
	}
	for key := range p.wants {
		p.stream.active(strings.Fields(key)[0], strings.Fields(key)[1])
	}
}

func (m *model) pass() {
	m.step++
	time.Sleep(time.Second)
	for _, p := range m.programs {
		if (m.step-p.beat)%5 == 0 {
			m.speak(p)
		}
	}
	for _, lease := range m.leases {
		lease()
	}
	m.listen()
	m.check()
}

// runModel does things at random, and compares what is published with what should be.
func runModel(t *testing.T, seed uint64, steps int) {
	m := &model{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), cluster: newCluster(),
		stores: make([]*fakeStore, 2), owners: make([]*world, 2),
	}
	for i := range m.owners {
		m.start(i)
	}
	for i := range 6 {
		m.programs = append(m.programs, &program{id: i, wants: make(map[string]bool), grants: make(map[string]time.Time)})
	}
	time.Sleep(time.Second)
	for range steps {
		for range m.random.IntN(4) {
			m.act()
			m.listen()
			m.check()
		}
		m.pass()
	}
	// All is well from now on.
	m.notef("the end")
	for i := range m.stores {
		m.stores[i].fail(0)
		m.stores[i].setAway(false, false)
	}
	for _, p := range m.programs {
		for _, s := range p.stale {
			s.breakStream()
		}
	}
	for range 150 {
		m.pass()
	}
	time.Sleep(time.Second)
	want := make(map[string]bool)
	for _, p := range m.programs {
		if p.stream == nil {
			continue
		}
		for key := range p.wants {
			want[key] = true
			if p.grants[key].IsZero() && !strings.Contains(key, "192.0.2.100") {
				m.failf("%s of program %d was never granted", key, p.id)
			}
		}
	}
	for i := range m.owners {
		if got := m.shown(i); !maps.Equal(got, want) {
			m.failf("owner %d publishes %v, expected %v", i, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
		if s := m.owners[i].source.Stats(); s.Nodes != len(want) || s.Pending != 0 || s.Old != 0 {
			m.failf("owner %d: %+v, expected %d nodes", i, s, len(want))
		}
	}
	if m.cluster.has() != len(want) {
		m.failf("the store has %d nodes, expected %d", m.cluster.has(), len(want))
	}
}

// In CI there are a thousand seeds, most of them for fewer steps: under race these take 200 s
// of one processor, and a fifth of that otherwise.
func TestModel(t *testing.T) {
	t.Parallel()
	const long = 12
	seeds := uint64(2 * long)
	if os.Getenv("CI") == "true" {
		seeds = 1000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			steps := 50
			if seed < long {
				steps = 150
			}
			synctest.Test(t, func(t *testing.T) { runModel(t, seed, steps) })
		})
	}
}
