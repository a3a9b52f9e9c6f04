package registry_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// current returns the services of a registry by name.
func current(r *registry.Registry) map[string]*federation.Service {
	services := make(map[string]*federation.Service)
	for name, e := range r.Held() {
		services[name] = e.Service()
	}
	return services
}

func takeN(t *testing.T, s *registry.Subscription, n int) []string {
	t.Helper()
	var got []string
	for _, u := range s.Take(nil, n) {
		got = append(got, registrytest.Show(u.Decoded()))
	}
	if len(got) < n {
		t.Fatalf("took %d events, expected %d", len(got), n)
	}
	return got
}

func TestSetReturnsTheDifference(t *testing.T) {
	r := registry.New()
	s := r.Subscribe()
	defer s.Close()
	drain(s)

	steps := []struct {
		catalog []*federation.Service
		want    registry.Difference
		events  []string
	}{
		{[]*federation.Service{service("b", 1), service("a", 1)}, registry.Difference{Added: 2}, []string{"upsert a 1", "upsert b 1"}},
		{[]*federation.Service{service("a", 1), service("b", 1)}, registry.Difference{}, nil},
		{[]*federation.Service{service("a", 1), service("b", 2)}, registry.Difference{Changed: 1}, []string{"upsert b 2"}},
		{[]*federation.Service{service("b", 2), service("c", 1)}, registry.Difference{Added: 1, Removed: 1}, []string{"upsert c 1", "delete a"}},
		{[]*federation.Service{service("c", 2), service("c", 3)}, registry.Difference{Changed: 1, Removed: 1}, []string{"upsert c 3", "delete b"}},
		{nil, registry.Difference{Removed: 1}, []string{"delete c"}},
		{nil, registry.Difference{}, nil},
	}
	for i, step := range steps {
		if got, err := r.Set(step.catalog); err != nil || got != step.want {
			t.Errorf("step %d: difference is %+v, %v, expected %+v", i, got, err, step.want)
		}
		if diff := cmp.Diff(step.events, drain(s)); diff != "" {
			t.Errorf("step %d: unexpected events (-want +got):\n%s", i, diff)
		}
	}
}

// TestSetTellsInOrder sets a catalog, and then another one. The additions come in
// the order of their names, and then the removals in that order.
func TestSetTellsInOrder(t *testing.T) {
	r := registry.New()
	s := r.Subscribe()
	defer s.Close()
	drain(s)
	var old, fresh []*federation.Service
	var want []string
	for i := range 20 {
		old = append(old, service(fmt.Sprintf("a%02d", i), 1))
		fresh = append(fresh, service(fmt.Sprintf("b%02d", i), 1))
		want = append(want, fmt.Sprintf("upsert b%02d 1", i))
	}
	for i := range 20 {
		want = append(want, fmt.Sprintf("delete a%02d", i))
	}
	set(t, r, old)
	drain(s)
	set(t, r, fresh)
	if diff := cmp.Diff(want, drain(s)); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}
}

// TestUpdateEncoded changes a part of a catalog. The registry holds what it was given
// last, also where that is equal to what it had.
func TestUpdateEncoded(t *testing.T) {
	r := registry.New()
	set(t, r, []*federation.Service{service("a", 1), service("b", 1), service("c", 1), service("d", 1)})
	s := r.Subscribe()
	defer s.Close()
	drain(s)
	same := encoded(t, service("a", 1))
	for _, step := range []struct {
		name    string
		changed []*wire.Encoded
		gone    []string
		want    registry.Difference
		events  []string
	}{
		{"nothing", nil, nil, registry.Difference{}, nil},
		{"equal and unknown", []*wire.Encoded{same}, []string{"x"}, registry.Difference{}, nil},
		{
			"additions, changes, removals, each in order",
			[]*wire.Encoded{encoded(t, service("z", 1)), encoded(t, service("e", 1)), encoded(t, service("d", 2))},
			[]string{"c", "b", "c"},
			registry.Difference{Added: 2, Changed: 1, Removed: 2},
			[]string{"upsert e 1", "upsert z 1", "upsert d 2", "delete b", "delete c"},
		},
		{
			"changed and gone",
			[]*wire.Encoded{encoded(t, service("d", 3))},
			[]string{"d"},
			registry.Difference{Changed: 1},
			[]string{"upsert d 3"},
		},
		{
			"two of one name",
			[]*wire.Encoded{encoded(t, service("d", 4)), encoded(t, service("d", 3))},
			nil,
			registry.Difference{},
			nil,
		},
	} {
		if got := r.UpdateEncoded(step.changed, step.gone); got != step.want {
			t.Errorf("%s: difference is %+v, expected %+v", step.name, got, step.want)
		}
		if diff := cmp.Diff(step.events, drain(s)); diff != "" {
			t.Errorf("%s: unexpected events (-want +got):\n%s", step.name, diff)
		}
	}
	if r.Len() != 4 || r.Lookup("a") != same {
		t.Errorf("the registry has %v, expected what it was given", current(r))
	}
}

func TestEqualServiceIsNoChange(t *testing.T) {
	r := registry.New()
	if changed, err := r.Upsert(service("a", 1)); err != nil || !changed {
		t.Errorf("a new service is a change, got %v, %v", changed, err)
	}
	s := r.Subscribe()
	defer s.Close()
	drain(s)
	if changed, err := r.Upsert(service("a", 1)); err != nil || changed {
		t.Errorf("an equal service is no change, got %v, %v", changed, err)
	}
	if got := drain(s); len(got) > 0 {
		t.Errorf("the subscriber is told %q of an equal service", got)
	}
	if r.Delete("b") {
		t.Error("an unknown service cannot be deleted")
	}
	if !r.Delete("a") || r.Len() != 0 {
		t.Error("a known service can be deleted")
	}
}

func TestSubscriptionCoalesces(t *testing.T) {
	r := registry.New()
	set(t, r, []*federation.Service{service("a", 1), service("b", 1), service("c", 1), service("d", 1)})
	s := r.Subscribe()
	defer s.Close()

	got := takeN(t, s, 2) // a and b
	upsert(t, r, service("a", 2))
	upsert(t, r, service("d", 2)) // not told yet: goes out once, as it is then
	r.Delete("c")                 // not told yet: never mentioned
	upsert(t, r, service("e", 1)) // not part of the catalog at the start
	upsert(t, r, service("a", 3)) // goes out once, behind what is new
	r.Delete("b")
	upsert(t, r, service("f", 1)) // comes and goes untold
	r.Delete("f")
	got = append(got, drain(s)...)

	want := []string{"upsert a 1", "upsert b 1", "upsert d 2", "end", "upsert e 1", "upsert a 3", "delete b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}

	r.Delete("a")
	upsert(t, r, service("a", 4)) // gone and back: one upsert
	upsert(t, r, service("d", 5))
	r.Delete("d")
	upsert(t, r, service("c", 1)) // deleted before it was told: new
	r.Delete("c")
	if diff := cmp.Diff([]string{"upsert a 4", "delete d"}, drain(s)); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}
}

func TestSubscriptionOfAnEmptyCatalogEnds(t *testing.T) {
	s := registry.New().Subscribe()
	defer s.Close()
	if diff := cmp.Diff([]string{"end"}, drain(s)); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}
}

func TestSubscriptionBacklogIsBounded(t *testing.T) {
	r := registry.New()
	set(t, r, []*federation.Service{service("a", 1), service("b", 1)})
	s := r.Subscribe() // takes only the first service
	defer s.Close()
	takeN(t, s, 1)
	for i := range 10_000 {
		name := fmt.Sprintf("s%d", i)
		upsert(t, r, service(name, 1))
		upsert(t, r, service("a", i))
		r.Delete(name)
	}
	if n, ahead := s.Backlog(); n != 2 || ahead > 0 {
		t.Errorf("backlog is %d, expected 2", n)
	}
}

// TestSubscriptionMemory measures the memory of a subscriber that is behind with
// 100,000 services. It does not grow when they change again, and is given back when
// the subscriber has caught up. A short test has 20,000 services.
func TestSubscriptionMemory(t *testing.T) {
	services := unlessShort(100_000, 20_000)
	r := registry.New()
	change := func(version int) {
		for i := range services {
			upsert(t, r, service(fmt.Sprintf("s%05d", i), version))
		}
	}
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // frees what the first one has finalized
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	change(1)
	s := r.Subscribe()
	defer s.Close()
	s.Take(nil, 2*services)
	begin := heap()
	change(2)
	behind := heap()
	t.Logf("%d bytes for each service that a subscriber is behind with", (behind-begin)/services)
	if grown := behind - begin; grown > 300*services {
		t.Errorf("a subscriber that is behind with %d services costs %d bytes, expected at most %d", services, grown, 300*services)
	}
	change(3)
	change(4)
	// The registry itself now has two strings for each name.
	if grown := heap() - behind; grown > 32*services {
		t.Errorf("the same changes once more cost %d bytes, expected at most %d", grown, 32*services)
	}
	for current, _ := s.State(); !current; current, _ = s.State() {
		s.Take(nil, services)
	}
	if left := heap() - begin; left > 32*services {
		t.Errorf("a subscriber that has caught up still costs %d bytes, expected at most %d", left, 32*services)
	}
	runtime.KeepAlive(r)
}

// BenchmarkSubscribe subscribes after one service of 100,000 has come.
func BenchmarkSubscribe(b *testing.B) {
	r := registry.New()
	for i := range 100_000 {
		upsert(b, r, service(fmt.Sprintf("s%05d", i), 1))
	}
	for b.Loop() {
		upsert(b, r, service("new", 1))
		r.Subscribe().Close()
		r.Delete("new")
	}
}

func TestSubscriptionClose(t *testing.T) {
	r := registry.New()
	s := r.Subscribe()
	drain(s)
	s.Close()
	upsert(t, r, service("a", 1))
	if got := drain(s); got != nil {
		t.Errorf("a closed subscription hears of %v", got)
	}
	if r.Classes() != 0 {
		t.Error("a closed subscription is still in a class")
	}
}

func TestSubscriptionNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New()
		s := r.Subscribe()
		defer s.Close()
		errStop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		var got []string
		done := make(chan error, 1)
		go func() {
			for {
				event, err := s.Next(ctx)
				if err != nil {
					done <- err
					return
				}
				got = append(got, registrytest.Show(event))
			}
		}()
		synctest.Wait() // Next waits, after the end marker
		upsert(t, r, service("a", 1))
		synctest.Wait()
		r.Delete("a")
		synctest.Wait()
		cancel(errStop)
		if err := <-done; !errors.Is(err, errStop) {
			t.Errorf("Next failed with %v, expected %v", err, errStop)
		}
		if diff := cmp.Diff([]string{"end", "upsert a 1", "delete a"}, got); diff != "" {
			t.Errorf("unexpected events (-want +got):\n%s", diff)
		}
		upsert(t, r, service("b", 1))
		if _, err := s.Next(ctx); !errors.Is(err, errStop) {
			t.Errorf("Next with an ended context failed with %v, expected %v", err, errStop)
		}
	})
}

// TestSubscriptionOracle follows a registry that changes at random with subscribers of
// different speeds, and compares what each was told with the registry.
func TestSubscriptionOracle(t *testing.T) {
	for seed := range uint64(unlessShort(300, 50)) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := registry.New()
		type subscriber struct {
			*registry.Subscription

			told  map[string]*wire.Encoded
			ended bool
			pace  int
		}
		var subscribers []*subscriber
		take := func(s *subscriber) bool {
			updates := s.Take(nil, 1)
			if len(updates) == 0 {
				return false
			}
			event := updates[0]
			switch event.Operation {
			case federation.Upsert:
				if event.Encoded != r.Lookup(event.Name) {
					t.Fatalf("seed %d: told an outdated version of %s", seed, event.Name)
				}
				if s.ended && s.told[event.Name] == event.Encoded {
					t.Fatalf("seed %d: told %s twice", seed, event.Name)
				}
				s.told[event.Name] = event.Encoded
			case federation.Delete:
				if s.told[event.Name] == nil {
					t.Fatalf("seed %d: told to delete %s, which it does not know", seed, event.Name)
				}
				delete(s.told, event.Name)
			case federation.End:
				if s.ended {
					t.Fatalf("seed %d: the catalog ended twice", seed)
				}
				s.ended = true
			case federation.Alive:
				t.Fatalf("seed %d: told nothing", seed)
			}
			return true
		}
		for step := range 400 {
			name := fmt.Sprintf("s%d", rnd.IntN(30))
			switch rnd.IntN(4) {
			case 0, 1:
				upsert(t, r, service(name, step))
			case 2:
				r.Delete(name)
			default:
				other := fmt.Sprintf("s%d", rnd.IntN(30))
				r.UpdateEncoded([]*wire.Encoded{encoded(t, service(name, step))}, []string{other})
			}
			if step%80 == 0 {
				subscribers = append(subscribers, &subscriber{
					Subscription: r.Subscribe(),
					told:         make(map[string]*wire.Encoded),
					pace:         rnd.IntN(5),
				})
			}
			for _, s := range subscribers {
				for range rnd.IntN(s.pace + 1) {
					take(s)
				}
				if _, n := s.State(); n > 30 {
					t.Fatalf("seed %d: %d services are ahead, expected at most 30", seed, n)
				}
			}
		}
		for i, s := range subscribers {
			for take(s) {
			}
			if !s.ended {
				t.Fatalf("seed %d: subscriber %d never heard the end of the catalog", seed, i)
			}
			if diff := cmp.Diff(r.Held(), s.told, cmp.Comparer(func(a, b *wire.Encoded) bool { return a == b })); diff != "" {
				t.Fatalf("seed %d: subscriber %d was told something else than the truth (-want +got):\n%s", seed, i, diff)
			}
			s.Close()
		}
	}
}

// TestSilentConsumer has a consumer that asks for the catalog some time after it has
// subscribed. Nothing waits for it before that.
func TestSilentConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New()
		upsert(t, r, service("a", 1))
		s := r.SubscribeAs(registry.Consumer{Silent: true})
		defer s.Close()
		if stats := r.Stats(); stats.Unsent != 0 || !stats.Oldest.IsZero() {
			t.Errorf("%d services wait since %v for a consumer that has not asked", stats.Unsent, stats.Oldest)
		}
		time.Sleep(time.Minute)
		s.Ask()
		if stats := r.Stats(); stats.Unsent != 1 || !stats.Oldest.Equal(time.Now()) {
			t.Errorf("%d services wait since %v for a consumer that has asked, expected 1 since now", stats.Unsent, stats.Oldest)
		}
	})
}
