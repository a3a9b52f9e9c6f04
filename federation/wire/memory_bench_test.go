package wire_test

import (
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
)

// BenchmarkCatalogMemory measures what a catalog of 100,000 decoded services
// keeps in memory: plain ones, and ones that tags, labels, selectors and metadata
// describe with words that other services have as well.
func BenchmarkCatalogMemory(b *testing.B) {
	const size = 100_000
	for _, described := range []bool{false, true} {
		b.Run(fmt.Sprintf("described=%v", described), func(b *testing.B) {
			messages := make([][]byte, size)
			for i := range messages {
				m := catalogMessage(i, described)
				var err error
				if messages[i], err = proto.Marshal(m); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				catalog := make([]*federation.Service, size)
				before := heap()
				for i, encoded := range messages {
					var m typespb.FederatedService
					if err := proto.Unmarshal(encoded, &m); err != nil {
						b.Fatal(err)
					}
					var err error
					if catalog[i], err = wire.DecodeService(&m, wire.Policy{}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(heap()-before)/size, "B/service")
				runtime.KeepAlive(catalog)
			}
		})
	}
}

// catalogMessage returns the i-th service of a catalog.
func catalogMessage(i int, described bool) *typespb.FederatedService {
	m := &typespb.FederatedService{
		Name: fmt.Sprintf("service-%07d", i),
		Fqdn: fmt.Sprintf("svc-%07d.team-%02d.fed.example", i, i%100),
	}
	for n := range 3 {
		e := &typespb.FederatedService_Endpoint{Address: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&0xff, i&0xff), Port: uint32(8080 + n)}
		in := &typespb.FederatedService_Instance{Id: fmt.Sprintf("v%d", n+1), Protocol: "HTTPS"}
		if described {
			e.Labels = []string{[]string{"eu-west", "eu-east", "us-west"}[n]}
			in.EndpointSelector = e.Labels
			in.Metadata = map[string]string{"version": fmt.Sprintf("1.%d.0", i%50+n), "SNI": m.Fqdn}
		}
		m.Endpoints, m.Instances = append(m.Endpoints, e), append(m.Instances, in)
	}
	if described {
		m.Tags = []string{"production", "http", fmt.Sprintf("tier-%d", i%4)}
		m.Labels = map[string]string{"team": fmt.Sprintf("team-%02d", i%100), "environment": "production"}
	}
	return m
}

// heap returns the octets that live objects take.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
