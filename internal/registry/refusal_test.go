package registry_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// TestStandingRefusalsAreBounded refuses more services than are remembered. One that
// is not remembered is not told, so that all that is told can be taken back.
func TestStandingRefusalsAreBounded(t *testing.T) {
	r := registry.New()
	var told []registry.Refusal
	r.OnRefusal(func(r registry.Refusal) { told = append(told, r) })
	var changed []*wire.EncodedService
	var names []string
	for i := range registry.MaxStanding/2 + 1 {
		s := encoded(t, service(fmt.Sprintf("s%d", i), 1))
		changed, names = append(changed, s), append(names, s.Name())
	}
	r.UpdateEncoded(changed, nil)
	for _, name := range names {
		r.NoteAnswer(registry.Refusal{Service: name, Consumer: "a", Rule: "no"})
		r.NoteAnswer(registry.Refusal{Service: name, Consumer: "b", Rule: "no"})
	}
	if _, standing := r.Standing(); standing != registry.MaxStanding || len(told) != registry.MaxStanding {
		t.Errorf("%d refusals stand of %d that were told, expected %d", standing, len(told), registry.MaxStanding)
	}
	last := names[len(names)-1]
	r.NoteAnswer(registry.Refusal{Service: last, Consumer: "a"})
	if r.NoteAnswer(registry.Refusal{Service: names[0], Consumer: "b", Rule: "no"}) { // stands already
		t.Error("a refusal that stands is news")
	}
	if n := len(told); n != registry.MaxStanding+1 {
		t.Errorf("%d were told, expected the repeated one and no other", n)
	}
	r.NoteAnswer(registry.Refusal{Service: names[0], Consumer: "a"})
	r.NoteAnswer(registry.Refusal{Service: last, Consumer: "a", Rule: "no"})
	if n := len(told); n != registry.MaxStanding+3 {
		t.Errorf("%d were told, expected one for which there is room again", n)
	}
	r.UpdateEncoded(nil, names)
	if consumers, counted := r.Standing(); counted != 0 || len(consumers) != 0 {
		t.Errorf("%d refusals of services that are gone stand", counted)
	}
	r.NoteAnswer(registry.Refusal{Service: last, Consumer: "a", Rule: "no"})
	if n := len(told); n != registry.MaxStanding+3 {
		t.Error("a refusal of a service that is gone was told")
	}
}

// TestRefusalsWhileServicesComeAndGo refuses and takes services over several streams
// while these come and go. What stands in the end is counted, and none of it is of a
// service that has gone.
func TestRefusalsWhileServicesComeAndGo(t *testing.T) {
	const services = 20
	r := registry.New()
	r.OnRefusal(func(registry.Refusal) {})
	var all sync.WaitGroup
	for _, consumer := range []string{"a", "b", "c"} {
		all.Go(func() {
			for i := range 1000 {
				name := fmt.Sprintf("s%d", i*7%services)
				if i%3 > 0 {
					r.NoteAnswer(registry.Refusal{Service: name, Consumer: consumer, Rule: "no"})
				} else {
					r.NoteAnswer(registry.Refusal{Service: name, Consumer: consumer})
				}
			}
		})
	}
	all.Go(func() {
		for i := range 1000 {
			name := fmt.Sprintf("s%d", i%services)
			upsert(t, r, service(name, i))
			if i%2 > 0 {
				r.Delete(name)
			}
		}
	})
	all.Wait()
	standing := 0
	consumers, counted := r.Standing()
	for name, those := range consumers {
		standing += len(those)
		if r.Lookup(name) == nil || len(those) == 0 {
			t.Errorf("%d refusals of %s stand, which is gone or is not refused", len(those), name)
		}
	}
	if standing != counted {
		t.Errorf("%d refusals stand, and %d are counted", standing, counted)
	}
}
