package kubernetes

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkCluster reads a cluster of 10,000 exported Services. What is reported of
// changes is the time from the answer of the API server to the update of the part.
func BenchmarkCluster(b *testing.B) {
	const n, changes = 10_000, 500
	c := startCluster(b)
	c.must(c.InstallMCS(b.Context(), "v1beta1"))
	c.namespace("scale")
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := worker; i < n; i += 8 {
				name := fmt.Sprintf("s%d", i)
				c.create(service("scale", name, "192.0.2.1"))
				c.export("v1beta1", "scale", name)
			}
		})
	}
	group.Wait()
	first := c.prepare(nil)
	first.pace = usualPace()
	c.start(first)
	ready := func(r *runner) func() bool {
		return func() bool { return r.view(func() bool { return len(r.services) == n }) && r.back() }
	}
	started := time.Now()
	until(b, "everything", ready(first))
	b.ReportMetric(time.Since(started).Seconds(), "s/start")
	settled := func(r *runner) func() bool {
		before, since := -1, time.Now()
		return func() bool {
			if now := r.requests.of("PATCH serviceexports/status"); now != before {
				before, since = now, time.Now()
			}
			return time.Since(since) > 2*time.Second
		}
	}
	for range 10 { // conditions are written at a bounded rate
		if s, _, _ := c.condition("scale", fmt.Sprintf("s%d", n-1), "Ready"); s == "True" && first.requests.of("PATCH serviceexports/status") >= n {
			break
		}
		until(b, "the conditions", settled(first))
	}
	b.Logf("requests of the first start: %v", first.requests.all())

	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	second := c.prepare(nil)
	second.pace = usualPace()
	c.start(second)
	started = time.Now()
	until(b, "everything", ready(second))
	b.ReportMetric(time.Since(started).Seconds(), "s/restart")
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
	until(b, "silence", settled(second))
	b.Logf("requests of a start where the conditions are right: %v", second.requests.all())

	var delays []time.Duration
	requests := c.requestsOf(second)
	for i := range changes {
		name, ip := fmt.Sprintf("s%d", i*7%n), fmt.Sprintf("198.51.100.%d", i%250+1)
		updated := second.watchFor("west/scale/"+name, ip)
		c.moveTo("scale", name, ip)
		acknowledged := time.Now()
		delays = append(delays, (<-updated).Sub(acknowledged))
	}
	slices.Sort(delays)
	b.ReportMetric(float64(delays[changes/2])/1e6, "ms/change-p50")
	b.ReportMetric(float64(delays[changes*99/100])/1e6, "ms/change-p99")
	until(b, "silence", settled(second))
	b.ReportMetric(float64(c.requestsOf(second)-requests)/changes, "requests/change")
	b.ReportMetric(0, "ns/op")
}
