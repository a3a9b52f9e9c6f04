package duplex_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
)

// plain is an owner that sends no header before its first response, as gRPC does by
// itself.
type plain struct {
	rdpb.UnimplementedDiscoveryServiceServer

	t *testing.T
}

func (p plain) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	event := federation.Event{Operation: federation.Upsert, Name: "w", Service: service("w", 443, 0)}
	m, err := wire.Encode(event, "1", first.GetRequest().GetContext())
	if err != nil {
		return err
	}
	if err := stream.Send(&rdpb.BidirectionalStream{Response: m}); err != nil {
		return err
	}
	for err == nil {
		_, err = stream.Recv()
	}
	return err
}

// TestLateHeader has east, which publishes as well, dial an owner that sends no header before
// it has read the request: the request must not wait for that.
func TestLateHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, rules)
		must.Run(t, w.east.mirror.Run)
		server := grpc.NewServer(grpc.Creds(w.west.source.Server()))
		rdpb.RegisterDiscoveryServiceServer(server, plain{t: t})
		w.Serve(t, westAddress, network.GRPC(server))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, want := w.east.shows(), "synced w:443"; got != want {
			t.Errorf("east has %q, want %q", got, want)
		}
	})
}
