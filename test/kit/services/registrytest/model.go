package registrytest

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
	"github.com/hamlet-federation/coredns-federation/internal/policy/policytest"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// exports are the rules of a policy; absent says that there is no policy.
type exports struct {
	absent bool
	rules  []policy.Rule
}

// compile returns the policy.
func (e exports) compile(tb testing.TB) *policy.Policy {
	if e.absent {
		return nil
	}
	return Policy(tb, e.rules...)
}

// truth is what a registry must do, evaluated naively.
type truth struct {
	exports
	Services map[string]*federation.Service
}

// Told returns what a subscriber is told of the service of that name, or nil.
func (m truth) Told(p *Peer, name string) *federation.Service {
	s := m.Services[name]
	if s == nil || m.absent {
		return s
	}
	return policytest.ToldService(m.rules, p.IDs, s)
}

// Peer is a subscriber with what it has been told.
type Peer struct {
	*Listener

	IDs []federation.ID // of the consumer

	Held    map[string]*federation.Service
	Ended   bool
	catalog map[string]bool // names that have been told before the end marker; nil where the registry was not complete

	// due are services that have to be told before the end, as long as nothing is different.
	due map[string]*federation.Service
}

// apply holds an update, and returns what is wrong with it whatever is true. Upserted is
// nil for a deletion and for the end of the catalog.
func (p *Peer) apply(u registry.Update) (upserted *federation.Service, err error) {
	switch u.Operation {
	case wire.Upsert:
		upserted = u.Encoded.Service()
		if !p.Ended && p.catalog[u.Name] {
			return nil, fmt.Errorf("told %s twice in the full catalog", u.Name)
		}
		if u.Told != (p.Held[u.Name] != nil) {
			return nil, fmt.Errorf("told %s with told %v, and it is otherwise", u.Name, u.Told)
		}
		if old := p.Held[u.Name]; p.Ended && old != nil && upserted.Equal(old) {
			return nil, fmt.Errorf("told %s again, which has not changed", u.Name)
		}
		if p.catalog != nil {
			p.catalog[u.Name] = true
		}
		p.Held[u.Name] = upserted
	case wire.Delete:
		if p.Held[u.Name] == nil {
			return nil, fmt.Errorf("told to delete %s, of which it does not know", u.Name)
		}
		delete(p.Held, u.Name)
	default:
		if p.Ended {
			return nil, fmt.Errorf("told %v after the end of the catalog", u.Operation)
		}
		p.Ended = true
	}
	return upserted, nil
}

// Model is a registry, and the truth about it.
type Model struct {
	tb testing.TB
	policytest.Random
	truth

	Registry *registry.Registry
	Peers    []*Peer
	away     bool // whether it is unavailable
	open     bool // whether it is not complete

	Upserts, Deletions int // that have been taken

	counts  sync.Mutex
	Resumed int // subscriptions that did not begin with the whole catalog; guarded by counts
	Adopted int // services that they had already; guarded by counts

	hooks Hooks
}

// Hooks look into a registry, and are for its own tests. Others have none of them.
type Hooks struct {
	// State returns whether a subscriber has been told all that there is, and how many
	// services are kept of which it was told more than its version has.
	State func(s *registry.Subscription) (current bool, ahead int)

	// Told returns the service as a subscriber was told that has taken nothing.
	Told func(s *registry.Subscription, name string) *federation.Service

	// Digest says whether there is time left for digests.
	Digest func(r *registry.Registry, left bool)
}

// NewModel returns an empty registry without a policy.
func NewModel(tb testing.TB, seed uint64, hooks Hooks) *Model {
	return &Model{
		tb: tb, Random: policytest.New(seed), Registry: registry.New(), hooks: hooks,
		truth: truth{exports: exports{absent: true}, Services: make(map[string]*federation.Service)},
	}
}

// Open makes the registry one that is not complete. At some later step it is.
func (m *Model) Open() {
	m.open = true
	m.Registry.SetComplete(false)
}

// complete makes the registry complete, if it is not.
func (m *Model) complete() {
	if !m.open {
		return
	}
	m.open = false
	m.Registry.SetComplete(true)
	for _, p := range m.Peers {
		p.due = m.Visible(p)
	}
}

// Begin makes a catalog, a policy and subscribers.
func (m *Model) Begin() {
	for _, op := range []byte{4, 10, 10, 6, 10} {
		m.Step(op)
	}
}

// Name returns the name of a service, one of few.
func (m *Model) Name() string { return string("abcdefgh"[m.IntN(8)]) }

// Another returns another version of a service: a new one, or one with a detail changed.
func (m *Model) Another(name string) *federation.Service {
	fresh := m.Service(name)
	old := m.Services[name]
	if old == nil || m.IntN(2) == 0 {
		return fresh
	}
	changed := *old
	switch m.IntN(5) {
	case 0:
		changed.Description = fresh.Description + " changed"
	case 1:
		changed.FQDN = fresh.FQDN
	case 2:
		changed.Labels = fresh.Labels
	case 3:
		changed.Endpoints = fresh.Endpoints
	}
	return &changed
}

// rulesNext returns rules that replace those of now: some that have nothing to do with them,
// or nearly the same.
func (m *Model) rulesNext() exports {
	rules := slices.Clone(m.rules)
	switch m.IntN(8) {
	case 0:
		return exports{absent: true}
	case 1, 2: // another order
		m.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	case 3: // one less
		if len(rules) > 0 {
			i := m.IntN(len(rules))
			rules = slices.Delete(rules, i, i+1)
		}
	case 4: // one more
		rules = slices.Insert(rules, m.IntN(len(rules)+1), m.Rule())
	default:
		rules = m.Rules(4)
		if m.IntN(4) > 0 {
			last := m.Rule()
			last.FQDNs, last.Tags, last.Labels, last.To = nil, nil, nil, []string{"*"}
			rules = append(rules, last)
		}
	}
	return exports{rules: rules}
}

// catalog returns services for the whole catalog, some of them as they are.
func (m *Model) catalog() []*federation.Service {
	var services []*federation.Service
	for i := range 8 {
		name := string(rune('a' + i))
		switch old := m.Services[name]; {
		case old != nil && m.IntN(3) > 0:
			services = append(services, old)
		case m.IntN(2) == 0:
			services = append(services, m.Another(name))
		}
	}
	return services
}

// hold makes services the truth.
func (m *Model) hold(services []*federation.Service) {
	m.Services = make(map[string]*federation.Service)
	for _, s := range services {
		m.Services[s.Name] = s
	}
}

// Step does one thing.
func (m *Model) Step(op byte) {
	m.Do(op % 16)
	m.Check()
}

// Do does one of sixteen things.
func (m *Model) Do(op byte) {
	r := m.Registry
	switch op {
	case 0, 1:
		s := m.Another(m.Name())
		Upsert(m.tb, r, s)
		m.Services[s.Name] = s
	case 2:
		name := m.Name()
		r.Delete(name)
		delete(m.Services, name)
	case 3:
		gone := m.Name()
		var services []*federation.Service
		var changed []*wire.EncodedService
		for range m.IntN(4) {
			s := m.Another(m.Name())
			services = append(services, s)
			changed = append(changed, Encoded(m.tb, s))
		}
		r.UpdateEncoded(changed, []string{gone})
		delete(m.Services, gone)
		for _, s := range services {
			m.Services[s.Name] = s
		}
	case 4, 5:
		services := m.catalog()
		Set(m.tb, r, services)
		m.hold(services)
	case 6, 7, 8, 9:
		exports := m.rulesNext()
		r.SetPolicy(exports.compile(m.tb))
		m.exports = exports
		for _, p := range m.Peers {
			p.due = nil
		}
	case 10:
		switch {
		case len(m.Peers) > 5 || m.away:
		case m.IntN(2) == 0:
			m.Peers = append(m.Peers, m.comeBack(m.IDs(), m.Remembered(), 1<<m.IntN(10)))
		default:
			m.Peers = append(m.Peers, m.subscribe(m.IDs()))
		}
	case 11:
		if i := m.IntN(8); i < len(m.Peers) {
			m.Peers[i].Close()
			m.Peers = slices.Delete(m.Peers, i, i+1)
		}
	case 15:
		m.complete()
		if m.IntN(4) > 0 {
			break
		}
		m.away = !m.away
		reason := ""
		if m.away {
			reason = "away"
		}
		r.SetUnavailable(reason, time.Time{})
		m.Peers = slices.DeleteFunc(m.Peers, (*Peer).IsOver)
	default:
		if len(m.Peers) > 0 {
			m.take(m.Peers[m.IntN(len(m.Peers))], 1+m.IntN(6))
		}
	}
}

// subscribe returns a subscriber that holds nothing.
func (m *Model) subscribe(ids []federation.ID) *Peer {
	return m.newPeer(ListenAs(m.Registry, registry.Consumer{IDs: ids, Awaits: true}), ids)
}

func (m *Model) newPeer(l *Listener, ids []federation.ID) *Peer {
	p := &Peer{Listener: l, IDs: ids, Held: make(map[string]*federation.Service)}
	if !m.open {
		p.catalog = make(map[string]bool)
	}
	return p
}

// take takes up to n updates, which must be what the policy in force tells.
func (m *Model) take(p *Peer, n int) int {
	updates := p.TakeUpdates(nil, n)
	for _, u := range updates {
		if u.Operation == wire.End {
			m.checkEnd(p)
		}
		got, err := p.apply(u)
		if err != nil {
			m.tb.Fatalf("subscriber %v is %v", p.IDs, err)
		}
		switch want := m.Told(p, u.Name); {
		case got != nil && (want == nil || !want.Equal(got)):
			m.tb.Fatalf("subscriber %v is told %+v, and must be told %+v", p.IDs, got, want)
		case got != nil:
			m.Upserts++
		case u.Operation == wire.Delete && want != nil:
			m.tb.Fatalf("subscriber %v is told to delete %s, and must have %+v", p.IDs, u.Name, want)
		case u.Operation == wire.Delete:
			m.Deletions++
		}
	}
	return len(updates)
}

// checkEnd is called when a subscriber is told the end of the catalog.
func (m *Model) checkEnd(p *Peer) {
	if m.open {
		m.tb.Fatalf("subscriber %v is told the end of a catalog that is not complete", p.IDs)
	}
	for name, s := range p.due {
		if m.Services[name] == s && p.Held[name] == nil {
			m.tb.Fatalf("subscriber %v is told the end, and was not told %s", p.IDs, name)
		}
	}
}

// Check compares what every subscriber holds, and what it will hold when it has taken
// everything, with the truth.
func (m *Model) Check() {
	subscriptions := 0
	for _, c := range m.Registry.AudiencesOf("") {
		subscriptions += c.Consumers
		if !c.Everybody && (m.absent || c.Consumers == 0) {
			m.tb.Fatalf("there is a class with %d subscriptions, with a policy: %v", c.Consumers, !m.absent)
		}
	}
	if subscriptions != len(m.Peers) {
		m.tb.Fatalf("%d subscriptions are in a class, expected %d", subscriptions, len(m.Peers))
	}
	classes, compiled := m.Registry.Stats().Classes, m.compile(m.tb)
	for _, p := range m.Peers {
		m.checkPeer(p)
		if compiled == nil {
			continue
		}
		rules := compiled.ClassOf(p.IDs).RuleNumbers()
		visible := len(m.Visible(p))
		if !slices.ContainsFunc(classes, func(c registry.ClassStats) bool { return slices.Equal(c.Rules, rules) && c.Services == visible }) {
			m.tb.Fatalf("of the classes %v none is that of subscriber %v, with %d services", classes, p.IDs, visible)
		}
	}
}

// checkPeer compares what a subscriber holds that is not behind, and bounds what is kept for
// one that is.
func (m *Model) checkPeer(p *Peer) {
	current, ahead := false, 0
	if m.hooks.State != nil {
		current, ahead = m.hooks.State(p.Subscription)
	}
	for i := range 8 {
		name := string(rune('a' + i))
		want, held := m.Told(p, name), p.Held[name]
		if current && ((want == nil) != (held == nil) || want != nil && !held.Equal(want)) {
			m.tb.Fatalf("subscriber %v goes on holding %+v of %s, expected %+v", p.IDs, held, name, want)
		}
	}
	if ahead > 8 {
		m.tb.Fatalf("of %d services it is kept what subscriber %v was told of them", ahead, p.IDs)
	}
}

// Visible returns the services that a subscriber may be told.
func (m *Model) Visible(p *Peer) map[string]*federation.Service {
	visible := make(map[string]*federation.Service)
	for name := range m.Services {
		if s := m.Told(p, name); s != nil {
			visible[name] = s
		}
	}
	return visible
}

// Finish lets every subscriber take all that there is.
func (m *Model) Finish() {
	if m.away {
		return
	}
	m.complete()
	for _, p := range m.Peers {
		for taken := 1; taken > 0; {
			taken = m.take(p, 3)
		}
		m.compare(p)
	}
	m.Check()
}

// compare compares what a subscriber holds that has taken everything.
func (m *Model) compare(p *Peer) {
	if !p.Ended {
		m.tb.Fatalf("subscriber %v was never told the end of the catalog", p.IDs)
	}
	for name := range m.Services {
		want, held := m.Told(p, name), p.Held[name]
		if (want == nil) != (held == nil) || want != nil && !want.Equal(held) {
			m.tb.Fatalf("subscriber %v holds %+v of %s in the end, expected %+v", p.IDs, held, name, want)
		}
	}
	for name := range p.Held {
		if m.Services[name] == nil {
			m.tb.Fatalf("subscriber %v holds %s in the end, which is gone", p.IDs, name)
		}
	}
}

// possible is what may be true while several things change at once.
type possible struct {
	exports  []exports
	versions map[string][]*federation.Service // nil for none
}

// allows reports whether a subscriber may be told that version of a service; nil says that
// it is told to delete it.
func (may possible) allows(p *Peer, name string, got *federation.Service) bool {
	for _, e := range may.exports {
		for _, s := range may.versions[name] {
			told := truth{e, map[string]*federation.Service{name: s}}.Told(p, name)
			if (told == nil) == (got == nil) && (told == nil || told.Equal(got)) {
				return true
			}
		}
	}
	return false
}

// StepAtOnce does several things at the same time, while subscribers take.
func (m *Model) StepAtOnce() {
	may := possible{[]exports{m.exports}, make(map[string][]*federation.Service)}
	for i := range 8 {
		name := string(rune('a' + i))
		may.versions[name] = []*federation.Service{m.Services[name]}
	}
	var changes []func()
	for range m.IntN(3) {
		m.exports = m.rulesNext()
		may.exports = append(may.exports, m.exports)
		compiled := m.compile(m.tb)
		changes = append(changes, func() { m.Registry.SetPolicy(compiled) })
	}
	work := [][]func(){changes, m.updates(may, "abcd"), m.updates(may, "efgh")}
	if m.IntN(4) == 0 {
		services := m.catalog()
		for name := range may.versions {
			may.versions[name] = append(may.versions[name], nil)
		}
		for _, s := range services {
			may.versions[s.Name] = append(may.versions[s.Name], s)
		}
		m.hold(services)
		work = append(work[:1], append(slices.Concat(work[1:]...), func() { Set(m.tb, m.Registry, services) }))
	}
	complete := m.open && m.IntN(4) == 0
	if complete {
		work = append(work, []func(){func() { m.Registry.SetComplete(true) }})
	}
	if m.IntN(8) == 0 {
		work = append(work, []func(){func() { m.Registry.SetUnavailable("away", time.Time{}) }, func() { m.Registry.SetUnavailable("", time.Time{}) }})
	}
	var running sync.WaitGroup
	for _, list := range work {
		running.Go(func() {
			for _, do := range list {
				do()
				runtime.Gosched()
			}
		})
	}
	fresh := make([]*Peer, m.IntN(3))
	for i := range fresh {
		ids, state, buckets := m.IDs(), m.Remembered(), 1<<m.IntN(10)
		running.Go(func() {
			fresh[i] = m.comeBack(ids, state, buckets)
			m.takeAtOnce(fresh[i], may, 10)
		})
	}
	for i, p := range m.Peers {
		n := m.IntN(20)
		if len(m.Peers) > 4 && i == 0 {
			running.Go(p.Close)
			continue
		}
		running.Go(func() { m.takeAtOnce(p, may, n) })
	}
	running.Wait()
	m.open = m.open && !complete
	if len(m.Peers) > 4 {
		m.Peers = m.Peers[1:]
	}
	m.Peers = append(m.Peers, fresh...)
	m.Peers = slices.DeleteFunc(m.Peers, (*Peer).IsOver)
}

// updates returns changes of the services with names of one letter.
func (m *Model) updates(may possible, names string) []func() {
	var changes []func()
	for range m.IntN(4) {
		name := string(names[m.IntN(len(names))])
		if m.IntN(3) == 0 {
			delete(m.Services, name)
			may.versions[name] = append(may.versions[name], nil)
			changes = append(changes, func() { m.Registry.Delete(name) })
			continue
		}
		s := m.Another(name)
		m.Services[name] = s
		may.versions[name] = append(may.versions[name], s)
		changes = append(changes, func() { Upsert(m.tb, m.Registry, s) })
	}
	return changes
}

// takeAtOnce takes n times, while all that is possible may be true.
func (m *Model) takeAtOnce(p *Peer, may possible, n int) {
	for range n {
		for _, u := range p.TakeUpdates(nil, 2) {
			got, err := p.apply(u)
			if err != nil {
				m.tb.Errorf("subscriber %v is %v", p.IDs, err)
			}
			if u.Name != "" && !may.allows(p, u.Name, got) {
				m.tb.Errorf("subscriber %v is told %+v of %s, which no policy that was in force tells", p.IDs, got, u.Name)
			}
		}
		runtime.Gosched()
	}
}

// Remembered returns what a consumer may hold that comes back: what another subscriber
// holds or the whole catalog, as it is or with a few services that are different.
func (m *Model) Remembered() map[string]*federation.Service {
	state := maps.Clone(m.Services)
	if n := len(m.Peers); n > 0 && m.IntN(3) > 0 {
		state = maps.Clone(m.Peers[m.IntN(n)].Held)
	}
	for range max(0, m.IntN(5)-2) {
		switch name := m.Name(); m.IntN(3) {
		case 0:
			delete(state, name)
		case 1:
			state[name] = m.Another(name)
		default:
			state["gone-"+name] = m.Another("gone-" + name)
		}
	}
	return state
}

// comeBack returns a subscriber that holds services already. What is in a bucket that is
// not selected counts as held, and all else as not told yet.
func (m *Model) comeBack(ids []federation.ID, state map[string]*federation.Service, buckets int) *Peer {
	resumed := ResumeAs(m.Registry, ids, MaxMessage, SumOf(m.tb, MaxMessage, state).FoldTo(buckets))
	if resumed == nil {
		return m.subscribe(ids)
	}
	m.counts.Lock()
	defer m.counts.Unlock()
	m.Resumed++
	p := m.newPeer(resumed.Listener, ids)
	for name, s := range state {
		if !resumed.Selection.HasName(name) {
			p.Held[name] = s
			m.Adopted++
		}
	}
	if resumed.Spared != len(p.Held) {
		m.tb.Errorf("%d services are said to be spared, expected %d", resumed.Spared, len(p.Held))
	}
	for _, name := range resumed.Withheld { // a registry does not know that they are not sent
		if p.Held[name] != nil {
			m.tb.Errorf("%s is said to be withheld, and the subscriber has it", name)
		}
		p.Held[name] = &federation.Service{} // a change is to come
		if m.hooks.Told == nil {
			continue
		}
		if s := m.hooks.Told(p.Subscription, name); s != nil {
			p.Held[name] = s
		}
	}
	if m.hooks.Digest != nil {
		m.hooks.Digest(m.Registry, len(p.Held)%3 != 2) // else no digests are taken the next time
	}
	return p
}
