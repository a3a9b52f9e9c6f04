package owner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, func(c *Config) { c.Window = 2 })
		connections := 0
		expect := func(step string, want CatalogStats) {
			t.Helper()
			synctest.Wait()
			if want.Refused == nil {
				want.Refused = map[string]uint64{}
			}
			if want.Ended == nil {
				want.Ended = map[codes.Code]uint64{}
			}
			all := Stats{Catalogs: map[string]CatalogStats{"": want}, Connections: connections, TurnedAway: map[string]uint64{}}
			if diff := cmp.Diff(all, f.server.Stats(), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(CatalogStats{}, "Behind", "Lost", "Worst")); diff != "" {
				t.Errorf("%s: unexpected figures (-want +got):\n%s", step, diff)
			}
		}
		expect("nothing", CatalogStats{})
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1), service("c", 1)})
		expect("no consumer", CatalogStats{Stats: registry.Stats{Services: 3}})

		conn := f.dial(t, consumerID)
		connections = 1
		subscribed := time.Now()
		c, old := subscribe(t, conn), subscribe1(t, conn)
		bothRoles := map[wire.APIVersion]int{wire.V1Alpha2: 1, wire.V1Alpha1: 1}
		// v1alpha1 cannot express these services, and so gets none of them.
		withheld := map[wire.APIVersion]int{wire.V1Alpha1: 3}
		expect("two consumers", CatalogStats{Stats: registry.Stats{Services: 3, Unsent: 1, Oldest: subscribed}, Consumers: bothRoles, Withheld: withheld, InFlight: 2})
		must.Do(t, old.stream.CloseSend())
		one, ended := map[wire.APIVersion]int{wire.V1Alpha2: 1}, map[codes.Code]uint64{codes.OK: 1}
		expect("one consumer", CatalogStats{Stats: registry.Stats{Services: 3, Unsent: 1, Oldest: subscribed}, Consumers: one, InFlight: 2, Ended: ended})

		refuse := func(text string) {
			t.Helper()
			response, _ := c.receive()
			c.request(wire.Answer(response.GetNonce(), response.GetContext(), &federation.InvalidError{Rule: text}))
		}
		refuse(`service "a": endpoints[0].address: loopback`) // as our consumers write it
		refuse(`not today`)
		c.nextN(2)
		refused := map[string]uint64{"endpoints": 1, "other": 1}
		expect("synced", CatalogStats{Stats: registry.Stats{Services: 3}, Consumers: one, Acknowledged: 2, Refused: refused, Ended: ended})

		time.Sleep(time.Minute)
		changed := time.Now()
		upsert(t, f.registry, service("a", 2))
		time.Sleep(time.Minute)
		upsert(t, f.registry, service("b", 2))
		f.registry.Delete("c")
		upsert(t, f.registry, service("a", 3))
		late := CatalogStats{Stats: registry.Stats{Services: 2, Unsent: 2, Oldest: changed}, Consumers: one, InFlight: 2, Acknowledged: 2, Refused: refused, Ended: ended}
		expect("behind", late)
		c.next()
		time.Sleep(time.Hour)
		late.Acknowledged, late.Unsent, late.Oldest = 3, 1, changed.Add(time.Minute)
		expect("less behind", late)

		f.server.SetAllow([]federation.ID{idOf(t, strangerID)})
		c.status()
		ended[codes.Unauthenticated]++
		expect("turned away", CatalogStats{Stats: registry.Stats{Services: 2}, Acknowledged: 3, Refused: refused, Ended: ended})
	})
}

// TestRefusalsAreCountedByField refuses with texts of all kinds, which become one of
// few labels.
func TestRefusalsAreCountedByField(t *testing.T) {
	for rule, want := range map[string]string{
		"fqdn: required": "fqdn",
		(&federation.InvalidError{Field: "instances[7].metadata[\"x\"]", Rule: "y"}).Error(): "instances",
		(&federation.InvalidError{Field: "operation", Rule: "7 is neither"}).Error():         "operation",
		"resource.value: malformed": "resource",
		"name":                      "name",
		"Unavailable":               "other",
		"evil_label_1: x":           "other",
		"one too many":              "other",
		":":                         "other",
		"":                          "other",
	} {
		if got := blamedField(rule); got != want {
			t.Errorf("%s: blames %q, expected %q", rule, got, want)
		}
	}
}
