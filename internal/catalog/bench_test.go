package catalog_test

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// synced returns a complete catalog of n services on an open stream, and their events.
func synced(b *testing.B, n int) (*catalog.Catalog, []wire.Event) {
	b.Helper()
	events := make([]wire.Event, n)
	for i := range events {
		s := &federation.Service{
			Name:      fmt.Sprintf("service-%07d", i),
			FQDN:      services.FQDN(fmt.Sprintf("s%07d.example", i)),
			Endpoints: []federation.Endpoint{{Address: address(b, "192.0.2.1"), Port: 80}},
			Instances: []federation.Instance{{ID: "a", Protocol: federation.HTTP}},
		}
		events[i] = wire.Event{Operation: wire.Upsert, Name: s.Name, Service: s}
	}
	c := catalog.New(catalog.Rules{Retention: time.Hour, Settle: time.Second})
	c.OpenStream(epoch)
	apply(b, c, events...)
	apply(b, c, wire.Event{Operation: wire.End})
	return c, events
}

func apply(b *testing.B, c *catalog.Catalog, events ...wire.Event) {
	b.Helper()
	for _, ev := range events {
		must.Do(b, c.ApplyEvent(ev, epoch))
		c.TakeChanges()
	}
}

// BenchmarkUpdate changes one service. It must cost the same in a catalog of any size.
func BenchmarkUpdate(b *testing.B) {
	for _, size := range []int{1_000, 1_000_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			c, events := synced(b, size)
			changed := make([]wire.Event, min(size, 10_000))
			for i := range changed {
				s := *events[i].Service
				s.Description = "changed"
				changed[i] = events[i]
				changed[i].Service = &s
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				// Back and forth: each event is a change.
				list := changed
				if i/len(changed)%2 == 1 {
					list = events
				}
				apply(b, c, list[i%len(changed)])
				i++
			}
		})
	}
}

// BenchmarkResync announces a whole catalog, unchanged, on a new stream. It reports the
// memory that the catalog takes beside the services themselves.
func BenchmarkResync(b *testing.B) {
	for _, size := range []int{1_000, 1_000_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			c, events := synced(b, size)
			for b.Loop() {
				c.OpenStream(epoch)
				apply(b, c, events...)
				apply(b, c, wire.Event{Operation: wire.End})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size), "ns/service")

			with := heap()
			runtime.KeepAlive(c) // up to here, and not longer
			b.ReportMetric(float64(with-heap())/float64(size), "B/service")
			runtime.KeepAlive(events)
		})
	}
}

// BenchmarkAdopt takes a whole catalog over on a new stream.
func BenchmarkAdopt(b *testing.B) {
	for _, size := range []int{1_000, 1_000_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			c, _ := synced(b, size)
			for b.Loop() {
				c.OpenStream(epoch)
				c.ExpectEndMarker()
				for held := range slices.Chunk(c.ResumableServices(), 64) {
					c.AdoptServices(held)
					c.TakeChanges()
				}
				apply(b, c, wire.Event{Operation: wire.End})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size), "ns/service")
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
