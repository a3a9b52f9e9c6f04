package owner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestConsumers follows a consumer from its first response until it has been forgotten: connected,
// behind, with everything, and lost.
func TestConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		expect := func(step string, want CatalogStats) {
			t.Helper()
			synctest.Wait()
			of := f.server.Stats().Catalogs[""]
			got := CatalogStats{Behind: of.Behind, Lost: of.Lost, Worst: of.Worst}
			for i := range got.Worst {
				if got.Worst[i].Address != "" {
					got.Worst[i].Address = "there" // it is another one each time
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step, diff)
			}
		}
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		expect("nobody", CatalogStats{})

		began := time.Now()
		c := subscribe(t, f.dial(t, consumerID))
		expect("subscribed", CatalogStats{Behind: 1, Worst: []Consumer{{consumerID, "there", 3, began}}}) // with the end of the catalog
		c.next()
		expect("one service", CatalogStats{Behind: 1, Worst: []Consumer{{consumerID, "there", 2, began}}})
		c.nextN(2)
		expect("all", CatalogStats{Worst: []Consumer{{consumerID, "there", 0, time.Time{}}}})

		time.Sleep(time.Minute)
		withdrawn := time.Now()
		f.registry.Delete("a")
		time.Sleep(time.Minute)
		expect("a withdrawal is on its way", CatalogStats{Behind: 1, Worst: []Consumer{{consumerID, "there", 1, withdrawn}}})
		c.next()
		expect("it is acknowledged", CatalogStats{Worst: []Consumer{{consumerID, "there", 0, time.Time{}}}})

		must.Do(t, c.stream.CloseSend())
		synctest.Wait()
		gone := time.Now()
		time.Sleep(time.Hour)
		lost := CatalogStats{Lost: 1, Worst: []Consumer{{consumerID, "", 0, gone}}}
		expect("lost", lost)
		other := subscribe(t, f.dial(t, strangerID))
		other.nextN(2)
		expect("lost, beside another", CatalogStats{Lost: 1, Worst: []Consumer{lost.Worst[0], {strangerID, "there", 0, time.Time{}}}})
		back := subscribe(t, f.dial(t, consumerID))
		back.nextN(2)
		expect("back", CatalogStats{Worst: []Consumer{{consumerID, "there", 0, time.Time{}}, {strangerID, "there", 0, time.Time{}}}})
		second := subscribe(t, f.dial(t, consumerID))
		second.nextN(2)
		must.Do(t, back.stream.CloseSend())
		synctest.Wait()
		if n := f.server.Stats().Catalogs[""].Lost; n != 0 {
			t.Errorf("%d are lost while another stream of the consumer is open", n)
		}
		must.Do(t, second.stream.CloseSend())
		synctest.Wait()
		time.Sleep(lostFor)
		expect("forgotten", CatalogStats{Worst: []Consumer{{strangerID, "there", 0, time.Time{}}}})
	})
}

// TestLostAreBounded has no more lost consumers remembered than there is room for.
func TestLostAreBounded(t *testing.T) {
	s := start(t, nil).server
	for i := range maxLost {
		s.lost[lostConsumer{"", fmt.Sprint(i)}] = time.Now()
	}
	s.loseLocked(&streamSession{catalog: s.catalogs[""], consumer: "last", subscription: new(registry.Subscription)}, time.Now())
	of := s.Stats().Catalogs[""]
	if of.Lost != maxLost || len(of.Worst) != MaxConsumers {
		t.Errorf("%d are lost, and %d are shown", of.Lost, len(of.Worst))
	}
}
