package registry_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

func newModel(tb testing.TB, seed uint64) *registrytest.Model {
	tb.Helper()
	m := registrytest.NewModel(tb, seed, registrytest.Hooks{State: (*registry.Subscription).State, Told: (*registry.Subscription).WasTold, Digest: (*registry.Registry).Digest})
	if seed%2 == 0 {
		m.Open()
	}
	return m
}

// TestNothingLeaks changes services, policies and subscribers at random, and compares what
// each subscriber is told with a naive evaluation of the rules.
func TestNothingLeaks(t *testing.T) {
	upserts, deletions, resumed, adopted := 0, 0, 0, 0
	histories := nightly.Cases(120, 20)
	for seed := range uint64(histories) {
		m := newModel(t, seed)
		m.Begin()
		for range 100 {
			m.Step(byte(m.IntN(16)))
		}
		m.Finish()
		upserts, deletions = upserts+m.Upserts, deletions+m.Deletions
		resumed, adopted = resumed+m.Resumed, adopted+m.Adopted
	}
	t.Logf("%d upserts and %d deletions, %d resumed with %d services", upserts, deletions, resumed, adopted)
	if upserts < 15*histories || deletions < 3*histories || resumed < histories || adopted < histories {
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
		m := newModel(t, seed)
		m.Begin()
		for _, op := range steps[:min(len(steps), 200)] {
			m.Step(op)
		}
		m.Finish()
	})
}

// TestNothingLeaksAtOnce is TestNothingLeaks with steps in which services, policies
// and subscribers change at the same time, while others take. What is taken must have
// been true at some time of the step, and what is held after it must be true then.
func TestNothingLeaksAtOnce(t *testing.T) {
	for seed := range nightly.Cases[uint64](40, 6) {
		m := newModel(t, seed)
		m.Begin()
		for range 30 {
			m.StepAtOnce()
			m.Check()
		}
		m.Finish()
	}
}
