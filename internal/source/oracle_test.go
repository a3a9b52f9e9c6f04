package source

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// oracle says what is published, by looking at everything.
type oracle struct {
	parts    map[string]map[string]*wire.EncodedService // by source, then by name
	complete map[string]bool
	away     bool // whether mortal is
}

// sources are those of a rig and of its oracle, in their order.
var sources = []string{"1", "2", "3"}

// mortal is the source of a rig that has a lifetime, which is over at once. It is the only one that
// says what it may claim.
const mortal = "1"

// mayClaim reports whether a source may come to have a service of that name, or with that fqdn.
func mayClaim(source, name, fqdn string) bool {
	return source != mortal || ofMortal(name) || ofMortal(fqdn)
}

// ofMortal reports whether a name of a service, or an fqdn, is one of those that mortal may have.
func ofMortal(name string) bool { return strings.ContainsAny(name[:1], "abcwx") }

// overdue reports whether the lifetime of mortal is over.
func (o *oracle) overdue() bool { return o.away && o.complete[mortal] }

// lapsed reports whether mortal is withdrawn: where another source can be asked.
func (o *oracle) lapsed() bool { return o.overdue() && (o.complete["2"] || o.complete["3"]) }

func (o *oracle) available() bool {
	return len(o.complete) > 0 && (!o.overdue() || o.lapsed())
}

// publishes returns what is published, by name, and what hides the other services, by
// source and name.
func (o *oracle) publishes() (all map[string]*wire.EncodedService, hidden map[string]map[string]string) {
	all, hidden = make(map[string]*wire.EncodedService), make(map[string]map[string]string)
	type claim struct{ source, name, fqdn string }
	var claims []claim // in the order of the sources, then of the names
	for level, source := range sources {
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
			if source == mortal && o.lapsed() {
				continue
			}
			claims = append(claims, claim{source, name, s.FQDN()})
			if !slices.ContainsFunc(sources[:level], func(other string) bool { return !o.complete[other] && mayClaim(other, name, s.FQDN()) }) {
				all[name] = s
			}
		}
	}
	return all, hidden
}

// subscriber holds what a consumer would hold.
type subscriber struct {
	*registrytest.Listener

	services map[string]string // the bytes of each, by name
	fqdns    map[string]string
	ended    bool // whether it was told the end
}

// rig is a catalog whose sources do not run, beside an oracle.
type rig struct {
	*testing.T
	*Catalog

	registry   *registry.Registry
	oracle     oracle
	puppets    map[string]*puppet
	parts      map[string]*catalogPart
	subscriber *subscriber // nil while the catalog is not available
	marks      int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		T: t, registry: registry.New(),
		oracle:  oracle{parts: make(map[string]map[string]*wire.EncodedService), complete: make(map[string]bool)},
		puppets: make(map[string]*puppet), parts: make(map[string]*catalogPart),
	}
	var entries []Entry
	for _, key := range sources {
		r.puppets[key] = newPuppet()
		r.puppets[key].claims = func(name string, fqdn federation.FQDN) bool { return mayClaim(key, name, fqdn.String()) }
		entry := Entry{Name: "source " + key, Source: r.puppets[key]}
		if key == mortal {
			entry.Lifetime = time.Nanosecond
		}
		entries = append(entries, entry)
	}
	r.Catalog = NewCatalog(Config{Registry: r.registry, Logger: slog.New(slog.DiscardHandler), Sources: entries})
	for i, key := range sources {
		r.parts[key] = r.Catalog.parts[i]
	}
	return r
}

// allowed returns those services that a source may have.
func allowed(key string, services []*wire.EncodedService) []*wire.EncodedService {
	return slices.DeleteFunc(services, func(s *wire.EncodedService) bool {
		return key == mortal && (!ofMortal(s.Name()) || !ofMortal(s.FQDN()))
	})
}

// replace calls Replace of a source. With the first state of a source nothing goes that is
// published, and nothing becomes another service.
func (r *rig) replace(key string, services []*wire.EncodedService) {
	r.Helper()
	before, _ := r.oracle.publishes()
	lapsed, first := r.oracle.lapsed(), !r.oracle.complete[key]
	r.parts[key].Replace(services)
	content := make(map[string]*wire.EncodedService)
	for _, s := range services {
		content[s.Name()] = s
	}
	r.oracle.parts[key], r.oracle.complete[key] = content, true
	after, _ := r.oracle.publishes()
	for name, s := range before {
		if first && lapsed == r.oracle.lapsed() && after[name] != s {
			r.Fatalf("service %s is published another way with the first state of source %s", name, key)
		}
	}
}

// update calls Update of a source that is complete.
func (r *rig) update(key string, changed []*wire.EncodedService, gone []string) {
	r.parts[key].Update(changed, gone)
	for _, name := range gone {
		delete(r.oracle.parts[key], name)
	}
	for _, s := range changed {
		r.oracle.parts[key][s.Name()] = s
	}
}

// turnAway calls SetAway of a source.
func (r *rig) turnAway(key string, reason error) {
	r.parts[key].SetAway(reason)
	if key == mortal {
		r.oracle.away = reason != nil
	}
	r.mu.Lock()
	defer r.unlockAndLog()
	r.updateAvailability() // by now the lifetime is over
}

// check compares everything with the oracle.
func (r *rig) check() {
	r.Helper()
	want, hidden := r.oracle.publishes()
	if available := r.oracle.available(); r.registry.IsAvailable() != available {
		r.Fatalf("available is %v, expected %v", !available, available)
	} else if !available {
		r.subscriber = nil
		return
	}
	texts, fqdns := make(map[string]string), make(map[string]string)
	for name, s := range want {
		texts[name], fqdns[name] = bytesOf(r.T, s), s.FQDN()
	}
	if r.subscriber == nil {
		r.subscriber = &subscriber{registrytest.Listen(r.registry), make(map[string]string), make(map[string]string), false}
		r.Cleanup(r.subscriber.Close)
		r.hear(nil, nil)
	} else {
		r.hear(texts, fqdns)
	}
	if diff := cmp.Diff(texts, r.subscriber.services); diff != "" {
		r.Fatalf("a subscriber does not hold what the oracle says (-want +got):\n%s", diff)
	}
	// What there is to tell of services that are hidden.
	for _, w := range r.collectWork().notices {
		w.notifySource()
	}
	if again := r.collectWork().notices; len(again) > 0 {
		r.Fatalf("%d services would be told of again", len(again))
	}
	for i, key := range sources {
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
	r.registry.UpdateEncoded([]*wire.EncodedService{mark}, nil)
	lasting := r.lasting(want, fqdns)
	whole, marked := len(r.oracle.complete) == len(sources), false
	for !marked || r.subscriber.ended != whole {
		event, err := r.subscriber.NextEvent(r.Context())
		if err != nil {
			r.Fatal(err)
		}
		switch event.Operation {
		case wire.End:
			if r.subscriber.ended = true; !whole {
				r.Fatalf("the end was told, and complete are %v", r.oracle.complete)
			}
			for name := range want {
				if r.subscriber.services[name] == "" {
					r.Fatalf("the end was told before service %s", name)
				}
			}
		case wire.Upsert:
			if event.Name == markName { // what has gone comes after it, and before it goes
				r.registry.Delete(markName)
				continue
			}
			encoded, err := wire.NewEncoded(event.Service)
			if err != nil {
				r.Fatal(err)
			}
			r.subscriber.services[event.Name], r.subscriber.fqdns[event.Name] = bytesOf(r.T, encoded), encoded.FQDN()
		case wire.Delete:
			if event.Name == markName {
				marked = true
				continue
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
func (s *script) services(most int) []*wire.EncodedService {
	var list []*wire.EncodedService
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

// FuzzOracle does what the bytes say to three sources, and compares what is published with
// the oracle after each step.
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
		r, s := newRig(t), script(data)
		for len(s) > 0 {
			key := sources[s.pick(3)]
			switch op := s.pick(8); {
			case op <= 1:
				var reason error
				if s.pick(2) == 0 {
					reason = fmt.Errorf("trouble %d", s.pick(2))
				}
				r.turnAway(key, reason)
			case op == 2 || !r.oracle.complete[key]:
				r.replace(key, allowed(key, s.services(6)))
			default:
				r.update(key, allowed(key, s.services(3)), s.names(2))
			}
			r.check()
		}
	})
}

// bytesOf returns the bytes that consumers are sent for a service.
func bytesOf(t *testing.T, s *wire.EncodedService) string {
	t.Helper()
	return string(s.Resource().GetValue())
}
