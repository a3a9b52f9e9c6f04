package registry_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/policytest"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
)

// TestDigestsAreTakenForAPartOfTheTime resumes when no more time may be spent on digests.
// What has changed then counts as different, and what is not known is sent.
func TestDigestsAreTakenForAPartOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New()
		services := expressibles(40)
		for _, s := range services {
			upsert(t, r, s)
		}
		theirs, ids := sumOf(t, maxMessage, services), []federation.ID{idOf(t, consumerID)}
		r.SpendOnDigests(2 * registry.DigestBurst)
		if resumed := resumeAs(r, ids, maxMessage, theirs); resumed != nil {
			t.Error("resumed without digests")
		}
		time.Sleep(registry.DigestShare * registry.DigestBurst)
		told := func(want ...string) {
			t.Helper()
			resumed := resumeAs(r, ids, maxMessage, theirs)
			defer resumed.Close()
			if got := drain(resumed.Subscription); !cmp.Equal(want, got) {
				t.Errorf("told %v, expected %v", got, want)
			}
		}
		told("end")
		upsert(t, r, expressible("s004", 2))
		upsert(t, r, services["s004"])
		r.SpendOnDigests(2 * registry.DigestBurst)
		told("upsert s004 1", "end") // something has changed there
		time.Sleep(2*registry.DigestShare*registry.DigestBurst - time.Nanosecond)
		told("upsert s004 1", "end")
		time.Sleep(time.Nanosecond)
		told("end")
	})
}

// TestResumeTellsNothingOfWhatIsHidden changes services that a consumer does not see, while no
// digests are taken: the buckets that it is sent must not say where.
func TestResumeTellsNothingOfWhatIsHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New()
		services := expressibles(40)
		for _, s := range services {
			upsert(t, r, s)
		}
		r.SetPolicy(policyOf(t, stripped(of("s001", consumerID)), of("s002", consumerID)))
		state := map[string]*federation.Service{"s001": expressible("s001", 1), "s002": services["s002"]}
		state["s001"].Description = ""
		theirs, ids := sumOf(t, maxMessage, state), []federation.ID{idOf(t, consumerID)}
		told := func(when string, buckets int, want ...string) {
			t.Helper()
			resumed := resumeAs(r, ids, maxMessage, theirs)
			defer resumed.Close()
			if got := drain(resumed.Subscription); !cmp.Equal(want, got) || resumed.Selection.Len() != buckets {
				t.Errorf("%s: told %v, and %d buckets differ, expected %v and %d", when, got, resumed.Selection.Len(), want, buckets)
			}
		}
		told("before", 0, "end")
		r.SpendOnDigests(2 * registry.DigestBurst)
		upsert(t, r, expressible("s010", 2))
		r.Delete("s011")
		upsert(t, r, expressible("t001", 1))
		secret := expressible("s001", 1)
		secret.Description = "changed" // and stripped
		upsert(t, r, secret)
		told("after hidden changes", 0, "end")
		upsert(t, r, expressible("s002", 2))
		told("after a change", 1, "upsert s002 2", "end")
	})
}

// TestDigestsAreBounded resumes with more sizes of messages than a registry keeps digests of.
func TestDigestsAreBounded(t *testing.T) {
	r := registry.New()
	services := expressibles(2)
	for _, s := range services {
		upsert(t, r, s)
	}
	for i := range 2 * registry.MaxViews {
		resumed := resumeAs(r, nil, maxMessage+i, sumOf(t, maxMessage, services))
		resumed.Close()
		if n := r.MostSums(); n > registry.MaxViews {
			t.Fatalf("there are digests of %d views, expected %d at most", n, registry.MaxViews)
		}
	}
}

// TestDigestsFollow resumes after names have come and gone, few and many.
func TestDigestsFollow(t *testing.T) {
	r := registry.New()
	services := expressibles(100)
	for _, s := range services {
		upsert(t, r, s)
	}
	random := policytest.New(1)
	for range 200 {
		for range 1 << random.IntN(6) {
			name := fmt.Sprintf("s%03d", random.IntN(200))
			if !r.Delete(name) {
				upsert(t, r, expressible(name, 1))
			}
		}
		services := current(r)
		resumed := resumeAs(r, nil, maxMessage, sumOf(t, maxMessage, services).FoldTo(4<<random.IntN(8)))
		if got := drain(resumed.Subscription); !cmp.Equal(got, []string{"end"}) {
			t.Fatalf("told %v, expected the end", got)
		}
		resumed.Close()
	}
}

// TestManyChangesAtOnce changes nearly all services.
func TestManyChangesAtOnce(t *testing.T) {
	r := registry.New()
	const manyChanges = 4000
	catalog := catalogOf(manyChanges + 10)
	set(t, r, catalog)
	theirs := sumOf(t, maxMessage, current(r))
	resumed := resumeAs(r, nil, maxMessage, theirs)
	if got := drain(resumed.Subscription); !cmp.Equal(got, []string{"end"}) {
		t.Errorf("told %d events, expected the end", len(got))
	}
	resumed.Close()
	for i := range catalog[:manyChanges] {
		catalog[i] = service(catalog[i].Name, 2)
	}
	set(t, r, catalog)
	if resumeAs(r, nil, maxMessage, theirs.FoldTo(256)) != nil {
		t.Error("resumed a catalog of which nearly all has changed")
	}
}

// BenchmarkResume has a catalog of 10,000 services, and a consumer that holds it: all of
// it, all but 10 services, or nothing. It reports how many bytes the messages have.
func BenchmarkResume(b *testing.B) {
	const services = 10_000
	for _, bm := range []struct {
		name    string
		changed int
		fresh   bool // whether no digests are known
	}{
		{"full", services, false},
		{"nothing", 0, false},
		{"changed=10", 10, false},
		{"owner=new", 0, true},
	} {
		b.Run(bm.name, func(b *testing.B) {
			r := registry.New()
			state := make(map[string]*federation.Service)
			for i := range services {
				s := expressible(fmt.Sprintf("s%05d", i), 1)
				state[s.Name] = s
			}
			all := make([]*wire.EncodedService, 0, services)
			for _, s := range state {
				all = append(all, encoded(b, s))
			}
			r.UpdateEncoded(all, nil)
			theirs := sumOf(b, maxMessage, state).FoldTo(resume.BucketCount(services))
			for i := range bm.changed {
				upsert(b, r, expressible(fmt.Sprintf("s%05d", i), 2))
			}
			var messages, bytes int
			if resumed := resumeAs(r, nil, maxMessage, theirs); resumed != nil {
				resumed.Close() // and that digests are known
			}
			for b.Loop() {
				if bm.fresh {
					r.ForgetSums()
				}
				var s *registry.Subscription
				if resumed := resumeAs(r, nil, maxMessage, theirs); resumed != nil {
					s = resumed.Subscription
				} else {
					s = r.SubscribeAs(registry.Consumer{})
				}
				messages, bytes = 0, 0
				for updates := s.TakeUpdates(nil, 64); len(updates) > 0; updates = s.TakeUpdates(updates[:0], 64) {
					for _, u := range updates {
						messages++
						if u.Encoded != nil {
							bytes += len(u.Encoded.Resource().GetValue())
						}
					}
				}
				s.Close()
			}
			b.ReportMetric(float64(messages), "messages")
			b.ReportMetric(float64(bytes), "resource-B")
		})
	}
}

// TestResumeOfAView resumes with what a policy tells, in the shape in which it tells it.
// Under another policy, what is different is told, and what is hidden is not.
func TestResumeOfAView(t *testing.T) {
	r := registry.New()
	for _, s := range expressibles(50) {
		upsert(t, r, s)
	}
	r.SetPolicy(policyOf(t, stripped(of("s001 s002 s003", consumerID)), of("s003", strangerID)))
	ids := []federation.ID{idOf(t, consumerID)}
	state := make(map[string]*federation.Service)
	for _, name := range []string{"s001", "s002", "s003"} {
		s := expressible(name, 1)
		s.Description = ""
		state[name] = s
	}
	theirs := sumOf(t, maxMessage, state)
	resumed := resumeAs(r, ids, maxMessage, theirs)
	if got := drain(resumed.Subscription); !cmp.Equal(got, []string{"end"}) || resumed.Spared != 3 {
		t.Errorf("told %v and spared %d services, expected nothing and 3", got, resumed.Spared)
	}
	r.SetPolicy(policyOf(t, of("s002 s003 s004", consumerID)))
	if got, want := drain(resumed.Subscription), []string{"upsert s004 1", "upsert s002 1", "upsert s003 1", "delete s001"}; !cmp.Equal(want, got) {
		t.Errorf("told %v, expected %v", got, want)
	}
	late := resumeAs(r, ids, maxMessage, theirs)
	if got, want := drain(late.Subscription), []string{"upsert s002 1", "upsert s003 1", "upsert s004 1", "end"}; !cmp.Equal(want, got) || late.Spared != 0 {
		t.Errorf("told %v and spared %d services, expected %v and none", got, late.Spared, want)
	}
	resumed.Close()
	late.Close()
	if r.Classes() != 0 {
		t.Errorf("%d classes are left behind", r.Classes())
	}
}
