package owner

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/policy/policytest"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
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
	return policyOf(tb, e.rules...)
}

// truth is what a registry must do, evaluated naively.
type truth struct {
	exports
	services map[string]*federation.Service
}

// told returns what a subscriber is told of the service of that name, or nil.
func (w truth) told(h *holder, name string) *federation.Service {
	s := w.services[name]
	if s == nil || w.absent || h.everything {
		return s
	}
	return policytest.Told(w.rules, h.ids, s)
}

// holder is a subscriber with what it has been told.
type holder struct {
	*Subscription

	held    map[string]*federation.Service
	catalog map[string]bool // names that have been told before the end marker
	ended   bool
}

func newHolder(s *Subscription) *holder {
	return &holder{Subscription: s, held: make(map[string]*federation.Service), catalog: make(map[string]bool)}
}

// apply holds an update, and returns what is wrong with it whatever is true. Upserted is
// nil for a deletion and for the end of the catalog.
func (h *holder) apply(u update) (upserted *federation.Service, err error) {
	switch u.Operation {
	case federation.Upsert:
		upserted = u.encoded.Service()
		if !h.ended && h.catalog[u.Name] {
			return nil, fmt.Errorf("told %s twice in the full catalog", u.Name)
		}
		if u.told != (h.held[u.Name] != nil) {
			return nil, fmt.Errorf("told %s with told %v, and it is otherwise", u.Name, u.told)
		}
		h.catalog[u.Name] = true
		h.held[u.Name] = upserted
	case federation.Delete:
		if h.held[u.Name] == nil {
			return nil, fmt.Errorf("told to delete %s, of which it does not know", u.Name)
		}
		delete(h.held, u.Name)
	default:
		if h.ended {
			return nil, fmt.Errorf("told %v after the end of the catalog", u.Operation)
		}
		h.ended = true
	}
	return upserted, nil
}

// world is a registry, and the truth about it.
type world struct {
	tb testing.TB
	policytest.Random
	truth

	registry *Registry
	away     bool // whether it is unavailable
	holders  []*holder

	upserts, deletions int // that have been taken

	counts  sync.Mutex
	resumed int // subscriptions that did not begin with the whole catalog; guarded by counts
	adopted int // services that they had already; guarded by counts
}

func newWorld(tb testing.TB, seed uint64) *world {
	return &world{
		tb: tb, Random: policytest.New(seed), registry: NewRegistry(),
		truth: truth{exports: exports{absent: true}, services: make(map[string]*federation.Service)},
	}
}

// begin makes a catalog, a policy and subscribers.
func (w *world) begin() {
	for _, op := range []byte{4, 10, 10, 6, 10} {
		w.step(op)
	}
}

// name returns the name of a service, one of few.
func (w *world) name() string { return string(rune('a' + w.IntN(8))) }

// service returns another version of a service: a new one, or one with a detail changed.
func (w *world) service(name string) *federation.Service {
	fresh := w.Service(name)
	old := w.services[name]
	if old == nil || w.IntN(2) == 0 {
		return fresh
	}
	changed := *old
	switch w.IntN(5) {
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

// another returns rules that replace those of now: some that have nothing to do with them,
// or nearly the same.
func (w *world) another() exports {
	rules := slices.Clone(w.rules)
	switch w.IntN(8) {
	case 0:
		return exports{absent: true}
	case 1, 2: // another order
		w.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	case 3: // one less
		if len(rules) > 0 {
			i := w.IntN(len(rules))
			rules = slices.Delete(rules, i, i+1)
		}
	case 4: // one more
		rules = slices.Insert(rules, w.IntN(len(rules)+1), w.Rule())
	default:
		rules = w.Rules(4)
		if w.IntN(4) > 0 {
			last := w.Rule()
			last.FQDNs, last.Tags, last.Labels, last.To = nil, nil, nil, []string{"*"}
			rules = append(rules, last)
		}
	}
	return exports{rules: rules}
}

// catalog returns services for the whole catalog, some of them as they are.
func (w *world) catalog() []*federation.Service {
	var services []*federation.Service
	for i := range 8 {
		name := string(rune('a' + i))
		switch old := w.services[name]; {
		case old != nil && w.IntN(3) > 0:
			services = append(services, old)
		case w.IntN(2) == 0:
			services = append(services, w.service(name))
		}
	}
	return services
}

// hold makes services the truth.
func (w *world) hold(services []*federation.Service) {
	w.services = make(map[string]*federation.Service)
	for _, s := range services {
		w.services[s.Name] = s
	}
}

// step does one thing.
func (w *world) step(op byte) {
	w.do(op % 16)
	w.check()
}

// do does one of sixteen things.
func (w *world) do(op byte) {
	r := w.registry
	switch op {
	case 0, 1:
		s := w.service(w.name())
		upsert(w.tb, r, s)
		w.services[s.Name] = s
	case 2:
		name := w.name()
		r.Delete(name)
		delete(w.services, name)
	case 3:
		gone := w.name()
		var services []*federation.Service
		var changed []*wire.Encoded
		for range w.IntN(4) {
			s := w.service(w.name())
			services = append(services, s)
			changed = append(changed, encoded(w.tb, s))
		}
		r.UpdateEncoded(changed, []string{gone})
		delete(w.services, gone)
		for _, s := range services {
			w.services[s.Name] = s
		}
	case 4:
		services := w.catalog()
		set(w.tb, r, services)
		w.hold(services)
	case 5:
		services := w.catalog()
		var all []*wire.Encoded
		for _, s := range services {
			if e := r.Lookup(s.Name); e != nil && e.Encodes(s) && w.IntN(4) > 0 {
				all = append(all, e)
			} else {
				all = append(all, encoded(w.tb, s))
			}
		}
		r.SetEncoded(all)
		w.hold(services)
	case 6, 7, 8, 9:
		exports := w.another()
		r.SetPolicy(exports.compile(w.tb))
		w.exports = exports
	case 10:
		switch {
		case w.away || len(w.holders) > 5:
		case w.IntN(5) == 0:
			w.add(r.Subscribe())
		case w.IntN(2) == 0:
			w.holders = append(w.holders, w.comeBack(w.IDs(), w.remembered(), 1<<w.IntN(10)))
		default:
			w.add(r.SubscribeAs(w.IDs()))
		}
	case 11:
		if i := w.IntN(8); i < len(w.holders) {
			w.holders[i].Close()
			w.holders = slices.Delete(w.holders, i, i+1)
		}
	case 15:
		if w.IntN(4) > 0 {
			break
		}
		w.away = !w.away
		reason := ""
		if w.away {
			reason = "away"
		}
		r.SetUnavailable(reason)
		w.holders = slices.DeleteFunc(w.holders, (*holder).isOver)
	default:
		if len(w.holders) > 0 {
			w.take(w.holders[w.IntN(len(w.holders))], 1+w.IntN(6))
		}
	}
}

func (w *world) add(s *Subscription) { w.holders = append(w.holders, newHolder(s)) }

// take takes up to n updates, which must be what the policy in force tells.
func (w *world) take(h *holder, n int) int {
	updates := h.take(nil, n)
	for _, u := range updates {
		got, err := h.apply(u)
		if err != nil {
			w.tb.Fatalf("subscriber %v is %v", h.ids, err)
		}
		switch want := w.told(h, u.Name); {
		case got != nil && (want == nil || !want.Equal(got)):
			w.tb.Fatalf("subscriber %v is told %+v, and must be told %+v", h.ids, got, want)
		case got != nil:
			w.upserts++
		case u.Operation == federation.Delete && want != nil:
			w.tb.Fatalf("subscriber %v is told to delete %s, and must have %+v", h.ids, u.Name, want)
		case u.Operation == federation.Delete:
			w.deletions++
		}
	}
	return len(updates)
}

// check compares what every subscriber holds, and what it will hold when it has taken
// everything, with the truth.
func (w *world) check() {
	r := w.registry
	subscriptions := 0
	for v, c := range r.classes {
		subscriptions += len(c)
		if !v.whole && (w.absent || len(c) == 0) {
			w.tb.Fatalf("there is a class with %d subscriptions, with a policy: %v", len(c), !w.absent)
		}
	}
	if subscriptions != len(w.holders) {
		w.tb.Fatalf("%d subscriptions are in a class, expected %d", subscriptions, len(w.holders))
	}
	for _, h := range w.holders {
		w.checkHolder(h)
	}
}

// checkHolder compares what a subscriber holds that is not behind, and bounds what is kept for
// one that is.
func (w *world) checkHolder(h *holder) {
	visible := 0
	for i := range 8 {
		name := string(rune('a' + i))
		want, held := w.told(h, name), h.held[name]
		if want != nil {
			visible++
		}
		if h.told == nil && ((want == nil) != (held == nil) || want != nil && !held.Equal(want)) {
			w.tb.Fatalf("subscriber %v goes on holding %+v of %s, expected %+v", h.ids, held, name, want)
		}
	}
	if n := len(h.ahead); n > 8 {
		w.tb.Fatalf("of %d services it is kept what subscriber %v was told of them", n, h.ids)
	}
	if n := w.registry.shown.Load().count(h.view); n != visible {
		w.tb.Fatalf("the class of subscriber %v has %d services, expected %d", h.ids, n, visible)
	}
}

// isOver reports whether the subscription has ended.
func (h *holder) isOver() bool {
	select {
	case <-h.over:
		return true
	default:
		return false
	}
}

// finish lets every subscriber take all that there is.
func (w *world) finish() {
	if w.away {
		return
	}
	for _, h := range w.holders {
		for taken := 1; taken > 0; {
			taken = w.take(h, 3)
		}
		w.compare(h)
	}
	w.check()
}

// compare compares what a subscriber holds that has taken everything.
func (w *world) compare(h *holder) {
	if !h.ended {
		w.tb.Fatalf("subscriber %v was never told the end of the catalog", h.ids)
	}
	for name := range w.services {
		want, held := w.told(h, name), h.held[name]
		if (want == nil) != (held == nil) || want != nil && !want.Equal(held) {
			w.tb.Fatalf("subscriber %v holds %+v of %s in the end, expected %+v", h.ids, held, name, want)
		}
	}
	for name := range h.held {
		if w.services[name] == nil {
			w.tb.Fatalf("subscriber %v holds %s in the end, which is gone", h.ids, name)
		}
	}
}

// TestNothingLeaks changes services, policies and subscribers at random, and compares what
// each subscriber is told with a naive evaluation of the rules.
func TestNothingLeaks(t *testing.T) {
	upserts, deletions, resumed, adopted := 0, 0, 0, 0
	worlds := unlessShort(120, 30)
	for seed := range uint64(worlds) {
		w := newWorld(t, seed)
		w.begin()
		for range 100 {
			w.step(byte(w.IntN(16)))
		}
		w.finish()
		upserts, deletions = upserts+w.upserts, deletions+w.deletions
		resumed, adopted = resumed+w.resumed, adopted+w.adopted
	}
	t.Logf("%d upserts and %d deletions, %d resumed with %d services", upserts, deletions, resumed, adopted)
	if upserts < 15*worlds || deletions < 3*worlds || resumed < worlds || adopted < worlds {
		t.Errorf("%d upserts and %d deletions were taken, and %d resumed with %d services, too few to tell anything",
			upserts, deletions, resumed, adopted)
	}
}

// FuzzNothingLeaks does the steps that it is given.
func FuzzNothingLeaks(f *testing.F) {
	f.Add(uint64(1), []byte{0, 0, 3, 10, 12, 12, 12, 6, 12, 13, 0, 13, 14, 14})
	f.Add(uint64(2), []byte{4, 6, 10, 12, 6, 12, 10, 7, 13, 13, 5, 8, 14, 14, 15, 10, 9})
	f.Add(uint64(3), []byte{4, 10, 10, 10, 6, 1, 2, 8, 12, 12, 12, 12, 12, 9, 11, 12, 12, 3, 14})
	f.Fuzz(func(t *testing.T, seed uint64, steps []byte) {
		w := newWorld(t, seed)
		w.begin()
		for _, op := range steps[:min(len(steps), 200)] {
			w.step(op)
		}
		w.finish()
	})
}

// possible is what may be true while several things change at once.
type possible struct {
	exports  []exports
	versions map[string][]*federation.Service // nil for none
}

// allows reports whether a subscriber may be told that version of a service; nil says that
// it is told to delete it.
func (p possible) allows(h *holder, name string, got *federation.Service) bool {
	for _, e := range p.exports {
		for _, s := range p.versions[name] {
			told := truth{e, map[string]*federation.Service{name: s}}.told(h, name)
			if (told == nil) == (got == nil) && (told == nil || told.Equal(got)) {
				return true
			}
		}
	}
	return false
}

// TestNothingLeaksAtOnce is TestNothingLeaks with steps in which services, policies
// and subscribers change at the same time, while others take. What is taken must have
// been true at some time of the step, and what is held after it must be true then.
func TestNothingLeaksAtOnce(t *testing.T) {
	for seed := range uint64(unlessShort(40, 10)) {
		w := newWorld(t, seed)
		w.begin()
		for range 30 {
			w.stepAtOnce()
			w.check()
		}
		w.finish()
	}
}

func (w *world) stepAtOnce() {
	p := possible{[]exports{w.exports}, make(map[string][]*federation.Service)}
	for i := range 8 {
		name := string(rune('a' + i))
		p.versions[name] = []*federation.Service{w.services[name]}
	}
	var changes []func()
	for range w.IntN(3) {
		w.exports = w.another()
		p.exports = append(p.exports, w.exports)
		compiled := w.compile(w.tb)
		changes = append(changes, func() { w.registry.SetPolicy(compiled) })
	}
	work := [][]func(){changes, w.updates(p, "abcd"), w.updates(p, "efgh")}
	if w.IntN(4) == 0 {
		services := w.catalog()
		for name := range p.versions {
			p.versions[name] = append(p.versions[name], nil)
		}
		for _, s := range services {
			p.versions[s.Name] = append(p.versions[s.Name], s)
		}
		w.hold(services)
		work = append(work[:1], append(slices.Concat(work[1:]...), func() { set(w.tb, w.registry, services) }))
	}
	if w.IntN(8) == 0 {
		work = append(work, []func(){func() { w.registry.SetUnavailable("away") }, func() { w.registry.SetUnavailable("") }})
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
	fresh := make([]*holder, w.IntN(3))
	for i := range fresh {
		ids, state, buckets := w.IDs(), w.remembered(), 1<<w.IntN(10)
		running.Go(func() {
			fresh[i] = w.comeBack(ids, state, buckets)
			w.takeAtOnce(fresh[i], p, 10)
		})
	}
	for i, h := range w.holders {
		n := w.IntN(20)
		if len(w.holders) > 4 && i == 0 {
			running.Go(h.Close)
			continue
		}
		running.Go(func() { w.takeAtOnce(h, p, n) })
	}
	running.Wait()
	if len(w.holders) > 4 {
		w.holders = w.holders[1:]
	}
	w.holders = append(w.holders, fresh...)
	w.holders = slices.DeleteFunc(w.holders, (*holder).isOver)
}

// updates returns changes of the services with names of one letter.
func (w *world) updates(p possible, names string) []func() {
	var changes []func()
	for range w.IntN(4) {
		name := string(names[w.IntN(len(names))])
		if w.IntN(3) == 0 {
			delete(w.services, name)
			p.versions[name] = append(p.versions[name], nil)
			changes = append(changes, func() { w.registry.Delete(name) })
			continue
		}
		s := w.service(name)
		w.services[name] = s
		p.versions[name] = append(p.versions[name], s)
		changes = append(changes, func() { upsert(w.tb, w.registry, s) })
	}
	return changes
}

// takeAtOnce takes n times, while all that is possible may be true.
func (w *world) takeAtOnce(h *holder, p possible, n int) {
	for range n {
		for _, u := range h.take(nil, 2) {
			got, err := h.apply(u)
			if err != nil {
				w.tb.Errorf("subscriber %v is %v", h.ids, err)
			}
			if u.Operation != federation.End && !p.allows(h, u.Name, got) {
				w.tb.Errorf("subscriber %v is told %+v of %s, which no policy that was in force tells", h.ids, got, u.Name)
			}
		}
		runtime.Gosched()
	}
}
