package registry_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

func newWorld(tb testing.TB, seed uint64) *registrytest.World {
	tb.Helper()
	w := registrytest.NewWorld(tb, seed, registrytest.Hooks{State: (*registry.Subscription).State, Told: (*registry.Subscription).WasTold, Digest: (*registry.Registry).Digest})
	if seed%2 == 0 {
		w.Open()
	}
	return w
}

// TestNothingLeaks changes services, policies and subscribers at random, and compares what
// each subscriber is told with a naive evaluation of the rules.
func TestNothingLeaks(t *testing.T) {
	upserts, deletions, resumed, adopted := 0, 0, 0, 0
	worlds := unlessShort(120, 30)
	for seed := range uint64(worlds) {
		w := newWorld(t, seed)
		w.Begin()
		for range 100 {
			w.Step(byte(w.IntN(16)))
		}
		w.Finish()
		upserts, deletions = upserts+w.Upserts, deletions+w.Deletions
		resumed, adopted = resumed+w.Resumed, adopted+w.Adopted
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
		w.Begin()
		for _, op := range steps[:min(len(steps), 200)] {
			w.Step(op)
		}
		w.Finish()
	})
}

// TestNothingLeaksAtOnce is TestNothingLeaks with steps in which services, policies
// and subscribers change at the same time, while others take. What is taken must have
// been true at some time of the step, and what is held after it must be true then.
func TestNothingLeaksAtOnce(t *testing.T) {
	for seed := range uint64(unlessShort(40, 10)) {
		w := newWorld(t, seed)
		w.Begin()
		for range 30 {
			w.StepAtOnce()
			w.Check()
		}
		w.Finish()
	}
}
