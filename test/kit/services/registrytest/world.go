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
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
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
	return Policy(tb, e.rules...)
}

// truth is what a registry must do, evaluated naively.
type truth struct {
	exports
	Services map[string]*federation.Service
}

// Told returns what a subscriber is told of the service of that name, or nil.
func (w truth) Told(h *Holder, name string) *federation.Service {
	s := w.Services[name]
	if s == nil || w.absent || h.Everything {
		return s
	}
	return policytest.Told(w.rules, h.IDs, s)
}

// Holder is a subscriber with what it has been told.
type Holder struct {
	*registry.Subscription

	Everything bool            // whether it is told that whatever the policy
	IDs        []federation.ID // of the consumer, unless it is told everything

	Held    map[string]*federation.Service
	Ended   bool
	catalog map[string]bool // names that have been told before the end marker; nil where the registry was not complete

	// due are services that have to be told before the end, as long as nothing is different.
	due map[string]*federation.Service
}

// NewHolder returns a subscriber that has been told nothing. S is nil for one on a stream.
func NewHolder(s *registry.Subscription, ids []federation.ID) *Holder {
	return &Holder{Subscription: s, IDs: ids, Held: make(map[string]*federation.Service), catalog: make(map[string]bool)}
}

// apply holds an update, and returns what is wrong with it whatever is true. Upserted is
// nil for a deletion and for the end of the catalog.
func (h *Holder) apply(u registry.Update) (upserted *federation.Service, err error) {
	switch u.Operation {
	case federation.Upsert:
		upserted = u.Encoded.Service()
		if !h.Ended && h.catalog[u.Name] {
			return nil, fmt.Errorf("told %s twice in the full catalog", u.Name)
		}
		if u.Told != (h.Held[u.Name] != nil) {
			return nil, fmt.Errorf("told %s with told %v, and it is otherwise", u.Name, u.Told)
		}
		if h.catalog != nil {
			h.catalog[u.Name] = true
		}
		h.Held[u.Name] = upserted
	case federation.Delete:
		if h.Held[u.Name] == nil {
			return nil, fmt.Errorf("told to delete %s, of which it does not know", u.Name)
		}
		delete(h.Held, u.Name)
	default:
		if h.Ended {
			return nil, fmt.Errorf("told %v after the end of the catalog", u.Operation)
		}
		h.Ended = true
	}
	return upserted, nil
}

// World is a registry, and the truth about it.
type World struct {
	tb testing.TB
	policytest.Random
	truth

	Registry *registry.Registry
	Holders  []*Holder
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

// NewWorld returns an empty registry without a policy.
func NewWorld(tb testing.TB, seed uint64, hooks Hooks) *World {
	return &World{
		tb: tb, Random: policytest.New(seed), Registry: registry.New(), hooks: hooks,
		truth: truth{exports: exports{absent: true}, Services: make(map[string]*federation.Service)},
	}
}

// Open makes the registry one that is not complete. At some later step it is.
func (w *World) Open() {
	w.open = true
	w.Registry.SetComplete(false)
}

// complete makes the registry complete, if it is not.
func (w *World) complete() {
	if !w.open {
		return
	}
	w.open = false
	w.Registry.SetComplete(true)
	for _, h := range w.Holders {
		h.due = w.Visible(h)
	}
}

// Begin makes a catalog, a policy and subscribers.
func (w *World) Begin() {
	for _, op := range []byte{4, 10, 10, 6, 10} {
		w.Step(op)
	}
}

// Name returns the name of a service, one of few.
func (w *World) Name() string { return string("abcdefgh"[w.IntN(8)]) }

// Another returns another version of a service: a new one, or one with a detail changed.
func (w *World) Another(name string) *federation.Service {
	fresh := w.Service(name)
	old := w.Services[name]
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

// rulesNext returns rules that replace those of now: some that have nothing to do with them,
// or nearly the same.
func (w *World) rulesNext() exports {
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
func (w *World) catalog() []*federation.Service {
	var services []*federation.Service
	for i := range 8 {
		name := string(rune('a' + i))
		switch old := w.Services[name]; {
		case old != nil && w.IntN(3) > 0:
			services = append(services, old)
		case w.IntN(2) == 0:
			services = append(services, w.Another(name))
		}
	}
	return services
}

// hold makes services the truth.
func (w *World) hold(services []*federation.Service) {
	w.Services = make(map[string]*federation.Service)
	for _, s := range services {
		w.Services[s.Name] = s
	}
}

// Step does one thing.
func (w *World) Step(op byte) {
	w.Do(op % 16)
	w.Check()
}

// Do does one of sixteen things.
func (w *World) Do(op byte) {
	r := w.Registry
	switch op {
	case 0, 1:
		s := w.Another(w.Name())
		Upsert(w.tb, r, s)
		w.Services[s.Name] = s
	case 2:
		name := w.Name()
		r.Delete(name)
		delete(w.Services, name)
	case 3:
		gone := w.Name()
		var services []*federation.Service
		var changed []*wire.Encoded
		for range w.IntN(4) {
			s := w.Another(w.Name())
			services = append(services, s)
			changed = append(changed, Encoded(w.tb, s))
		}
		r.UpdateEncoded(changed, []string{gone})
		delete(w.Services, gone)
		for _, s := range services {
			w.Services[s.Name] = s
		}
	case 4, 5:
		services := w.catalog()
		Set(w.tb, r, services)
		w.hold(services)
	case 6, 7, 8, 9:
		exports := w.rulesNext()
		r.SetPolicy(exports.compile(w.tb))
		w.exports = exports
		for _, h := range w.Holders {
			h.due = nil
		}
	case 10:
		switch {
		case len(w.Holders) > 5 || w.away:
		case w.IntN(5) == 0:
			h := w.newHolder(r.Subscribe(), nil)
			h.Everything = true
			w.Holders = append(w.Holders, h)
		case w.IntN(2) == 0:
			w.Holders = append(w.Holders, w.comeBack(w.IDs(), w.Remembered(), 1<<w.IntN(10)))
		default:
			w.Holders = append(w.Holders, w.subscribe(w.IDs()))
		}
	case 11:
		if i := w.IntN(8); i < len(w.Holders) {
			w.Holders[i].Close()
			w.Holders = slices.Delete(w.Holders, i, i+1)
		}
	case 15:
		w.complete()
		if w.IntN(4) > 0 {
			break
		}
		w.away = !w.away
		reason := ""
		if w.away {
			reason = "away"
		}
		r.SetUnavailable(reason, time.Time{})
		w.Holders = slices.DeleteFunc(w.Holders, (*Holder).IsOver)
	default:
		if len(w.Holders) > 0 {
			w.take(w.Holders[w.IntN(len(w.Holders))], 1+w.IntN(6))
		}
	}
}

// subscribe returns a subscriber that holds nothing.
func (w *World) subscribe(ids []federation.ID) *Holder {
	return w.newHolder(w.Registry.SubscribeAs(registry.Consumer{IDs: ids, Awaits: true}), ids)
}

func (w *World) newHolder(s *registry.Subscription, ids []federation.ID) *Holder {
	h := NewHolder(s, ids)
	if w.open {
		h.catalog = nil
	}
	return h
}

// take takes up to n updates, which must be what the policy in force tells.
func (w *World) take(h *Holder, n int) int {
	updates := h.Take(nil, n)
	for _, u := range updates {
		if u.Operation == federation.End {
			w.checkEnd(h)
		}
		got, err := h.apply(u)
		if err != nil {
			w.tb.Fatalf("subscriber %v is %v", h.IDs, err)
		}
		switch want := w.Told(h, u.Name); {
		case got != nil && (want == nil || !want.Equal(got)):
			w.tb.Fatalf("subscriber %v is told %+v, and must be told %+v", h.IDs, got, want)
		case got != nil:
			w.Upserts++
		case u.Operation == federation.Delete && want != nil:
			w.tb.Fatalf("subscriber %v is told to delete %s, and must have %+v", h.IDs, u.Name, want)
		case u.Operation == federation.Delete:
			w.Deletions++
		}
	}
	return len(updates)
}

// checkEnd is called when a subscriber is told the end of the catalog.
func (w *World) checkEnd(h *Holder) {
	if w.open {
		w.tb.Fatalf("subscriber %v is told the end of a catalog that is not complete", h.IDs)
	}
	for name, s := range h.due {
		if w.Services[name] == s && h.Held[name] == nil {
			w.tb.Fatalf("subscriber %v is told the end, and was not told %s", h.IDs, name)
		}
	}
}

// Check compares what every subscriber holds, and what it will hold when it has taken
// everything, with the truth.
func (w *World) Check() {
	subscriptions := 0
	for _, c := range w.Registry.Audiences("") {
		subscriptions += c.Consumers
		if !c.Everybody && (w.absent || c.Consumers == 0) {
			w.tb.Fatalf("there is a class with %d subscriptions, with a policy: %v", c.Consumers, !w.absent)
		}
	}
	if subscriptions != len(w.Holders) {
		w.tb.Fatalf("%d subscriptions are in a class, expected %d", subscriptions, len(w.Holders))
	}
	classes, compiled := w.Registry.Stats().Classes, w.compile(w.tb)
	for _, h := range w.Holders {
		w.checkHolder(h)
		if compiled == nil || h.Everything {
			continue
		}
		rules := compiled.Class(h.IDs).Rules()
		visible := len(w.Visible(h))
		if !slices.ContainsFunc(classes, func(c registry.ClassStats) bool { return slices.Equal(c.Rules, rules) && c.Services == visible }) {
			w.tb.Fatalf("of the classes %v none is that of subscriber %v, with %d services", classes, h.IDs, visible)
		}
	}
}

// checkHolder compares what a subscriber holds that is not behind, and bounds what is kept for
// one that is.
func (w *World) checkHolder(h *Holder) {
	current, ahead := false, 0
	if w.hooks.State != nil {
		current, ahead = w.hooks.State(h.Subscription)
	}
	for i := range 8 {
		name := string(rune('a' + i))
		want, held := w.Told(h, name), h.Held[name]
		if current && ((want == nil) != (held == nil) || want != nil && !held.Equal(want)) {
			w.tb.Fatalf("subscriber %v goes on holding %+v of %s, expected %+v", h.IDs, held, name, want)
		}
	}
	if ahead > 8 {
		w.tb.Fatalf("of %d services it is kept what subscriber %v was told of them", ahead, h.IDs)
	}
}

// Visible returns the services that a subscriber may be told.
func (w *World) Visible(h *Holder) map[string]*federation.Service {
	visible := make(map[string]*federation.Service)
	for name := range w.Services {
		if s := w.Told(h, name); s != nil {
			visible[name] = s
		}
	}
	return visible
}

// IsOver reports whether the subscription has ended.
func (h *Holder) IsOver() bool {
	select {
	case <-h.Over():
		return true
	default:
		return false
	}
}

// Finish lets every subscriber take all that there is.
func (w *World) Finish() {
	if w.away {
		return
	}
	w.complete()
	for _, h := range w.Holders {
		for taken := 1; taken > 0; {
			taken = w.take(h, 3)
		}
		w.compare(h)
	}
	w.Check()
}

// compare compares what a subscriber holds that has taken everything.
func (w *World) compare(h *Holder) {
	if !h.Ended {
		w.tb.Fatalf("subscriber %v was never told the end of the catalog", h.IDs)
	}
	for name := range w.Services {
		want, held := w.Told(h, name), h.Held[name]
		if (want == nil) != (held == nil) || want != nil && !want.Equal(held) {
			w.tb.Fatalf("subscriber %v holds %+v of %s in the end, expected %+v", h.IDs, held, name, want)
		}
	}
	for name := range h.Held {
		if w.Services[name] == nil {
			w.tb.Fatalf("subscriber %v holds %s in the end, which is gone", h.IDs, name)
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
func (p possible) allows(h *Holder, name string, got *federation.Service) bool {
	for _, e := range p.exports {
		for _, s := range p.versions[name] {
			told := truth{e, map[string]*federation.Service{name: s}}.Told(h, name)
			if (told == nil) == (got == nil) && (told == nil || told.Equal(got)) {
				return true
			}
		}
	}
	return false
}

// StepAtOnce does several things at the same time, while subscribers take.
func (w *World) StepAtOnce() {
	p := possible{[]exports{w.exports}, make(map[string][]*federation.Service)}
	for i := range 8 {
		name := string(rune('a' + i))
		p.versions[name] = []*federation.Service{w.Services[name]}
	}
	var changes []func()
	for range w.IntN(3) {
		w.exports = w.rulesNext()
		p.exports = append(p.exports, w.exports)
		compiled := w.compile(w.tb)
		changes = append(changes, func() { w.Registry.SetPolicy(compiled) })
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
		work = append(work[:1], append(slices.Concat(work[1:]...), func() { Set(w.tb, w.Registry, services) }))
	}
	complete := w.open && w.IntN(4) == 0
	if complete {
		work = append(work, []func(){func() { w.Registry.SetComplete(true) }})
	}
	if w.IntN(8) == 0 {
		work = append(work, []func(){func() { w.Registry.SetUnavailable("away", time.Time{}) }, func() { w.Registry.SetUnavailable("", time.Time{}) }})
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
	fresh := make([]*Holder, w.IntN(3))
	for i := range fresh {
		ids, state, buckets := w.IDs(), w.Remembered(), 1<<w.IntN(10)
		running.Go(func() {
			fresh[i] = w.comeBack(ids, state, buckets)
			w.takeAtOnce(fresh[i], p, 10)
		})
	}
	for i, h := range w.Holders {
		n := w.IntN(20)
		if len(w.Holders) > 4 && i == 0 {
			running.Go(h.Close)
			continue
		}
		running.Go(func() { w.takeAtOnce(h, p, n) })
	}
	running.Wait()
	w.open = w.open && !complete
	if len(w.Holders) > 4 {
		w.Holders = w.Holders[1:]
	}
	w.Holders = append(w.Holders, fresh...)
	w.Holders = slices.DeleteFunc(w.Holders, (*Holder).IsOver)
}

// updates returns changes of the services with names of one letter.
func (w *World) updates(p possible, names string) []func() {
	var changes []func()
	for range w.IntN(4) {
		name := string(names[w.IntN(len(names))])
		if w.IntN(3) == 0 {
			delete(w.Services, name)
			p.versions[name] = append(p.versions[name], nil)
			changes = append(changes, func() { w.Registry.Delete(name) })
			continue
		}
		s := w.Another(name)
		w.Services[name] = s
		p.versions[name] = append(p.versions[name], s)
		changes = append(changes, func() { Upsert(w.tb, w.Registry, s) })
	}
	return changes
}

// takeAtOnce takes n times, while all that is possible may be true.
func (w *World) takeAtOnce(h *Holder, p possible, n int) {
	for range n {
		for _, u := range h.Take(nil, 2) {
			got, err := h.apply(u)
			if err != nil {
				w.tb.Errorf("subscriber %v is %v", h.IDs, err)
			}
			if u.Name != "" && !p.allows(h, u.Name, got) {
				w.tb.Errorf("subscriber %v is told %+v of %s, which no policy that was in force tells", h.IDs, got, u.Name)
			}
		}
		runtime.Gosched()
	}
}

// Remembered returns what a consumer may hold that comes back: what another subscriber
// holds or the whole catalog, as it is or with a few services that are different.
func (w *World) Remembered() map[string]*federation.Service {
	state := maps.Clone(w.Services)
	if n := len(w.Holders); n > 0 && w.IntN(3) > 0 {
		state = maps.Clone(w.Holders[w.IntN(n)].Held)
	}
	for range max(0, w.IntN(5)-2) {
		switch name := w.Name(); w.IntN(3) {
		case 0:
			delete(state, name)
		case 1:
			state[name] = w.Another(name)
		default:
			state["gone-"+name] = w.Another("gone-" + name)
		}
	}
	return state
}

// comeBack returns a subscriber that holds services already. What is in a bucket that is
// not selected counts as held, and all else as not told yet.
func (w *World) comeBack(ids []federation.ID, state map[string]*federation.Service, buckets int) *Holder {
	resumed := ResumeAs(w.Registry, ids, Plain, SumOf(w.tb, Plain, state).Fold(buckets))
	if resumed == nil {
		return w.subscribe(ids)
	}
	w.counts.Lock()
	defer w.counts.Unlock()
	w.Resumed++
	h := w.newHolder(resumed.Subscription, ids)
	for name, s := range state {
		if _, err := Plain.Value(Encoded(w.tb, s)); err == nil && !resumed.Selection.Has(name) {
			h.Held[name] = s
			w.Adopted++
		}
	}
	if resumed.Spared != len(h.Held) {
		w.tb.Errorf("%d services are said to be spared, expected %d", resumed.Spared, len(h.Held))
	}
	for _, withheld := range resumed.Withheld { // a registry does not know that they are not sent
		name := withheld.Name
		if h.Held[name] != nil {
			w.tb.Errorf("%s is said to be withheld, and the subscriber has it", name)
		}
		h.Held[name] = &federation.Service{} // a change is to come
		if w.hooks.Told == nil {
			continue
		}
		if s := w.hooks.Told(h.Subscription, name); s != nil {
			h.Held[name] = s
		}
	}
	if w.hooks.Digest != nil {
		w.hooks.Digest(w.Registry, len(h.Held)%3 != 2) // else no digests are taken the next time
	}
	return h
}
