package test

import (
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// deaf is an observer that keeps nothing.
type deaf struct{}

func (deaf) Visible(time.Duration)             {}
func (deaf) Responded(string, wire.Operation)  {}
func (deaf) Refused(string, federation.Reason) {}
func (deaf) Ended(string, string)              {}
func (deaf) PersistFailed(string)              {}
func (deaf) Forgotten(string)                  {}

func benchZone(b *testing.B) zone.Config {
	b.Helper()
	origin := must.Get(federation.ParseOrigin(benchOrigin))(b)
	return zone.Config{Owners: []zone.Owner{{ID: "owner", Origins: []federation.FQDN{origin}, TTL: 30, NegativeTTL: 5}}}
}

// awaitZone waits until a version of the zone meets the condition.
func awaitZone(b *testing.B, block *agent.Block, condition func(*zone.Zone) bool) {
	b.Helper()
	limit := time.NewTimer(syncPatience)
	defer limit.Stop()
	for !condition(block.Zone()) {
		select {
		case <-block.Changed():
		case <-limit.C:
			b.Fatalf("the zone is not as it should be after %v", syncPatience)
		}
	}
}

func synced(z *zone.Zone) bool {
	_, ok := z.OriginSynced(benchOrigin, time.Now())
	return ok
}

// answers reports whether a name has the address, or none when it is not valid.
func answers(z *zone.Zone, name string, want netip.Addr) bool {
	r := z.Lookup(name, dns.TypeA, time.Now())
	if !want.IsValid() {
		return r.Kind == zone.NameError
	}
	if r.Kind != zone.Success {
		return false
	}
	return slices.ContainsFunc(reply.AppendAnswer(nil, &r, name, 0), func(rr dns.RR) bool {
		got, _ := netip.AddrFromSlice(rr.(*dns.A).A)
		return got.Unmap() == want
	})
}

// update is a change to a catalog and what it makes of a name.
type update struct {
	service *federation.Service // the name of one that goes is in here as well
	gone    bool
	name    string
	address netip.Addr // not valid for one that goes
}

// updates yields changes of services in random order without end: new addresses,
// or services that go and come again.
func (p *profile) updates(size int, deletes bool) iter.Seq[update] {
	return func(yield func(update) bool) {
		numbers := order(size)
		for round := 1; ; round++ {
			for i, n := range numbers {
				u := update{service: p.service(n), name: benchFQDN(n)}
				ip := netip.AddrFrom4([4]byte{9, byte(round), byte(i >> 8), byte(i)})
				u.service.Endpoints[0].Address = benchAddress(ip)
				if deletes {
					u.gone = true
					if !yield(u) {
						return
					}
				}
				u.gone, u.address = false, ip
				if !yield(u) {
					return
				}
			}
		}
	}
}

func benchAddress(ip netip.Addr) federation.Address {
	return must.Value(federation.ParseAddress(ip.String()))
}

// BenchmarkUpdate makes one change at a time and waits until a look-up shows it:
// in a zone alone, and from an owner through a stream.
func BenchmarkUpdate(b *testing.B) {
	eachCatalog(b, func(b *testing.B, p *profile, size int) {
		all := p.catalog(size)
		b.Run("through=zone", func(b *testing.B) {
			builder := compiled(b, all)
			eachUpdate(b, p, size, func(u *update) {
				if u.gone {
					builder.Remove(0, u.service.Name)
				} else {
					builder.Put(0, u.service, 1)
				}
				if !answers(builder.Publish(time.Now()), u.name, u.address) {
					b.Fatalf("%s is not what it was changed to", u.name)
				}
			})
		})
		b.Run("through=stream", func(b *testing.B) {
			keys, registry := newPlace(b), filled(b, all)
			address := serveRegistry(b, keys, loopback.Address(b), registry, 256).address
			a := agent.New(agent.Config{Logger: slog.New(slog.DiscardHandler), Observer: deaf{}})
			block := must.Get(a.Attach(agent.BlockConfig{
				Zone: benchZone(b),
				Owners: []agent.OwnerConfig{{
					Name: "owner", Identity: mtls.Origin{Files: keys.Files("consumer")},
					Subscription: consumer.Subscription{Addresses: []string{address}}, Rules: catalog.Rules{Settle: time.Minute},
				}},
			}))(b)
			defer a.Detach(block)
			awaitZone(b, block, synced)
			eachUpdate(b, p, size, func(u *update) {
				if u.gone {
					registry.Delete(u.service.Name)
				} else {
					mustUpsert(b, registry, u.service)
				}
				awaitZone(b, block, func(z *zone.Zone) bool { return answers(z, u.name, u.address) })
			})
		})
	})
}

// eachUpdate measures the function. The time of an operation is that of the
// changes of one kind.
func eachUpdate(b *testing.B, p *profile, size int, apply func(*update)) {
	b.Helper()
	for _, deletes := range []bool{false, true} {
		name := "op=upsert"
		if deletes {
			name = "op=delete"
		}
		b.Run(name, func(b *testing.B) {
			next, stop := iter.Pull(p.updates(size, deletes))
			defer stop()
			var took []time.Duration
			var total time.Duration
			for b.Loop() {
				u, _ := next()
				begin := time.Now()
				apply(&u)
				took = append(took, time.Since(begin))
				total += took[len(took)-1]
				if deletes { // and comes again, which is not measured
					u, _ = next()
					apply(&u)
				}
			}
			b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/op")
			reportPercentiles(b, "visible", took)
		})
	}
}

// compiled returns a builder that has published the services.
func compiled(b *testing.B, all []*federation.Service) *zonetest.Builder {
	b.Helper()
	builder := zonetest.NewBuilder(benchZone(b), nil)
	builder.SetStatus(0, zone.Status{Live: 1, Known: true})
	for _, s := range all {
		builder.Put(0, s, 1)
	}
	builder.Publish(time.Now())
	return builder
}
