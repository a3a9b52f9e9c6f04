package agent_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// While a reload has two blocks of a zone, both may use one serial for different
// records: none of the serials of that time can be compared with later ones, in
// neither block.
func TestRivalsKeepNoHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const name = "fed.example."
		w := newTestAgent(t)
		registry, _ := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		known := func(b *agent.Block, serial uint32) bool {
			before, _, _ := b.Zone().ChangesSince(name, serial)
			return before != nil
		}
		n := 0
		// change gives the zone another serial, and returns the one before.
		change := func(b *agent.Block) uint32 {
			t.Helper()
			before := b.Zone().SOA(name).Serial
			n++
			must.Get(registry.Upsert(services.At("api.fed.example", fmt.Sprintf("192.0.2.%d", n))))(t)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if b.Zone().SOA(name).Serial == before {
				t.Fatal("the serial stays")
			}
			return before
		}
		old := w.attach(w.block(1, w.owner(ownerAddress)))
		w.attach(w.block(1, w.owner(ownerAddress))) // of one configuration: a zone of its own
		time.Sleep(time.Minute)
		change(old)
		change(old)
		if !known(old, change(old)) {
			t.Error("the last serial of a block is not known")
		}

		next := w.attach(w.block(2, w.owner(ownerAddress)))
		for range 3 {
			serial := change(old)
			if known(old, serial) || known(next, serial) {
				t.Errorf("serial %d is known in the old block: %t, in the new one: %t", serial, known(old, serial), known(next, serial))
			}
		}
		w.agent.Detach(old)
		w.agent.RetainConfigurations(func(c any) bool { return c == 2 })
		if serial := change(next); known(next, serial) {
			t.Errorf("serial %d of two blocks is known later", serial)
		}
		if serial := change(next); !known(next, serial) {
			t.Errorf("serial %d of one block is not known", serial)
		}
	})
}
