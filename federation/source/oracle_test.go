package source

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// oracle says what is published, by looking at everything.
type oracle struct {
	parts    map[string]map[string]*wire.Encoded // by source, then by name
	complete map[string]bool
	list     []string // that is published; nil for none
	next     []string // that is to be; nil for none
	lapsed   bool     // whether mortal is away, beyond its lifetime
}

// mortal is the source of a rig that has a lifetime, which is over at once. The others keep the
// catalog available.
const mortal = "1"

// set does what Catalog.Set does.
func (o *oracle) set(list []string) {
	o.next = list
	o.settle()
}

// settle lets the next list take effect, and forgets sources that are in none.
func (o *oracle) settle() {
	if o.next != nil && !slices.ContainsFunc(o.next, func(key string) bool { return !o.complete[key] }) {
		o.list, o.next = o.next, nil
	}
	gone := func(key string) bool { return !slices.Contains(o.list, key) && !slices.Contains(o.next, key) }
	maps.DeleteFunc(o.parts, func(key string, _ map[string]*wire.Encoded) bool { return gone(key) })
	maps.DeleteFunc(o.complete, func(key string, _ bool) bool { return gone(key) })
	o.lapsed = o.lapsed && !gone(mortal)
}

// publishes returns what is published, by name, and what hides the other services, by
// source and name.
func (o *oracle) publishes() (all map[string]*wire.Encoded, hidden map[string]map[string]string) {
	all, hidden = make(map[string]*wire.Encoded), make(map[string]map[string]string)
	type claim struct{ source, name, fqdn string }
	var claims []claim // in the order of the sources, then of the names
	for _, source := range o.list {
		hidden[source] = make(map[string]string)
		before := claims
		for _, name := range slices.Sorted(maps.Keys(o.parts[source])) {
			s, by := o.parts[source][name], ""
			first := ""
			for _, c := range before {
				if first != "" && c.source != first {
					break
				}
				if c.name == name || by == "" && c.fqdn == s.FQDN() {
					first, by = c.source, fmt.Sprintf("service %q of source %s", c.name, c.source)
				}
				if c.name == name {
					break
				}
			}
			if by != "" {
				hidden[source][name] = by
				continue
			}
			if o.lapsed && source == mortal {
				continue
			}
			all[name] = s
			claims = append(claims, claim{source, name, s.FQDN()})
		}
	}
	return all, hidden
}

// subscriber holds what a consumer would hold.
type subscriber struct {
	*registry.Subscription

	services map[string]string // the bytes of each, by name
	fqdns    map[string]string
}

// rig is a catalog whose sources do not run, beside an oracle.
type rig struct {
	*testing.T
	*Catalog

	registry   *registry.Registry
	oracle     oracle
	puppets    map[string]*puppet
	subscriber *subscriber // nil until something is published
	marks      int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	registry := registry.New()
	return &rig{
		T: t, Catalog: NewCatalog(Config{Registry: registry, Logger: slog.New(slog.DiscardHandler)}), registry: registry,
		oracle:  oracle{parts: make(map[string]map[string]*wire.Encoded), complete: make(map[string]bool)},
		puppets: make(map[string]*puppet),
	}
}

func (r *rig) set(list []string) {
	entries := make([]Entry, 0, len(list))
	for _, key := range list {
		if !slices.Contains(r.oracle.list, key) && !slices.Contains(r.oracle.next, key) {
			r.puppets[key] = newPuppet()
		}
		entry := Entry{Key: key, Name: "source " + key, Source: r.puppets[key]}
		if key == mortal {
			entry.Lifetime = time.Nanosecond
		}
		entries = append(entries, entry)
	}
	r.Set(entries)
	r.oracle.set(list)
}

// replace calls Replace of a source that is in a list.
func (r *rig) replace(key string, services []*wire.Encoded) {
	r.parts[key].Replace(services)
	content := make(map[string]*wire.Encoded)
	for _, s := range services {
		content[s.Name()] = s
	}
	r.oracle.parts[key], r.oracle.complete[key] = content, true
	r.oracle.settle()
}

// update calls Update of a source that is complete.
func (r *rig) update(key string, changed []*wire.Encoded, gone []string) {
	r.parts[key].Update(changed, gone)
	for _, name := range gone {
		delete(r.oracle.parts[key], name)
	}
	for _, s := range changed {
		r.oracle.parts[key][s.Name()] = s
	}
}

// away calls Away of a source, if it is in a list.
func (r *rig) away(key string, reason error) {
	if r.parts[key] == nil {
		return
	}
	r.parts[key].Away(reason)
	if key == mortal {
		r.oracle.lapsed = reason != nil
	}
	r.mu.Lock()
	defer r.unlock()
	r.judge() // by now the lifetime is over
}

// check compares everything with the oracle.
func (r *rig) check() {
	r.Helper()
	want, hidden := r.oracle.publishes()
	if r.begun != (r.oracle.list != nil) {
		r.Fatalf("published is %v, expected %v", r.begun, r.oracle.list != nil)
	}
	if !r.begun {
		return
	}
	texts, fqdns := make(map[string]string), make(map[string]string)
	for name, s := range want {
		texts[name], fqdns[name] = bytesOf(r.T, s), s.FQDN()
	}
	if r.subscriber == nil {
		r.subscriber = &subscriber{r.registry.Subscribe(), make(map[string]string), make(map[string]string)}
		r.Cleanup(r.subscriber.Close)
		r.hear(nil, nil)
	} else {
		r.hear(texts, fqdns)
	}
	if diff := cmp.Diff(texts, r.subscriber.services); diff != "" {
		r.Fatalf("a subscriber does not hold what the oracle says (-want +got):\n%s", diff)
	}
	// What there is to tell of services that are hidden.
	for _, w := range r.turn(r.Context()).words {
		w.tell()
	}
	if again := r.turn(r.Context()).words; len(again) > 0 {
		r.Fatalf("%d services would be told of again", len(again))
	}
	for i, key := range r.oracle.list {
		if diff := cmp.Diff(hidden[key], r.puppets[key].told()); diff != "" {
			r.Fatalf("source %s was not told what hides its services (-want +got):\n%s", key, diff)
		}
		if got := r.Status().Sources[i]; got.Hidden != len(hidden[key]) || got.Services != len(r.oracle.parts[key]) {
			r.Fatalf("status of source %s is %+v, expected %d services, %d hidden", key, got, len(r.oracle.parts[key]), len(hidden[key]))
		}
	}
}

const markName = "~mark"

// hear takes all events there are. What is in want is never withdrawn on the way.
func (r *rig) hear(want, fqdns map[string]string) {
	r.Helper()
	r.marks++
	mark := encoded(markName, "mark", r.marks)
	r.registry.UpdateEncoded([]*wire.Encoded{mark}, nil)
	lasting := r.lasting(want, fqdns)
	for {
		event, err := r.subscriber.Next(r.Context())
		if err != nil {
			r.Fatal(err)
		}
		switch event.Operation {
		case federation.Upsert:
			if event.Name == markName { // what has gone comes after it, and before it goes
				r.registry.Delete(markName)
				continue
			}
			encoded, err := wire.NewEncoded(event.Service)
			if err != nil {
				r.Fatal(err)
			}
			r.subscriber.services[event.Name], r.subscriber.fqdns[event.Name] = bytesOf(r.T, encoded), encoded.FQDN()
		case federation.Delete:
			if event.Name == markName {
				return
			}
			if _, kept := want[event.Name]; kept {
				r.Fatalf("service %s was withdrawn, and is published", event.Name)
			}
			delete(r.subscriber.services, event.Name)
			delete(r.subscriber.fqdns, event.Name)
		}
		for fqdn := range lasting {
			if !slices.Contains(slices.Collect(maps.Values(r.subscriber.fqdns)), fqdn) {
				r.Fatalf("after %v %s nobody has %s, which was and will be published", event.Operation, event.Name, fqdn)
			}
		}
	}
}

// lasting returns the fqdns that have an answer before, after and all the time between.
// An fqdn that only goes from one service to another, both of which stay, has none for
// a moment: services are told one after the other.
func (r *rig) lasting(want, fqdns map[string]string) map[string]bool {
	lasting := make(map[string]bool)
	for name, fqdn := range r.subscriber.fqdns {
		_, stays := want[name]
		for other, now := range fqdns {
			_, old := r.subscriber.services[other]
			if now == fqdn && (name == other || !stays || !old) {
				lasting[fqdn] = true
			}
		}
	}
	return lasting
}

// script makes choices from the bytes of a fuzz input.
type script []byte

func (s *script) pick(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n
}

// services returns services of unique names.
func (s *script) services(most int) []*wire.Encoded {
	var list []*wire.Encoded
	for _, name := range s.names(most) {
		list = append(list, encoded(name, string("wxyz"[s.pick(4)]), s.pick(3)))
	}
	return list
}

func (s *script) names(most int) []string {
	var names []string
	for range s.pick(most + 1) {
		if name := string("abcde"[s.pick(5)]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// FuzzOracle does what the bytes say to three sources and their list, and compares
// what is published with the oracle after each step.
func FuzzOracle(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		seed := make([]byte, 400)
		for i := range seed {
			seed[i] = byte(random.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keys := []string{"1", "2", "3"}
		r, s := newRig(t), script(data)
		r.set(keys)
		for len(s) > 0 {
			key := keys[s.pick(3)]
			listed := slices.Contains(r.oracle.list, key) || slices.Contains(r.oracle.next, key)
			switch op := s.pick(8); {
			case op == 0:
				var list []string
				for range 1 + s.pick(3) {
					if key := keys[s.pick(3)]; !slices.Contains(list, key) {
						list = append(list, key)
					}
				}
				if len(list) == 1 { // a source alone never lapses
					r.away(mortal, nil)
					r.check()
				}
				r.set(list)
			case !listed:
			case op <= 2 || !r.oracle.complete[key]:
				r.replace(key, s.services(6))
			case op == 3:
				var reason error
				if s.pick(2) == 0 {
					reason = fmt.Errorf("trouble %d", s.pick(2))
				}
				if key == mortal && (len(r.oracle.list) == 1 || len(r.oracle.next) == 1) {
					reason = nil
				}
				r.away(key, reason)
			default:
				r.update(key, s.services(3), s.names(2))
			}
			r.check()
		}
	})
}

// What is published depends on what the parts hold in the end, and not on the order in
// which it has come.
func TestOrderOfCallsDoesNotMatter(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	keys := []string{"1", "2", "3"}
	for round := range 20 {
		final := make(map[string][]*wire.Encoded)
		for _, key := range keys {
			for i := range 50 {
				if random.IntN(2) == 0 {
					final[key] = append(final[key], encoded(fmt.Sprint("s", i), fmt.Sprint("h", random.IntN(40)), random.IntN(2)))
				}
			}
		}
		var first []string
		for range 3 {
			registry := registry.New()
			c := NewCatalog(Config{Registry: registry, Logger: slog.New(slog.DiscardHandler)})
			var entries []Entry
			for _, key := range keys {
				entries = append(entries, Entry{Key: key, Name: key, Source: newPuppet()})
			}
			c.Set(entries)
			var running sync.WaitGroup
			for _, key := range keys {
				part, calls := c.parts[key], rand.New(rand.NewPCG(random.Uint64(), 0))
				running.Go(func() { arrive(part, final[key], calls) })
			}
			running.Wait()
			got := published(t, registry)
			if first == nil {
				o := oracle{parts: make(map[string]map[string]*wire.Encoded), list: keys}
				for _, key := range keys {
					o.parts[key] = make(map[string]*wire.Encoded)
					for _, s := range final[key] {
						o.parts[key][s.Name()] = s
					}
				}
				want, _ := o.publishes()
				for _, name := range slices.Sorted(maps.Keys(want)) {
					first = append(first, render(want[name].Service()))
				}
			}
			if diff := cmp.Diff(first, got); diff != "" {
				t.Fatalf("round %d: not what the parts say (-want +got):\n%s", round, diff)
			}
		}
	}
}

// arrive makes services what the part holds, by calls in a random order.
func arrive(part Part, services []*wire.Encoded, random *rand.Rand) {
	var early []*wire.Encoded
	for i := range 60 { // some of which will go
		early = append(early, encoded(fmt.Sprint("s", i), fmt.Sprint("h", random.IntN(40)), random.IntN(2)))
	}
	random.Shuffle(len(early), func(i, j int) { early[i], early[j] = early[j], early[i] })
	part.Replace(early[:random.IntN(len(early))])
	services = slices.Clone(services)
	random.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
	if random.IntN(2) == 0 {
		part.Replace(services)
		return
	}
	stays := make(map[string]bool)
	for _, s := range services {
		stays[s.Name()] = true
		part.Update([]*wire.Encoded{s}, nil)
	}
	for _, s := range early {
		if !stays[s.Name()] {
			part.Update(nil, []string{s.Name()})
		}
	}
}

// bytesOf returns the bytes that consumers are sent for a service.
func bytesOf(t *testing.T, s *wire.Encoded) string {
	t.Helper()
	return string(s.Resource().GetValue())
}
