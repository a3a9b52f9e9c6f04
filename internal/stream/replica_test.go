package stream

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// alone counts the streams that are open, and fails the test when there are two. An owner
// sees the end of a stream a little later than the consumer that has ended it.
func alone(t *testing.T, open *atomic.Int32, handler handler) handler {
	t.Helper()
	return func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
		time.Sleep(time.Millisecond)
		if n := open.Add(1); n > 1 {
			t.Errorf("%d streams are open", n)
		}
		defer open.Add(-1)
		return handler(stream)
	}
}

// slowly publishes as good does, after a while.
func slowly(after time.Duration) handler {
	return func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
		select {
		case <-time.NewTimer(after).C:
			return good(stream)
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// announcing sends a header that announces a mark, and nothing else.
func announcing(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	if err := stream.SendHeader(metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)); err != nil {
		return err
	}
	return silent(stream)
}

// A replica that says nothing is left for one that has something to say, which
// then keeps its stream.
func TestSilentReplicaIsLeft(t *testing.T) {
	for name, first := range map[string]handler{
		"says nothing":     silent,
		"announces a mark": announcing,
		"is about to":      slowly(firstPatience + time.Second),
		"does not authenticate": func(rdpb.DiscoveryService_EstablishStreamServer) error {
			return status.Error(codes.Unauthenticated, "no")
		},
		"answers in another way": func(rdpb.DiscoveryService_EstablishStreamServer) error { return status.Error(codes.Internal, "no") },
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				var open atomic.Int32
				sim.serve("a:1", alone(t, &open, first))
				sim.serve("b:1", alone(t, &open, good))
				config := sim.config()
				config.Addresses = []string{"a:1", "b:1"}
				sim.run(config)
				time.Sleep(firstPatience + time.Second)
				if diff := cmp.Diff([]string{"upsert a"}, sim.Details("applied")); diff != "" {
					t.Fatalf("-want +got:\n%s", diff)
				}
				time.Sleep(time.Hour)
				if diff := cmp.Diff([]string{"a:1", "b:1"}, sim.Details("dialed")); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if sim.Records("parked") != nil {
					t.Errorf("parked: %v", sim.Details("parked"))
				}
			})
		})
	}
}

// A stream on which something came is never given up, nor is the only one that can
// be had.
func TestSilenceIsPatientlyBorne(t *testing.T) {
	alive := func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
		session, err := subscription(stream)
		if err != nil {
			return err
		}
		time.Sleep(firstPatience - time.Second)
		if err := publish(stream, session, wire.Event{Operation: wire.End}); err != nil {
			return err
		}
		return silent(stream)
	}
	refused := func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
		if _, err := subscription(stream); err != nil {
			return err
		}
		if _, err := exchange(stream, &rdpb.StreamResponse{Operation: 77}); err != nil {
			return err
		}
		return silent(stream)
	}
	for name, tc := range map[string]struct {
		addresses []string
		handler   handler // of a:1; b:1 says Unauthenticated
		dialed    []string
	}{
		"the only address":           {[]string{"a:1"}, silent, []string{"a:1"}},
		"the only one not parked":    {[]string{"b:1", "a:1"}, silent, []string{"b:1", "a:1"}},
		"one with a heartbeat":       {[]string{"a:1", "b:1"}, alive, []string{"a:1"}},
		"one whose word was refused": {[]string{"a:1", "b:1"}, refused, []string{"a:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.serve("a:1", tc.handler)
				sim.serve("b:1", func(rdpb.DiscoveryService_EstablishStreamServer) error {
					return status.Error(codes.Unauthenticated, "no")
				})
				config := sim.config()
				config.Addresses = tc.addresses
				sim.run(config)
				time.Sleep(time.Hour)
				if diff := cmp.Diff(tc.dialed, sim.Details("dialed")); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}

// Replicas that all take longer to begin than the patience lasts are heard in the
// end.
func TestSlowReplicasAreHeard(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve("a:1", slowly(50*time.Second))
		sim.serve("b:1", slowly(50*time.Second))
		config := sim.config()
		config.Addresses = []string{"a:1", "b:1"}
		sim.run(config)
		time.Sleep(20 * time.Minute)
		if diff := cmp.Diff([]string{"upsert a"}, sim.Details("applied")); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		// The reason is said once for each, and no more than that.
		lines := sim.Logged.Lines()
		if len(lines) != 3 || strings.Count(strings.Join(lines, ""), "sends nothing") != 2 {
			t.Errorf("logged:\n%s", strings.Join(lines, ""))
		}
	})
}

// However long a replica has been away behind one that hangs, it is found within
// two of our steps.
func TestReplicaReturnsBehindSilentOne(t *testing.T) {
	for range 2 {
		simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
			sim.serve("a:1", silent)
			config := sim.config()
			config.Addresses = []string{"a:1", "b:1"}
			sim.run(config)
			time.Sleep(10 * time.Minute)
			sim.serve("b:1", good)
			time.Sleep(2*maxDelay + time.Second)
			if sim.Records("applied") == nil {
				t.Error("not found")
			}
		})
	}
}

// A stream is open before its header comes. What that announces is known when it does, which may
// be long before the first message.
func TestHeaderIsReadWhenItArrives(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			time.Sleep(time.Hour)
			return announcing(stream)
		})
		sim.run(sim.config())
		time.Sleep(2 * time.Hour)
		opened, marked := sim.Records("opened"), sim.Records("marked")
		if len(opened) != 1 || opened[0].At != 0 || len(marked) != 1 || marked[0].At != time.Hour || sim.Records("applied") != nil || sim.Records("lost") != nil {
			t.Errorf("opened %v, marked %v, applied %v, lost %v", opened, marked, sim.Details("applied"), sim.Details("lost"))
		}
	})
}
