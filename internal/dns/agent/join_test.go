package agent_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestUpdatesWhileJoining has a block join an owner that is away when the join pauses, and comes
// back with other services: they are applied meanwhile, and both blocks end with the same.
func TestUpdatesWhileJoining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const count = 1200 // more than two pieces of a join
		name := func(i int) string { return fmt.Sprintf("s%d.fed.example", i) }
		var first, second []*federation.Service
		for i := range count {
			first = append(first, services.At(name(i), "192.0.2.1"))
			switch i % 3 { // the others are gone
			case 0:
				second = append(second, services.At(name(i), "192.0.2.1"))
			case 1:
				second = append(second, services.At(name(i), "192.0.2.2"))
			}
		}
		second = append(second, services.At(name(count), "192.0.2.3"))

		w := newTestAgent(t)
		_, stop := w.Owner(ownerAddress, first...)
		before := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Minute)
		want := []string{"192.0.2.1 60", "192.0.2.2 60", "NXDOMAIN"}
		paused := false
		pause := func() {
			paused = true
			stop()
			time.Sleep(time.Second)
			w.Owner(ownerAddress, second...)
			time.Sleep(time.Minute)
			for i, want := range want {
				if got := look(before, name(i)); got != want {
					t.Errorf("%s is %s while a join pauses, want %s", name(i), got, want)
				}
			}
		}
		w.pausing.Store(&pause)
		after := w.attach(w.block(2, w.owner(ownerAddress)))
		if !paused {
			t.Fatal("the join has not paused")
		}
		for i := range count {
			if got := look(after, name(i)); got != want[i%3] {
				t.Fatalf("%s is %s in the block that has joined, want %s", name(i), got, want[i%3])
			}
		}
		if got := look(after, name(count)); got != "192.0.2.3 60" {
			t.Errorf("what is new is %s", got)
		}
	})
}
