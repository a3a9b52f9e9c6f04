package registry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// TestPolicyIsEnforcedForOpenSubscriptions changes the policy, and services under it.
func TestPolicyIsEnforcedForOpenSubscriptions(t *testing.T) {
	r := registry.New()
	for _, name := range []string{"a", "b", "c", "d"} {
		upsert(t, r, service(name, 1))
	}
	one, two := r.SubscribeAs(as(t, consumerID)), r.SubscribeAs(as(t, strangerID))
	if got := [][]string{drain(one), drain(two)}; len(got[0]) != 5 || len(got[1]) != 5 {
		t.Errorf("without a policy the catalogs are %v, expected four services and their end", got)
	}
	for _, step := range []struct {
		name     string
		do       func()
		one, two []string
	}{
		{
			"a policy comes", func() {
				r.SetPolicy(policyOf(t, of("a b", consumerID), stripped(of("b c", strangerID))))
			},
			[]string{"delete c", "delete d"},
			[]string{"upsert b", "upsert c", "delete a", "delete d"},
		},
		{
			"services change", func() {
				upsert(t, r, service("a", 2))
				upsert(t, r, service("b", 2))
				r.Delete("c")
				upsert(t, r, service("d", 2))
			},
			[]string{"upsert a 2", "upsert b 2"},
			[]string{"delete c"}, // the description of b is not told, so nothing has changed
		},
		{
			"the same policy in another order", func() {
				r.SetPolicy(policyOf(t, stripped(of("b c", strangerID)), of("a b", consumerID)))
			},
			nil, nil,
		},
		{
			"another shape, and something new", func() {
				r.SetPolicy(policyOf(t, stripped(of("b", consumerID)), of("b d", strangerID), of("d", consumerID)))
			},
			[]string{"upsert d 2", "upsert b", "delete a"},
			[]string{"upsert d 2", "upsert b 2"},
		},
		{"no policy", func() { r.SetPolicy(nil) }, []string{"upsert a 2", "upsert b 2"}, []string{"upsert a 2"}},
	} {
		step.do()
		for i, told := range []struct {
			s    *registry.Subscription
			want []string
		}{{one, step.one}, {two, step.two}} {
			if diff := cmp.Diff(told.want, drain(told.s)); diff != "" {
				t.Errorf("%s: unexpected events of subscriber %d (-want +got):\n%s", step.name, i, diff)
			}
		}
	}
	for _, s := range []*registry.Subscription{one, two} {
		s.Close()
	}
	if r.Classes() != 0 {
		t.Errorf("%d classes are left behind", r.Classes())
	}
}

// TestPolicyChangesWhileACatalogIsTaken changes the policy when a part of the catalog is
// taken. Each service that is told then is told once.
func TestPolicyChangesWhileACatalogIsTaken(t *testing.T) {
	r := registry.New()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		upsert(t, r, service(name, 1))
	}
	r.SetPolicy(policyOf(t, of("a b d", consumerID)))
	s := r.SubscribeAs(as(t, consumerID))
	defer s.Close()
	unsent := func(want int) {
		t.Helper()
		if got := r.Stats().Unsent; got != want {
			t.Errorf("%d services are unsent, expected %d", got, want)
		}
	}
	unsent(3)
	got := takeN(t, s, 1) // a
	unsent(2)
	r.SetPolicy(policyOf(t, of("a b c e", consumerID)))
	unsent(4)                            // b, c and e; and d, which will be passed over
	got = append(got, takeN(t, s, 2)...) // b and the end marker
	r.SetPolicy(policyOf(t, of("d", consumerID)))
	unsent(2) // that a and b are gone; d counts only for who has not passed over it
	r.SetPolicy(policyOf(t, of("a d", consumerID)))
	got = append(got, drain(s)...)
	want := []string{"upsert a 1", "upsert b 1", "end", "upsert d 1", "delete b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}
	unsent(0)
}

// TestManyHiddenServices takes from a catalog of which nearly nothing is for the
// subscriber. Each call of take is short, and Next waits for none of that.
func TestManyHiddenServices(t *testing.T) {
	r := registry.New()
	services := catalogOf(3*registry.MaxSkipped + 10)
	set(t, r, services)
	const only = "only"
	upsert(t, r, service(only, 1))
	r.SetPolicy(policyOf(t, of(only, consumerID)))
	s := r.SubscribeAs(as(t, consumerID))
	defer s.Close()
	empty := 0
	var got []string
	for len(got) < 2 {
		updates := s.TakeUpdates(nil, 10)
		for _, u := range updates {
			got = append(got, registrytest.Show(u.DecodedEvent()))
		}
		if len(updates) > 0 {
			continue
		}
		empty++
		select {
		case <-s.Wake():
		default:
			t.Fatal("nothing says that there may be more")
		}
	}
	if empty < 2 {
		t.Errorf("%d calls passed over all hidden services, expected 2 at least", empty)
	}
	if diff := cmp.Diff([]string{"upsert " + only + " 1", "end"}, got); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}
}

// TestHold changes the catalog and the policy in one edit. Nobody is told of what is true in the
// middle of it, not even of what was taken before and is not sent yet.
func TestHold(t *testing.T) {
	r := registry.New()
	upsert(t, r, service("a", 1))
	upsert(t, r, service("b", 1))
	r.SetPolicy(policyOf(t, of("b", consumerID)))
	s := r.SubscribeAs(as(t, consumerID))
	defer s.Close()
	drain(s)
	upsert(t, r, service("b", 2))
	taken := s.TakeUpdates(nil, 1)

	release := r.HoldChanges()
	r.SetPolicy(policyOf(t, of("a b c", consumerID)))
	upsert(t, r, service("c", 1))
	late := r.SubscribeAs(as(t, consumerID))
	defer late.Close()
	if got := drain(s); len(got) > 0 {
		t.Errorf("during the edit %q is told", got)
	}
	if diff := cmp.Diff([]string{"upsert b 2", "end"}, drain(late)); diff != "" {
		t.Errorf("one that comes during the edit is told (-want +got):\n%s", diff)
	}
	if !s.RefreshUpdate(&taken[0]) || registrytest.Show(taken[0].DecodedEvent()) != "upsert b 2" {
		t.Error("during the edit the policy of its middle is in force")
	}
	r.Delete("a")
	select { // what there was to take before the edit
	case <-s.Wake():
	default:
	}
	release()
	<-s.Wake()
	if diff := cmp.Diff([]string{"upsert c 1"}, drain(s)); diff != "" {
		t.Errorf("after the edit (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"upsert c 1"}, drain(late)); diff != "" {
		t.Errorf("after the edit one that came during it is told (-want +got):\n%s", diff)
	}
}
