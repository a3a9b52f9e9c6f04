package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
)

// expensive are services that take long to compile, within what package wire
// accepts. Each version differs from the last one in its last endpoint.
var expensive = map[string]func(s *federation.Service){
	"endpoints": func(*federation.Service) {},
	"labels": func(s *federation.Service) {
		for i := range s.Endpoints {
			for l := range federation.MaxLabels {
				s.Endpoints[i].Labels = append(s.Endpoints[i].Labels, fmt.Sprint("l", l))
			}
		}
	},
	"selectors": func(s *federation.Service) {
		for i := range s.Endpoints {
			for l := range federation.MaxLabels {
				s.Endpoints[i].Labels = append(s.Endpoints[i].Labels, fmt.Sprint("l", (i+l)%federation.MaxEndpoints))
			}
		}
		for i := range s.Instances {
			for l := range federation.MaxSelectors {
				s.Instances[i].EndpointSelector = append(s.Instances[i].EndpointSelector, fmt.Sprint("l", (7*i+l)%federation.MaxEndpoints))
			}
		}
	},
	"metadata": func(s *federation.Service) {
		for i := range s.Instances {
			for l := range federation.MaxMetadata {
				s.Instances[i].Metadata = append(s.Instances[i].Metadata, federation.Pair{Key: fmt.Sprint("Key-", l), Value: fmt.Sprint(i)})
			}
		}
	},
}

func expensiveService(tb testing.TB, shape string, n int) *federation.Service {
	tb.Helper()
	s := large(tb, shape, 0)
	for i := range s.Endpoints {
		s.Endpoints[i].Labels = nil
	}
	for i := range s.Instances {
		s.Instances[i].EndpointSelector = nil
	}
	expensive[shape](s)
	s.Endpoints[len(s.Endpoints)-1].Port = uint16(n%60_000 + 1)
	return s
}

// BenchmarkNeighbour is the time from the receipt of a small update until queries
// see it, beside an owner that sends versions of the most expensive service as
// fast as they are taken.
func BenchmarkNeighbour(b *testing.B) {
	for _, shape := range append(slices.Sorted(maps.Keys(expensive)), "nobody") {
		b.Run(shape, func(b *testing.B) {
			_, _, owners := writer(b, "flood", "neighbour")
			ctx, cancel := context.WithCancel(b.Context())
			var flood sync.WaitGroup
			floods := 0
			if shape != "nobody" {
				versions := []*federation.Service{expensiveService(b, shape, 1), expensiveService(b, shape, 2)}
				publish := publisher(owners[0])
				flood.Go(func() {
					for ; ctx.Err() == nil; floods++ {
						publish(versions[floods%2])
					}
				})
			}
			var took []time.Duration
			small := [2]*federation.Service{}
			for i := range small {
				s := large(b, "web", i)
				s.Endpoints, s.Instances = s.Endpoints[:1], s.Instances[:1]
				small[i] = s
			}
			pace := time.NewTicker(7 * time.Millisecond) // not in step with the flood
			defer pace.Stop()
			publish, began := publisher(owners[1]), time.Now()
			for i := 0; b.Loop(); i++ {
				<-pace.C
				start := time.Now()
				publish(small[i%2])
				took = append(took, time.Since(start))
			}
			elapsed := time.Since(began)
			cancel()
			flood.Wait()
			slices.Sort(took)
			milliseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
			b.ReportMetric(milliseconds(took[len(took)/2]), "ms-median")
			b.ReportMetric(milliseconds(took[len(took)*99/100]), "ms-p99")
			b.ReportMetric(milliseconds(took[len(took)-1]), "ms-max")
			if floods > 0 {
				b.ReportMetric(milliseconds(elapsed)/float64(floods), "ms/flood")
			}
		})
	}
}

// BenchmarkBatch is how long a batch of small services takes to be visible, which several server
// blocks publish, and a batch that confirms them.
func BenchmarkBatch(b *testing.B) {
	for _, blocks := range []int{1, 4} {
		a, block, owners := writer(b, "owner")
		for range blocks - 1 {
			other := a.newBlock(block.config)
			owners[0].join(other, 0)
			a.do(func() { a.attached = append(a.attached, other) })
		}
		var versions [2]consumer.Changes
		for v := range versions {
			var all []*federation.Service
			for i := range 64 {
				s := large(b, fmt.Sprintf("s%d", i), v)
				s.Endpoints, s.Instances = s.Endpoints[:2], s.Instances[:2]
				all = append(all, s)
			}
			versions[v] = upsert(all...)
		}
		for i := range versions[0].Services {
			first, second := &versions[0].Services[i], &versions[1].Services[i]
			first.Was, second.Was = second.Packed, first.Packed
		}
		confirmed := [2]consumer.Changes{versions[0], versions[0]}
		for v := range confirmed {
			confirmed[v].Services = slices.Clone(versions[0].Services)
			for i := range confirmed[v].Services {
				change := &confirmed[v].Services[i]
				change.Was, change.Generation = change.Packed, uint64(2+v)
			}
		}
		for name, batches := range map[string]*[2]consumer.Changes{"update": &versions, "confirm": &confirmed} {
			owners[0].publish(versions[0])
			b.Run(fmt.Sprintf("%s/%d", name, blocks), func(b *testing.B) {
				b.ReportAllocs()
				for i := 1; b.Loop(); i++ {
					owners[0].publish(batches[i%2])
				}
			})
		}
	}
}
