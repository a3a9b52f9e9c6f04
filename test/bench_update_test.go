package test

import (
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/snapshot"
	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
)

// stopwatch is an observer that keeps how long updates took to be visible.
type stopwatch struct {
	mu  sync.Mutex
	all []time.Duration // guarded by mu
}

func (w *stopwatch) Visible(d time.Duration) {
	w.mu.Lock()
	w.all = append(w.all, d)
	w.mu.Unlock()
}

// take returns what was kept since the last call.
func (w *stopwatch) take() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	return all
}

func (*stopwatch) Responded(string, federation.Operation) {}
func (*stopwatch) Refused(string, federation.Reason)      {}
func (*stopwatch) Ended(string, string)                   {}
func (*stopwatch) PersistFailed(string)                   {}
func (*stopwatch) Forgotten(string)                       {}

func benchZone(b *testing.B) zone.Config {
	b.Helper()
	origin := must.Get(federation.ParseOrigin(benchOrigin))(b)
	return zone.Config{Owners: []zone.Owner{{ID: "owner", Origins: []federation.FQDN{origin}, TTL: 30, NegativeTTL: 5}}}
}

// subscribe attaches an agent to the owner at the address, and returns what
// detaches it. It does not wait for the catalog.
func subscribe(b *testing.B, keys *pki, address string, w *stopwatch) (block *agent.Block, detach func()) {
	b.Helper()
	a := agent.New(agent.Config{Logger: slog.New(slog.DiscardHandler), Observer: w})
	block = must.Get(a.Attach(agent.BlockConfig{
		Zone: benchZone(b),
		Owners: []agent.OwnerConfig{{
			Addresses: []string{address}, Identity: mtls.Origin{Files: keys.consumer}, Settle: time.Minute,
		}},
	}))(b)
	return block, func() { a.Detach(block) }
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
	_, ok := z.Synced(benchOrigin, time.Now())
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
	return slices.ContainsFunc(reply.Answer(nil, &r, name, 0), func(rr dns.RR) bool {
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
func (p *profile) updates(b *testing.B, size int, deletes bool) iter.Seq[update] {
	b.Helper()
	return func(yield func(update) bool) {
		numbers := order(size)
		for round := 1; ; round++ {
			for i, n := range numbers {
				u := update{service: p.service(b, n), name: benchFQDN(n)}
				ip := netip.AddrFrom4([4]byte{9, byte(round), byte(i >> 8), byte(i)})
				u.service.Endpoints[0].Address = benchAddress(b, ip)
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

func benchAddress(b *testing.B, ip netip.Addr) federation.Address {
	b.Helper()
	a := must.Get(federation.ParseAddress(ip.String()))(b)
	return a
}

// BenchmarkUpdate makes one change at a time and waits until a look-up shows it:
// in a zone alone, and from an owner through a stream, which is more than what
// the apply metrics cover: from the receipt of the message to the publication.
func BenchmarkUpdate(b *testing.B) {
	eachCatalog(b, func(b *testing.B, p *profile, size int) {
		all := p.catalog(b, size)
		b.Run("through=zone", func(b *testing.B) {
			builder := zonetest.NewBuilder(benchZone(b), nil)
			builder.SetStatus(0, zone.Status{Live: 1, Known: true})
			for _, s := range all {
				builder.Put(0, s, 1)
			}
			builder.Publish(time.Now())
			eachUpdate(b, p, size, "", nil, func(u *update) {
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
			keys, watch := newPKI(b), new(stopwatch)
			registry := filled(b, all)
			block, detach := subscribe(b, keys, serveRegistry(b, keys.owner, "", registry, 256).address, watch)
			defer detach()
			awaitZone(b, block, synced)
			eachUpdate(b, p, size, "apply", watch, func(u *update) {
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
// changes of one kind, and what a watch kept belongs to both kinds.
func eachUpdate(b *testing.B, p *profile, size int, kept string, watch *stopwatch, apply func(*update)) {
	b.Helper()
	for _, deletes := range []bool{false, true} {
		name := "op=upsert"
		if deletes {
			name = "op=delete"
		}
		b.Run(name, func(b *testing.B) {
			next, stop := iter.Pull(p.updates(b, size, deletes))
			defer stop()
			if watch != nil {
				watch.take()
			}
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
			if watch != nil {
				reportPercentiles(b, kept, watch.take())
			}
		})
	}
}

// BenchmarkSync downloads a whole catalog over loopback, in lock-step as the
// specification has it and with a window.
func BenchmarkSync(b *testing.B) {
	eachCatalog(b, func(b *testing.B, p *profile, size int) {
		registry := filled(b, p.catalog(b, size))
		for _, window := range []int{1, 256} {
			b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
				keys := newPKI(b)
				measureSync(b, keys, serveRegistry(b, keys.owner, "", registry, window).address, size)
			})
		}
	})
}

func measureSync(b *testing.B, keys *pki, address string, size int) {
	b.Helper()
	for b.Loop() {
		block, detach := subscribe(b, keys, address, new(stopwatch))
		awaitZone(b, block, synced)
		b.StopTimer()
		detach()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "services/sec")
}

// BenchmarkStart compiles a whole catalog, and takes all steps from the file that
// persist keeps to the first answer.
func BenchmarkStart(b *testing.B) {
	eachCatalog(b, func(b *testing.B, p *profile, size int) {
		kept := filepath.Join(b.TempDir(), "catalog")
		all := p.catalog(b, size)
		must.Do(b, snapshot.Save(kept, &snapshot.Snapshot{Owner: "owner", LastUp: time.Now(), Services: pack(all), IDs: map[string]string{}}))
		perService := func(b *testing.B) {
			b.Helper()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/service")
		}
		b.Run("step=compile", func(b *testing.B) {
			for b.Loop() {
				compiled(b, all)
			}
			perService(b)
			b.StopTimer()
			before := heap()
			builder := compiled(b, all)
			b.ReportMetric(float64(heap()-before)/float64(size), "B/service")
			runtime.KeepAlive(builder)
			runtime.KeepAlive(all)
		})
		b.Run("step=restore", func(b *testing.B) {
			for b.Loop() {
				s := must.Get(snapshot.Load(kept, snapshot.Options{Owner: "owner"}))(b)
				c := catalog.New(catalog.Rules{Retention: 24 * time.Hour})
				if !c.Restore(s.Services, s.IDs, s.LastUp, time.Now()) || len(s.Services) != size {
					b.Fatalf("%d services are not restored", len(s.Services))
				}
				builder := zone.NewBuilder(benchZone(b), nil)
				builder.SetStatus(0, zone.Status{Live: 1, Known: true})
				var unpacker packed.Unpacker
				for _, change := range c.Changes() {
					builder.Put(builder.Prepare(0, change.Packed, unpacker.Unpack(change.Packed)), change.Was, change.Generation, 0)
				}
				builder.Publish(time.Now())
			}
			perService(b)
		})
	})
}

// pack returns the packed services.
func pack(all []*federation.Service) []packed.Service {
	list := make([]packed.Service, len(all))
	for i, s := range all {
		list[i] = packed.Of(s)
	}
	return list
}

// BenchmarkGarbageCollection is one collection while a catalog and its zone are
// held: the time it takes of the processors, and how long it stops everything.
func BenchmarkGarbageCollection(b *testing.B) {
	eachCatalog(b, func(b *testing.B, p *profile, size int) {
		all := p.catalog(b, size)
		builder := compiled(b, all)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		busy := collecting()
		b.ResetTimer()
		for b.Loop() {
			runtime.GC()
		}
		b.StopTimer()
		runtime.ReadMemStats(&after)
		n := float64(after.NumGC - before.NumGC)
		b.ReportMetric((collecting()-busy)*1000/n, "cpu-ms/gc")
		b.ReportMetric(float64(after.PauseTotalNs-before.PauseTotalNs)/n/1000, "stopped-us/gc")
		b.ReportMetric(float64(after.HeapAlloc)/(1<<20), "heap-MiB")
		runtime.KeepAlive(builder)
		runtime.KeepAlive(all)
	})
}

// collecting returns the processor time that collections have taken, in seconds.
func collecting() float64 {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64()
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

// BenchmarkDecode makes a service of the bytes of a message.
func BenchmarkDecode(b *testing.B) {
	for _, p := range profiles() {
		b.Run("profile="+p.name, func(b *testing.B) {
			bytes := must.Get(proto.Marshal(wire.EncodeService(p.service(b, 1))))(b)
			b.ReportAllocs()
			for b.Loop() {
				m := new(typespb.FederatedService)
				must.Do(b, proto.Unmarshal(bytes, m))
				must.Get(wire.DecodeService(m, wire.Policy{}))(b)
			}
		})
	}
}
