package relay

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// numbered returns a service with two endpoints, in one of its versions.
func numbered(b *testing.B, i, version int) packed.Service {
	b.Helper()
	fqdn := must.Get(federation.ParseFQDN(fmt.Sprintf("s%d.fed.example", i)))(b)
	s := &federation.Service{
		Name: fmt.Sprint("fed/s", i), FQDN: fqdn, Labels: []federation.Pair{{Key: "tier", Value: "public"}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}
	for _, name := range []string{fmt.Sprintf("192.0.2.%d", version), "gw.fed.example"} {
		address := must.Get(federation.ParseAddress(name))(b)
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: 443})
	}
	return packed.PackService(s)
}

// relayed returns a relay that has published so many services.
func relayed(b *testing.B, services int) *Source {
	b.Helper()
	s := &Source{turned: make(chan struct{}, 1), first: nil, refused: newStreamRefusals()}
	puppet := &puppet{part: make(chan source.Part, 1)}
	c := source.NewCatalog(source.Config{
		Registry: registry.New(), Logger: slog.New(slog.DiscardHandler), Sources: []source.Entry{{Name: "1", Source: puppet, Lifetime: source.NoLifetime}},
	})
	go func() { _ = c.Run(b.Context()) }()
	s.part = <-puppet.part
	s.part.Replace(nil)
	changes := consumer.Changes{Status: synced()}
	for i := range services {
		changes.Services = append(changes.Services, catalog.Change{Name: fmt.Sprint("fed/s", i), Packed: numbered(b, i, 1)})
	}
	s.publishMirror(changes)
	return s
}

func synced() consumer.Status {
	return consumer.Status{Summary: catalog.Summary{State: catalog.Synced, Generation: 1, Live: 1, Known: true}}
}

// puppet gives its part away.
type puppet struct{ part chan source.Part }

// Run implements source.Source.
func (p *puppet) Run(ctx context.Context, part source.Part) {
	p.part <- part
	<-ctx.Done()
}

// BenchmarkUpdate relays a change of one service, from the mirror to the registry.
func BenchmarkUpdate(b *testing.B) {
	s := relayed(b, 10_000)
	var versions [2]consumer.Changes
	for i := range versions {
		p := numbered(b, 7, i+2)
		versions[i] = consumer.Changes{Services: []catalog.Change{{Name: p.Name(), Packed: p}}, Status: synced()}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.publishMirror(versions[i%2])
	}
}

// BenchmarkMemory reports what a relayed service takes beside the packed form that the
// mirror holds: its message, and its places in the part and in the registry.
func BenchmarkMemory(b *testing.B) {
	const services = 100_000
	var before, after runtime.MemStats
	for b.Loop() {
		held := make([]catalog.Change, services)
		for i := range held {
			p := numbered(b, i, 1)
			held[i] = catalog.Change{Name: p.Name(), Packed: p}
		}
		s := relayed(b, 0)
		runtime.GC()
		runtime.ReadMemStats(&before)
		s.publishMirror(consumer.Changes{Services: held, Status: synced()})
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(s)
		runtime.KeepAlive(held)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/services, "B/service")
	b.ReportMetric(0, "ns/op")
}
