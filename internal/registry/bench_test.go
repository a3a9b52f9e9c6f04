package registry_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/internal/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// heap returns the memory that is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkChange changes a service while so many consumers are subscribed that hold the
// whole catalog, and each takes the change. It reports the memory of the catalog with its
// subscriptions.
func BenchmarkChange(b *testing.B) {
	for _, services := range []int{10_000, 1_000_000} {
		for _, consumers := range []int{0, 1, 1000, 10_000} {
			b.Run(fmt.Sprintf("services=%d/consumers=%d", services, consumers), func(b *testing.B) {
				before := heap()
				r := registry.New()
				set(b, r, catalogOf(services))
				theirs := sumOf(b, maxMessage, current(r)).FoldTo(resume.BucketCount(services))
				subscriptions := make([]*registry.Subscription, consumers)
				for i := range subscriptions {
					s := resumeAs(r, nil, maxMessage, theirs).Subscription
					registrytest.Drain(s) // the end marker
					subscriptions[i] = s
				}
				memory := heap() - before
				name := fmt.Sprintf("s%05d", 7)
				versions := []*wire.EncodedService{encoded(b, service(name, 2)), encoded(b, service(name, 3))}
				var updates []registry.Update
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					r.UpdateEncoded(versions[i%2:i%2+1], nil)
					i++
					for _, s := range subscriptions {
						updates = s.TakeUpdates(updates[:0], 1)
					}
				}
				b.ReportMetric(float64(memory)/(1<<20), "heap-MiB")
				runtime.KeepAlive(r)
			})
		}
	}
}
