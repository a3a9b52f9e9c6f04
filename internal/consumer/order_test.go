package consumer_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// An update is acknowledged after it was published, and announced after that.
func TestPublishThenAcknowledgeThenAnnounce(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		published := make(chan struct{})
		sim.publish = func(c consumer.Changes) {
			if len(c.Services) > 0 {
				<-published
			}
		}
		sim.misbehave("upsert web web.fed.example 192.0.2.1\nhang")
		m, _ := sim.run(sim.config())

		if answers := sim.Details("ack", "nack"); len(answers) > 0 || m.Status().Services != 0 {
			t.Errorf("before the update is published: answers %v, status %+v", answers, m.Status())
		}
		close(published)
		if answers := sim.Details("ack", "nack"); len(answers) != 1 || m.Status().Services != 1 {
			t.Errorf("in the end: answers %v, status %+v", answers, m.Status())
		}
		// The consumer counts a response when it has sent the acknowledgement.
		if diff := cmp.Diff([]string{"responded upsert", "published"}, sim.Details("told")); diff != "" {
			t.Errorf("the observer was told (-want +got):\n%s", diff)
		}
	})
}

// An update is acknowledged when Await has returned. Meanwhile it is published, the clock goes on, and
// a stream that is lost ends the wait.
func TestAwaitBeforeAcknowledge(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		stop := sim.misbehave("upsert web web.fed.example 192.0.2.1\nhang")
		safe, ended := make(chan struct{}), false
		config := sim.config()
		config.Await = func(ctx context.Context, over <-chan struct{}) {
			select {
			case <-safe:
			case <-over:
				ended = true
			case <-ctx.Done():
			}
		}
		m, _ := sim.run(config)
		time.Sleep(time.Minute)
		if answers := sim.Details("ack", "nack"); len(answers) > 0 || m.Status().Services != 1 {
			t.Errorf("while Await waits: answers %v, status %+v", answers, m.Status())
		}
		stop()
		time.Sleep(catalog.Grace + time.Second)
		if s := m.Status(); !ended || s.State != catalog.Stale {
			t.Errorf("after the loss: Await ended by it: %t, status %+v", ended, s)
		}
		sim.misbehave("upsert web web.fed.example 192.0.2.1\nhang")
		close(safe)
		time.Sleep(time.Minute)
		if answers := sim.Details("ack", "nack"); len(answers) != 1 {
			t.Errorf("in the end: answers %v", answers)
		}
	})
}

// deaf is an owner that sends services for as long as there is room, and reads no
// acknowledgement.
type deaf struct {
	rdpb.UnimplementedDiscoveryServiceServer
	t *testing.T
}

func (d deaf) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	for i := range 50_000 {
		s := services.At(fmt.Sprintf("s%d.fed.example", i), "192.0.2.1")
		response, err := wiretest.Response(wire.Event{Operation: wire.Upsert, Name: s.Name, Service: s}, strconv.Itoa(i), "")
		if err != nil {
			return err
		}
		if err := stream.Send(&rdpb.BidirectionalStream{Response: response}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// Responses that have arrived and wait to be applied are no silence: the catalog is
// not complete while they do. Here they wait because there is no room left for an
// acknowledgement.
func TestArrivedIsNoSilence(t *testing.T) {
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		sim.Serve(sim.T, ownerAddress, func(ctx context.Context, listener net.Listener) error {
			server := grpc.NewServer(grpc.Creds(sim.Source("owner.example").Server()))
			rdpb.RegisterDiscoveryServiceServer(server, deaf{t: t})
			defer context.AfterFunc(ctx, server.Stop)()
			return server.Serve(listener)
		})
		m, _ := sim.run(sim.config())
		time.Sleep(20 * time.Second) // longer than settle, shorter than such an owner is put up with
		if s := m.Status(); s.State != catalog.Syncing || s.Services == 0 || s.Services == 50_000 {
			t.Errorf("while responses wait, the owner is %v with %d services", s.State, s.Services)
		}
	})
}
