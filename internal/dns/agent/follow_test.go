package agent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestZoneFollowsCatalogs applies random events to two catalogs. After each batch the zone is that
// of a block which reads the catalogs as they are: changes name the version before, and no other.
// Names are renamed, shared, wanted by both owners, by two services of one, and outside of the
// zones.
func TestZoneFollowsCatalogs(t *testing.T) {
	t.Parallel()
	for seed := range nightly.Cases[uint64](100, 10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			a, b, owners := writer(t, "a", "b")
			for i := range b.config.Zone.Owners {
				of := &b.config.Zone.Owners[i]
				of.Renames = []zone.Rename{{From: services.FQDN("old.example"), To: services.FQDN("new.fed.example")}}
				of.Sharing.Names = []pattern.Name{must.Get(pattern.ParseName("*.shared.fed.example"))(t)}
			}
			b.builder = zone.NewBuilder(b.config.Zone, nil)
			var catalogs []*catalog.Catalog
			now := time.Unix(1_800_000_000, 0)
			for range owners {
				catalogs = append(catalogs, catalog.New(catalog.Rules{
					Retention: time.Hour, Admit: func(*federation.Service) *federation.InvalidError { return nil },
				}))
			}
			for range 60 {
				i := random.IntN(len(owners))
				now = now.Add(time.Second)
				for range 1 + random.IntN(4) {
					happen(random, catalogs[i], now)
				}
				owners[i].publishChanges(consumer.Changes{
					Services: catalogs[i].TakeChanges(), Status: consumer.Status{Summary: catalogs[i].Summary()},
				})
				fresh := a.newBlock(b.config)
				for i, c := range catalogs {
					for service, announced := range c.All() {
						fresh.builder.Put(fresh.builder.Prepare(i, service, service.Unpack()), packed.Service{}, announced.Generation, announced.Updated)
					}
					(&publishingBlock{block: fresh, index: i}).setOwnerStatus(owners[i])
				}
				if d := cmp.Diff(answersOf(fresh, now), answersOf(b, now)); d != "" {
					t.Fatalf("the zone after changes (-want +got):\n%s", d)
				}
			}
		})
	}
}

// happen applies a random event to a catalog, whose stream may end and begin again.
func happen(random *rand.Rand, c *catalog.Catalog, now time.Time) {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	name := pick("one", "two", "three", "four")
	switch {
	case c.Summary().Generation == 0 || random.IntN(12) == 0:
		c.OpenStream(now)
	case random.IntN(20) == 0:
		c.EndStream(now, now)
	case random.IntN(10) == 0:
		_ = c.ApplyEvent(wire.Event{Operation: wire.End}, now)
	case random.IntN(5) == 0:
		_ = c.ApplyEvent(wire.Event{Operation: wire.Delete, Name: name}, now)
	default:
		s := services.At(
			pick("web.fed.example", "web.old.example", "web.new.fed.example", "api.fed.example", "x.shared.fed.example", "y.shared.fed.example", "i.web.fed.example", "web.far.example"),
			pick("192.0.2.1", "192.0.2.2"),
		)
		s.Name = name
		_ = c.ApplyEvent(wire.Event{Operation: wire.Upsert, Name: name, Service: s}, now)
	}
}

// answersOf returns all records of the block's zone, and what is not published, as text.
func answersOf(b *Block, now time.Time) (all []string) {
	z := b.builder.Publish(now)
	for name := range z.Names("fed.example.", now) {
		for result := range z.Records("fed.example.", name, now) {
			for _, rr := range reply.AppendAnswer(nil, result, name, 0) {
				all = append(all, rr.String())
			}
		}
	}
	for i := range b.config.Owners {
		for kind, n := range z.Faults(i) {
			all = append(all, fmt.Sprint("not published of ", i, ": ", n, " ", kind))
		}
	}
	slices.Sort(all)
	return all
}
