package wire_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// benchmarkServices returns a small service and one at the limits.
func benchmarkServices(b *testing.B) map[string]*federation.Service {
	large := wantService(b)
	for i := range limits.Endpoints - len(large.Endpoints) {
		large.Endpoints = append(large.Endpoints, federation.Endpoint{
			Address: address(b, fmt.Sprintf("10.0.%d.%d", i/256, i%256)), Port: 443, Labels: []string{"eu"},
		})
	}
	for i := range limits.Instances - len(large.Instances) {
		large.Instances = append(large.Instances, federation.Instance{
			ID: fmt.Sprintf("v%d", i+2), Protocol: federation.HTTPS, EndpointSelector: []string{"eu"},
			Metadata: []federation.Pair{{Key: "SNI", Value: "web.int"}},
		})
	}
	return map[string]*federation.Service{"small": wantService(b), "large": large}
}

func BenchmarkDecode(b *testing.B) {
	for name, service := range benchmarkServices(b) {
		b.Run(name, func(b *testing.B) {
			m := must.Get(wiretest.Response(wire.Event{Operation: wire.Upsert, Name: service.Name, Service: service}, "n", "c"))(b)
			b.SetBytes(int64(proto.Size(m)))
			b.ReportAllocs()
			for b.Loop() {
				must.Get(wire.Decode(m))(b)
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for name, service := range benchmarkServices(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must.Get(wire.NewEncoded(service))(b)
			}
		})
	}
}
