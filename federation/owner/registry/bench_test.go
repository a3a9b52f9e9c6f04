package registry_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/resume"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

const (
	benchServices  = 10_000
	benchConsumers = 1000
)

// BenchmarkClasses has 1,000 subscriptions that have taken the whole catalog of 10,000
// services, without a policy, in one class, and in 50 classes of which each is told nearly
// all services, some of them in a shape of its own. A service changes, and all take
// that. It reports the memory of the whole before.
func BenchmarkClasses(b *testing.B) {
	services := registrytest.Spread(benchServices)
	for _, classes := range []int{0, 1, registrytest.Classes} {
		b.Run(fmt.Sprintf("classes=%d", classes), func(b *testing.B) {
			before := heap()
			r := registry.New()
			set(b, r, services)
			var rules []policy.Rule
			for i := range classes {
				rules = append(rules, policy.Rule{FQDNs: []string{fmt.Sprintf("*.zone%02d.example", i)}, Strip: []string{"description"}, To: []string{registrytest.ClassID(i)}})
			}
			rules = append(rules, policy.Rule{To: []string{"*"}})
			if classes > 0 {
				r.SetPolicy(policyOf(b, rules...))
			}
			subscriptions := make([]*registry.Subscription, benchConsumers)
			for i := range subscriptions {
				s := r.SubscribeAs(as(b, registrytest.ClassID(i%max(classes, 1))))
				for updates := s.Take(nil, 1024); len(updates) > 0; {
					updates = s.Take(updates[:0], 1024)
				}
				subscriptions[i] = s
			}
			memory := heap() - before
			version := 1
			for b.Loop() {
				version++
				s := *services[version%benchServices]
				s.Description = fmt.Sprintf("version %d", version)
				upsert(b, r, &s)
				for _, s := range subscriptions {
					s.Take(nil, 1)
				}
			}
			b.ReportMetric(float64(memory)/(1<<20), "heap-MiB")
			runtime.KeepAlive(r)
		})
	}
}

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
	for _, services := range []int{benchServices, 1_000_000} {
		for _, consumers := range []int{0, 1, 1000, 10_000} {
			b.Run(fmt.Sprintf("services=%d/consumers=%d", services, consumers), func(b *testing.B) {
				before := heap()
				r := registry.New()
				set(b, r, catalogOf(services))
				theirs := sumOf(b, plain, current(r)).Fold(resume.Buckets(services))
				subscriptions := make([]*registry.Subscription, consumers)
				for i := range subscriptions {
					s := resumeAs(r, nil, plain, theirs).Subscription
					registrytest.Drain(s) // the end marker
					subscriptions[i] = s
				}
				memory := heap() - before
				name := fmt.Sprintf("s%05d", 7)
				versions := []*wire.Encoded{encoded(b, service(name, 2)), encoded(b, service(name, 3))}
				var updates []registry.Update
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					r.UpdateEncoded(versions[i%2:i%2+1], nil)
					i++
					for _, s := range subscriptions {
						updates = s.Take(updates[:0], 1)
					}
				}
				b.ReportMetric(float64(memory)/(1<<20), "heap-MiB")
				runtime.KeepAlive(r)
			})
		}
	}
}
