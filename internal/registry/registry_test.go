package registry_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
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
	for _, u := range s.TakeUpdates(nil, n) {
		got = append(got, registrytest.Show(u.DecodedEvent()))
	}
	if len(got) < n {
		t.Fatalf("took %d events, expected %d", len(got), n)
	}
	return got
}

func TestSetTellsTheDifference(t *testing.T) {
	r := registry.New()
	s := registrytest.Subscribe(r)
	defer s.Close()
	drain(s)

	steps := []struct {
		catalog []*federation.Service
		want    bool
		events  []string
	}{
		{[]*federation.Service{service("b", 1), service("a", 1)}, true, []string{"upsert a 1", "upsert b 1"}},
		{[]*federation.Service{service("a", 1), service("b", 1)}, false, nil},
		{[]*federation.Service{service("a", 1), service("b", 2)}, true, []string{"upsert b 2"}},
		{[]*federation.Service{service("b", 2), service("c", 1)}, true, []string{"upsert c 1", "delete a"}},
		{[]*federation.Service{service("c", 2), service("c", 3)}, true, []string{"upsert c 3", "delete b"}},
		{nil, true, []string{"delete c"}},
		{nil, false, nil},
	}
	for i, step := range steps {
		if got, err := r.Set(step.catalog); err != nil || got != step.want {
			t.Errorf("step %d: changed is %v, %v, expected %v", i, got, err, step.want)
		}
		if diff := cmp.Diff(step.events, drain(s)); diff != "" {
			t.Errorf("step %d: unexpected events (-want +got):\n%s", i, diff)
		}
	}
}

// TestUpdateEncoded changes a part of a catalog. The registry holds what it was given
// last, also where that is equal to what it had.
func TestUpdateEncoded(t *testing.T) {
	r := registry.New()
	set(t, r, []*federation.Service{service("a", 1), service("b", 1), service("c", 1), service("d", 1)})
	s := registrytest.Subscribe(r)
	defer s.Close()
	drain(s)
	same := encoded(t, service("a", 1))
	for _, step := range []struct {
		name    string
		changed []*wire.EncodedService
		gone    []string
		want    bool
		events  []string
	}{
		{"nothing", nil, nil, false, nil},
		{"equal and unknown", []*wire.EncodedService{same}, []string{"x"}, false, nil},
		{
			"additions, changes, removals, each in order",
			[]*wire.EncodedService{encoded(t, service("z", 1)), encoded(t, service("e", 1)), encoded(t, service("d", 2))},
			[]string{"c", "b", "c"},
			true,
			[]string{"upsert e 1", "upsert z 1", "upsert d 2", "delete b", "delete c"},
		},
		{
			"changed and gone",
			[]*wire.EncodedService{encoded(t, service("d", 3))},
			[]string{"d"},
			true,
			[]string{"upsert d 3"},
		},
		{
			"two of one name",
			[]*wire.EncodedService{encoded(t, service("d", 4)), encoded(t, service("d", 3))},
			nil,
			false,
			nil,
		},
	} {
		if got := r.UpdateEncoded(step.changed, step.gone); got != step.want {
			t.Errorf("%s: changed is %v, expected %v", step.name, got, step.want)
		}
		if diff := cmp.Diff(step.events, drain(s)); diff != "" {
			t.Errorf("%s: unexpected events (-want +got):\n%s", step.name, diff)
		}
	}
	if len(r.Held()) != 4 || r.Lookup("a") != same {
		t.Errorf("the registry has %v, expected what it was given", current(r))
	}
}

func TestEqualServiceIsNoChange(t *testing.T) {
	r := registry.New()
	if changed, err := r.Upsert(service("a", 1)); err != nil || !changed {
		t.Errorf("a new service is a change, got %v, %v", changed, err)
	}
	s := registrytest.Subscribe(r)
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
	if !r.Delete("a") || len(r.Held()) != 0 {
		t.Error("a known service can be deleted")
	}
}

func TestSubscriptionCoalesces(t *testing.T) {
	r := registry.New()
	set(t, r, []*federation.Service{service("a", 1), service("b", 1), service("c", 1), service("d", 1)})
	s := registrytest.Subscribe(r)
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

func TestSubscriptionBacklogIsBounded(t *testing.T) {
	r := registry.New()
	set(t, r, []*federation.Service{service("a", 1), service("b", 1)})
	s := registrytest.Subscribe(r) // takes only the first service
	defer s.Close()
	takeN(t, s, 1)
	for i := range 1000 {
		name := fmt.Sprintf("s%d", i)
		upsert(t, r, service(name, 1))
		upsert(t, r, service("a", i))
		r.Delete(name)
	}
	if n, ahead := s.Backlog(); n != 2 || ahead > 0 {
		t.Errorf("backlog is %d, expected 2", n)
	}
}

// TestSubscriptionMemory measures the memory of a subscriber that is behind with many
// services. It does not grow when they change again, and is given back when the subscriber has
// caught up.
func TestSubscriptionMemory(t *testing.T) {
	const services = 10_000
	r := registry.New()
	change := func(version int) {
		for first := 0; first < services; first += 100 {
			var changed []*wire.EncodedService
			for i := range 100 {
				changed = append(changed, encoded(t, service(fmt.Sprintf("s%05d", first+i), version)))
			}
			r.UpdateEncoded(changed, nil)
		}
	}
	change(1)
	s := registrytest.Subscribe(r)
	defer s.Close()
	s.TakeUpdates(nil, 2*services)
	begin := heap()
	change(2)
	behind := heap()
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
		s.TakeUpdates(nil, services)
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
		registrytest.Subscribe(r).Close()
		r.Delete("new")
	}
}

func TestSubscriptionClose(t *testing.T) {
	r := registry.New()
	s := registrytest.Subscribe(r)
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
		s := registrytest.Listen(r)
		defer s.Close()
		errStop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		var got []string
		done := make(chan error, 1)
		go func() {
			for {
				event, err := s.NextEvent(ctx)
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
		if _, err := s.NextEvent(ctx); !errors.Is(err, errStop) {
			t.Errorf("Next with an ended context failed with %v, expected %v", err, errStop)
		}
	})
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
		s.MarkAsked()
		if stats := r.Stats(); stats.Unsent != 1 || !stats.Oldest.Equal(time.Now()) {
			t.Errorf("%d services wait since %v for a consumer that has asked, expected 1 since now", stats.Unsent, stats.Oldest)
		}
	})
}
