package source

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// heard is an observer that remembers what it was told.
type heard struct {
	mu      sync.Mutex
	changed int
	gone    []string
}

func (h *heard) Changed(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed += n
}

func (h *heard) Withdrawn(s *wire.Encoded, cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = append(h.gone, s.Name()+": "+cause)
}

func (*heard) Refused(registry.Refusal, string) {}

// TestLook looks at services of a source that is replaced as a whole, and updated.
func TestLook(t *testing.T) {
	var told heard
	c := NewCatalog(Config{Registry: registry.New(), Logger: slog.New(slog.DiscardHandler), Observer: &told})
	c.Set([]Entry{{Key: "1", Name: "first", Source: newPuppet()}})
	p := c.parts["1"]
	stays, changes := encoded("one/Stays", "stays", 0), encoded("one/changes", "changes", 0)
	p.Replace([]*wire.Encoded{stays, changes, encoded("one/goes", "goes", 0)})
	for _, s := range []string{"one/stays", "one/changes"} {
		if found := c.Find(nil, s); len(found) != 1 || !found[0].Updated.IsZero() || found[0].Source != "first" || found[0].Hidden != "" {
			t.Errorf("at first %s is %+v", s, found)
		}
	}
	check := func(when string) {
		t.Helper()
		if found := c.Find([]string{stays.FQDN()}, ""); len(found) != 1 || !found[0].Updated.IsZero() {
			t.Errorf("%s: what stays is %+v", when, found)
		}
		if found := c.Find(nil, "one/changes"); len(found) != 1 || time.Since(found[0].Updated) > time.Hour {
			t.Errorf("%s: what has changed is %+v", when, found)
		}
		if found := c.Find(nil, "ONE/stays"); len(found) != 1 {
			t.Errorf("%s: with other upper and lower case there is %+v", when, found)
		}
		n := 0
		for s, updated := range c.All() {
			if n++; updated.IsZero() != (s.Name() == "one/Stays") {
				t.Errorf("%s: %s came %v", when, s.Name(), updated)
			}
		}
		if n != 2 {
			t.Errorf("%s: there are %d services", when, n)
		}
	}
	p.Replace([]*wire.Encoded{stays, encoded("one/changes", "changes", 1)})
	check("replaced as a whole")
	p.Update([]*wire.Encoded{encoded("one/changes", "changes", 2)}, []string{"nobody"})
	check("updated")
	if want := "[one/goes: withdrawn by source first]"; fmt.Sprint(told.gone) != want || told.changed != 3 {
		t.Errorf("the observer has heard of %d changes and %v, expected 3 and %s", told.changed, told.gone, want)
	}

	c.Set([]Entry{{Key: "2", Name: "before", Source: newPuppet()}, {Key: "1", Name: "first", Source: newPuppet()}})
	if found := c.Find(nil, "one/stays"); len(found) != 1 || found[0].Hidden != "" {
		t.Errorf("before the next list there is %+v", found)
	}
	c.parts["2"].Replace([]*wire.Encoded{encoded("two/same", "stays", 0)})
	if found := c.Find(nil, "one/stays"); len(found) != 1 || found[0].Hidden == "" {
		t.Errorf("what another source hides is %+v", found)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	if got, want := told.gone[len(told.gone)-1], `one/Stays: hidden by service "two/same" of before`; got != want {
		t.Errorf("the observer has heard %q, expected %q", got, want)
	}
}

// TestLookWhileItChanges reads all there is while the catalog changes.
func TestLookWhileItChanges(t *testing.T) {
	c := NewCatalog(Config{Registry: registry.New(), Logger: slog.New(slog.DiscardHandler), Observer: &heard{}})
	c.Set([]Entry{{Key: "1", Name: "1", Source: newPuppet()}})
	p := c.parts["1"]
	version := func(n int) []*wire.Encoded {
		return []*wire.Encoded{encoded("a", "a", 0), encoded("b", "b", n), encoded("c"+strconv.Itoa(n), "c", 0)}
	}
	p.Replace(version(0))
	var readers sync.WaitGroup
	defer readers.Wait()
	done := make(chan struct{})
	defer close(done)
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				n := 0
				for range c.All() {
					n++
				}
				if found := c.Find([]string{encoded("a", "a", 0).FQDN()}, "b"); n != 3 || len(found) != 2 {
					t.Errorf("there are %d services, and %d are found", n, len(found))
					return
				}
				c.registry.Audiences("a")
			}
		})
	}
	for n := range 200 {
		p.Replace(version(n))
	}
	for n := 200; n < 400; n++ {
		v := version(n)
		p.Update(v[1:], []string{"c" + strconv.Itoa(n-1)})
	}
}

// TestAllIsTakenOver reads all services of two sources, while one takes over a service that
// the other had: what is published all the time is yielded, and changes do not wait.
func TestAllIsTakenOver(t *testing.T) {
	c := NewCatalog(Config{Registry: registry.New(), Logger: slog.New(slog.DiscardHandler)})
	c.Set([]Entry{{Key: "1", Name: "first", Source: newPuppet()}, {Key: "2", Name: "second", Source: newPuppet()}})
	var many []*wire.Encoded
	for i := range 1000 {
		many = append(many, encoded("m"+strconv.Itoa(i), "m"+strconv.Itoa(i), 0))
	}
	same := encoded("same", "same", 0)
	c.parts["1"].Replace([]*wire.Encoded{same, encoded("mine", "mine", 0), encoded("other", "m0", 0)}) // the last one hides m0
	c.parts["2"].Replace(append(many, same, encoded("late", "late", 0)))
	seen := make(map[string]int)
	for s := range c.All() {
		if len(seen) == 0 {
			c.parts["1"].Update(nil, []string{"same"})
		}
		seen[s.Name()]++
	}
	for _, name := range []string{"same", "mine", "other", "late", "m1", many[len(many)-1].Name()} {
		if seen[name] != 1 {
			t.Errorf("%s has come %d times", name, seen[name])
		}
	}
	if len(seen) != len(many)-1+4 || seen["m0"] != 0 {
		t.Errorf("%d services, m0 %d times", len(seen), seen["m0"])
	}
	for range c.All() {
		break
	}
	c.Find(nil, "nobody") // the lock is free
}

// BenchmarkFind looks for a service, and for one that there is not, among 100,000 of one
// source and of two.
func BenchmarkFind(b *testing.B) {
	const n = 100_000
	alone := NewCatalog(Config{Registry: registry.New(), Logger: slog.New(slog.DiscardHandler)})
	alone.Set([]Entry{{Key: "1", Name: "1", Source: newPuppet()}})
	var services []*wire.Encoded
	for i := range n {
		services = append(services, encoded(fmt.Sprint("one/", i), fmt.Sprint("h", i), 0))
	}
	alone.parts["1"].Replace(services)
	shared, _ := filled(b, n)
	for name, c := range map[string]*Catalog{"alone": alone, "shared": shared} {
		for what, fqdn := range map[string]string{"there": services[7].FQDN(), "missing": "nobody"} {
			b.Run(name+"/"+what, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if found := c.Find([]string{fqdn}, "nobody"); (len(found) > 0) != (what == "there") {
						b.Fatal(found)
					}
				}
			})
		}
		b.Run(name+"/all", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for range c.All() {
				}
			}
		})
	}
}
