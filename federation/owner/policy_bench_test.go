package owner

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

const (
	benchServices  = 100_000
	benchConsumers = 1000
)

// forClasses returns a policy under which each class is told its own zone, and all are
// told the shared zone under another name.
func forClasses(tb testing.TB, shared string) *policy.Policy {
	rules := []policy.Rule{{FQDNs: []string{"*." + shared + ".example"}, To: []string{"*"}, As: map[string]string{shared + ".example": "shared.example"}}}
	for i := range registrytest.Classes {
		rules = append(rules, policy.Rule{FQDNs: []string{fmt.Sprintf("*.zone%02d.example", i)}, To: []string{registrytest.ClassID(i)}})
	}
	return policyOf(tb, rules...)
}

// fleet is an owner with consumers, each on a connection of its own.
type fleet struct {
	registry *registry.Registry
	messages chan error // nil for one that has reached a consumer, or why its stream has ended
}

func newFleet(b *testing.B) *fleet {
	b.Helper()
	f := &fixture{registry: registry.New(), authority: pki.New(b)}
	set(b, f.registry, registrytest.Spread(benchServices))
	f.registry.SetPolicy(forClasses(b, "on"))
	server := must.Get(New(Config{
		Registry: f.registry, Credentials: f.source(b, ownerID).Server(), Window: 64,
		Logger: slog.New(slog.DiscardHandler), Gate: must.Get(gate.New(gate.Config{
			Limits: gate.Limits{Connections: 2 * benchConsumers, ConnectionsPerAddress: 2 * benchConsumers, Handshakes: 2 * benchConsumers, HandshakesPerAddress: 2 * benchConsumers},
			Logger: slog.New(slog.DiscardHandler),
		}))(b),
	}))(b)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(b)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	all := &fleet{f.registry, make(chan error, 1<<16)}
	// What all have to be told together, with the end markers, and each class at least:
	// after which the next one comes, as the owner has the others come later.
	const messages = benchConsumers*(1+registrytest.Shared) + benchConsumers/registrytest.Classes*(benchServices-2*registrytest.Shared)
	const each = benchConsumers / registrytest.Classes * (1 + registrytest.Shared + (benchServices-2*registrytest.Shared)/registrytest.Classes)
	for class := range registrytest.Classes {
		own := f.credentials(b, mtls.Leaf{Name: "test", URIs: []string{registrytest.ClassID(class)}})
		for range benchConsumers / registrytest.Classes {
			conn := must.Get(grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(own)))(b)
			stream := must.Get(rdpb.NewDiscoveryServiceClient(conn).EstablishStream(ctx))(b)
			c := &client{b, stream}
			c.request(wire.Subscribe("session"))
			running.Go(func() {
				defer conn.Close()
				for {
					m, err := stream.Recv()
					all.messages <- err
					if err != nil {
						return
					}
					c.request(wire.Ack(m.GetResponse().GetNonce(), "session"))
				}
			})
		}
		all.await(b, each)
	}
	all.await(b, messages-registrytest.Classes*each)
	return all
}

// await waits for that many messages.
func (f *fleet) await(b *testing.B, n int) {
	b.Helper()
	for range n {
		must.Do(b, <-f.messages)
	}
}

// BenchmarkFleet has 1,000 consumers in 50 classes, and 100,000 services. It reports how
// long the call takes that changes something, and how long it takes from its beginning
// until the last consumer has that: a service that only one class
// may see, one that all may see in another shape, or the policy, which then hides 5
// services from all consumers and shows them 5 others; that in ten messages for each
// consumer.
func BenchmarkFleet(b *testing.B) {
	f := newFleet(b)
	services := registrytest.Spread(benchServices)
	version := 1
	change := func(i int) func() {
		return func() {
			version++
			s := *services[i]
			s.Description = fmt.Sprintf("version %d", version)
			upsert(b, f.registry, &s)
		}
	}
	shared := "on"
	for _, bm := range []struct {
		name     string
		messages int
		change   func()
	}{
		{"change=service-of-one-class", benchConsumers / registrytest.Classes, change(benchServices - 1)},
		{"change=service-of-all", benchConsumers, change(0)},
		{"change=policy", 2 * registrytest.Shared * benchConsumers, func() {
			shared = map[string]string{"on": "off", "off": "on"}[shared]
			f.registry.SetPolicy(forClasses(b, shared))
		}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var took, called []time.Duration
			for b.Loop() {
				begun := time.Now()
				bm.change()
				called = append(called, time.Since(begun))
				f.await(b, bm.messages)
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			slices.Sort(called)
			b.ReportMetric(float64(called[len(called)/2].Microseconds())/1000, "call-p50-ms")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[(len(took)-1)*99/100].Microseconds())/1000, "p99-ms")
		})
		if shared == "off" {
			bm.change()
			f.await(b, bm.messages)
		}
	}
}
