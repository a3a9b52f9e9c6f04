package registration_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
)

const modelTTL = 10 * time.Second

const modelRules = `
rules:
- name: all
  providers: ["spiffe://acme.example/*"]
  services: ["*.acme.example"]
  addresses: ["192.0.2.0/24"]
  ttl: {min: 1s, max: 1m, default: 10s}
  quota: 100
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

	cleared map[string]bool // on this stream: what is granted may be what was said before that
	spoke   time.Time
	silence time.Duration // the longest one
}

func (p *program) lose() {
	p.stream = nil
	clear(p.grants)
	clear(p.cleared)
}

// place is what the owners of a model share, what becomes of it, and its time.
type place interface {
	open(owner int) registration.Config // of an owner that starts, perhaps again, with its store
	away(owner int)
	back(owner int, gap bool)
	fail(owner int) // the next commits
	lose()          // all data
	has() int       // nodes

	pass()                                     // waits for as long as a step takes
	settle()                                   // waits until all is quiet, where that can be seen
	until(condition func() string)             // fails unless the condition is met when all is quiet
	rest(pass func(), condition func() string) // passes until everything has expired that does, and fails unless the condition is met
}

// model is a few owners in one place, and programs.
type model struct {
	t        *testing.T
	random   *rand.Rand
	place    place
	owners   []*testOwner
	programs []*program
	step     int
	trace    []string
}

func (m *model) notef(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf("%d: ", m.step)+fmt.Sprintf(format, args...))
}

func (m *model) start(i int) {
	config := m.place.open(i)
	config.Owner, config.Linger, config.Rules = fmt.Sprint("owner-", i), 5*time.Second, rulesOf(m.t, modelRules)
	m.owners[i] = newOwner(m.t, config)
}

// restart ends an owner, and starts it again.
func (m *model) restart(i int) {
	m.notef("owner %d restarts", i)
	m.owners[i].stop()
	for _, p := range m.programs {
		if p.stream != nil && p.at == i {
			p.lose()
		}
	}
	m.start(i)
}

// listen takes what programs were told.
func (m *model) listen() {
	m.place.settle()
	for _, p := range m.programs {
		if p.stream == nil {
			continue
		}
		for _, line := range p.stream.heard() {
			fields := strings.Fields(line)
			key := strings.Join(fields[1:min(3, len(fields))], " ")
			switch fields[0] {
			case "Granted":
				if p.grants[key].IsZero() {
					m.notef("program %d is granted %s by %d", p.id, key, p.at)
				}
				if p.grants[key].IsZero() && p.wants[key] {
					p.grants[key] = time.Now()
				}
			case "Refused":
				if fields[3] != "taken" {
					m.t.Fatalf("program %d was told %q", p.id, line)
				}
				m.notef("program %d is refused %s: %s", p.id, key, fields[3])
				delete(p.grants, key)
			case "Close":
				m.notef("program %d is sent away by %d", p.id, p.at)
				p.lose()
			case "Expired":
				if p.silence < modelTTL {
					m.t.Fatalf("program %d speaks in time, and was told %q", p.id, line)
				}
				delete(p.grants, key)
			}
		}
	}
}

// check fails where a node is not published that its program was granted, and still wants,
// unless the program is about to be told that it has lost the node.
func (m *model) check() {
	m.listen()
	for _, p := range m.programs {
		for key, since := range p.grants {
			if shown := m.shown(p.at); shown == nil || shown[key] {
				continue // nil: it has started with a store that has lost its data, and is silent
			}
			m.place.until(func() string {
				m.listen()
				if !p.grants[key].Equal(since) || p.cleared[key] && m.shown(p.at)[key] {
					return ""
				}
				return fmt.Sprintf("%s of program %d was granted by owner %d, which does not publish it", key, p.id, p.at)
			})
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
		p.lose()
		p.stream, p.at = m.owners[i].begin(fmt.Sprint(p.id)), i
		p.beat, p.spoke = m.step, time.Now()
		m.speak(p)
	case n < 35:
		if p.stream != nil {
			m.notef("the stream of program %d to %d breaks", p.id, p.at)
			p.stream.breakStream()
			p.lose()
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
				p.cleared[key] = true
				p.stream.clear(strings.Fields(key)[0], strings.Fields(key)[1])
			}
			break
		}
	case n < 86:
		m.notef("store %d is away", i)
		m.place.away(i)
	case n < 93:
		gap := m.random.IntN(2) == 0
		m.notef("store %d is back, gap %t", i, gap)
		m.place.back(i, gap)
	case n < 97:
		m.notef("store %d fails", i)
		m.place.fail(i)
	case n < 98:
		m.restart(i)
	case n < 99:
		m.notef("the data of the store is lost")
		m.place.lose()
	}
}

// speak has a program say what it wants.
func (m *model) speak(p *program) {
	if p.stream == nil {
		return
	}
	p.silence, p.spoke = max(p.silence, time.Since(p.spoke)), time.Now()
	for key := range p.wants {
		p.stream.active(strings.Fields(key)[0], strings.Fields(key)[1])
	}
}

func (m *model) pass() {
	m.step++
	m.place.pass()
	for _, p := range m.programs {
		if (m.step-p.beat)%5 == 0 {
			m.speak(p)
		}
	}
	m.check()
}

// runModel does things at random, and compares what is published with what should be.
func runModel(t *testing.T, place place, random *rand.Rand, steps int) {
	m := &model{t: t, random: random, place: place, owners: make([]*testOwner, 2)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(m.trace[max(0, len(m.trace)-60):], "\n"))
		}
	})
	for i := range m.owners {
		m.start(i)
	}
	for i := range 6 {
		m.programs = append(m.programs, &program{
			id: i, wants: make(map[string]bool), grants: make(map[string]time.Time), cleared: make(map[string]bool),
		})
	}
	m.place.pass()
	for range steps {
		for range m.random.IntN(4) {
			m.act()
			m.check()
		}
		m.pass()
	}
	m.notef("the end: all is well from now on")
	for i := range m.owners {
		m.place.back(i, false)
	}
	for _, p := range m.programs {
		for _, s := range p.stale {
			s.breakStream()
		}
	}
	m.place.rest(m.pass, m.atRest)
}

// atRest says what is not as it is to be when all is well for long.
func (m *model) atRest() string {
	want := make(map[string]bool)
	for _, p := range m.programs {
		if p.stream == nil {
			continue
		}
		for key := range p.wants {
			want[key] = true
			if p.grants[key].IsZero() && !strings.Contains(key, "192.0.2.100") {
				return fmt.Sprintf("%s of program %d was never granted", key, p.id)
			}
		}
	}
	for i, o := range m.owners {
		if got := m.shown(i); !maps.Equal(got, want) {
			return fmt.Sprintf("owner %d publishes %v, expected %v", i, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
		if s := o.source.Stats(); s.Nodes != len(want) || s.Pending != 0 || s.Old != 0 {
			return fmt.Sprintf("owner %d: %+v, expected %d nodes", i, s, len(want))
		}
	}
	if has := m.place.has(); has != len(want) {
		return fmt.Sprintf("the store has %d nodes, expected %d", has, len(want))
	}
	return ""
}

// simulated is a cluster in a bubble.
type simulated struct {
	*cluster

	t      *testing.T
	random *rand.Rand
	stores [2]*fakeStore
	leases []func() // what is to happen to nodes of owners that have ended
}

func (s *simulated) open(owner int) registration.Config {
	if former := s.stores[owner]; former != nil {
		s.mu.Lock()
		s.cluster.stores = slices.DeleteFunc(s.cluster.stores, func(f *fakeStore) bool { return f == former })
		s.mu.Unlock()
		s.endLeases(owner)
	}
	f := s.store(s.random.IntN(2) == 0)
	f.lag = anyLag(rand.New(rand.NewPCG(s.random.Uint64(), 0)), 50*time.Millisecond)
	s.stores[owner] = f
	return registration.Config{Store: f, Convergence: time.Minute}
}

// endLeases has nodes go that an owner has left behind, after a while.
func (s *simulated) endLeases(owner int) {
	streams := make(map[uint64]bool)
	s.mu.Lock()
	for _, v := range s.nodes {
		if v.Node.Owner == fmt.Sprint("owner-", owner) {
			streams[v.Node.Stream] = true
		}
	}
	s.mu.Unlock()
	end := time.Now().Add(time.Minute)
	s.leases = append(s.leases, func() {
		if streams != nil && time.Now().After(end) {
			s.drop(func(n *node.Node) bool { return streams[n.Stream] })
			streams = nil
		}
	})
}

func (s *simulated) away(owner int)           { s.stores[owner].setAway(true, false) }
func (s *simulated) back(owner int, gap bool) { s.stores[owner].setAway(false, gap) }
func (s *simulated) fail(owner int)           { s.stores[owner].fail(1 + s.random.IntN(3)) }
func (*simulated) settle()                    { synctest.Wait() }

func (s *simulated) pass() {
	time.Sleep(time.Second)
	for _, lease := range s.leases {
		lease()
	}
}

func (s *simulated) until(condition func() string) {
	s.t.Helper()
	if why := condition(); why != "" {
		s.t.Fatal(why)
	}
}

func (s *simulated) rest(pass func(), condition func() string) {
	s.t.Helper()
	for range 150 {
		pass()
	}
	time.Sleep(time.Second)
	s.until(condition)
}

// At night there are a thousand seeds, most of them for fewer steps.
func TestModel(t *testing.T) {
	t.Parallel()
	const long = 12
	for seed := range nightly.Cases[uint64](1000, 2*long) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			steps := 50
			if seed < long {
				steps = 150
			}
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				runModel(t, &simulated{t: t, random: random, cluster: newCluster()}, random, steps)
			})
		})
	}
}
