package owner

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
)

const (
	benchServices  = 10_000
	benchClasses   = 50
	benchConsumers = 1000
	benchShared    = 5 // services of each of the zones on.example and off.example, at the beginning of the catalog
)

// classID returns the identity of the consumers of a class.
func classID(class int) string { return fmt.Sprintf("spiffe://class%02d.example/consumer", class) }

// spread returns a catalog: services that every class may be told, by which of two
// policies is in force, and then of each class its own.
func spread() []*federation.Service {
	services := catalogOf(benchServices)
	for i, s := range services {
		zone := fmt.Sprintf("zone%02d", i%benchClasses)
		switch i / benchShared {
		case 0:
			zone = "on"
		case 1:
			zone = "off"
		}
		fqdn, err := federation.ParseFQDN(s.Name + "." + zone + ".example")
		if err != nil {
			panic(err)
		}
		s.FQDN = fqdn
	}
	return services
}

// forClasses returns a policy under which each class is told its own zone, and all are
// told the shared zone under another name.
func forClasses(tb testing.TB, shared string) *policy.Policy {
	rules := []policy.Rule{{FQDNs: []string{"*." + shared + ".example"}, To: []string{"*"}, As: map[string]string{shared + ".example": "shared.example"}}}
	for i := range benchClasses {
		rules = append(rules, policy.Rule{FQDNs: []string{fmt.Sprintf("*.zone%02d.example", i)}, To: []string{classID(i)}})
	}
	return policyOf(tb, rules...)
}

// fleet is an owner with consumers, each on a connection of its own.
type fleet struct {
	registry *Registry
	messages chan error // nil for one that has reached a consumer, or why its stream has ended
}

func newFleet(b *testing.B) *fleet {
	b.Helper()
	f := &fixture{registry: NewRegistry(), authority: pki.New(b)}
	set(b, f.registry, spread())
	f.registry.SetPolicy(forClasses(b, "on"))
	server := must.Get(New(Config{
		Registry: f.registry, Credentials: f.source(b, ownerID).Server(), Window: 64,
		Limits: Limits{Connections: 2 * benchConsumers, ConnectionsPerAddress: 2 * benchConsumers, Handshakes: 2 * benchConsumers, HandshakesPerAddress: 2 * benchConsumers},
		Logger: slog.New(slog.DiscardHandler),
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
	const messages = benchConsumers*(1+benchShared) + benchConsumers/benchClasses*(benchServices-2*benchShared)
	const each = benchConsumers / benchClasses * (1 + benchShared + (benchServices-2*benchShared)/benchClasses)
	for class := range benchClasses {
		own := f.credentials(b, mtls.Leaf{Name: "test", URIs: []string{classID(class)}})
		for range benchConsumers / benchClasses {
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
	all.await(b, messages-benchClasses*each)
	return all
}

// await waits for that many messages.
func (f *fleet) await(b *testing.B, n int) {
	b.Helper()
	for range n {
		must.Do(b, <-f.messages)
	}
}

// BenchmarkFleet has 1,000 consumers in 50 classes, and 10,000 services. It reports how
// long the call takes that changes something, and how long it takes from its beginning
// until the last consumer has that: a service that only one class
// may see, one that all may see in another shape, or the policy, which then hides 5
// services from all consumers and shows them 5 others; that in ten messages for each
// consumer.
func BenchmarkFleet(b *testing.B) {
	f := newFleet(b)
	services := spread()
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
		{"change=service-of-one-class", benchConsumers / benchClasses, change(benchServices - 1)},
		{"change=service-of-all", benchConsumers, change(0)},
		{"change=policy", 2 * benchShared * benchConsumers, func() {
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

// BenchmarkClasses has 1,000 subscriptions that have taken the whole catalog of 10,000
// services, without a policy, in one class, and in 50 classes of which each is told nearly
// all services, some of them in a shape of its own. A service changes, and all take
// that. It reports the memory of the whole before.
func BenchmarkClasses(b *testing.B) {
	services := spread()
	for _, classes := range []int{0, 1, benchClasses} {
		b.Run(fmt.Sprintf("classes=%d", classes), func(b *testing.B) {
			before := heap()
			r := NewRegistry()
			set(b, r, services)
			var rules []policy.Rule
			for i := range classes {
				rules = append(rules, policy.Rule{FQDNs: []string{fmt.Sprintf("*.zone%02d.example", i)}, Strip: []string{"description"}, To: []string{classID(i)}})
			}
			rules = append(rules, policy.Rule{To: []string{"*"}})
			if classes > 0 {
				r.SetPolicy(policyOf(b, rules...))
			}
			subscriptions := make([]*Subscription, benchConsumers)
			for i := range subscriptions {
				s := r.SubscribeAs([]federation.ID{idOf(b, classID(i%max(classes, 1)))})
				for updates := s.take(nil, 1024); len(updates) > 0; {
					updates = s.take(updates[:0], 1024)
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
					s.take(nil, 1)
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
