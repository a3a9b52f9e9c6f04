package agent_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// idOwner sends events, each a minute after the answer to the one before, and
// notes the codes of the answers.
type idOwner struct {
	rdpb.UnimplementedDiscoveryServiceServer

	options []grpc.ServerOption
	events  []federation.Event
	codes   []int32
}

func (o *idOwner) Serve(ctx context.Context, listener net.Listener) error {
	s := grpc.NewServer(o.options...)
	rdpb.RegisterDiscoveryServiceServer(s, o)
	defer context.AfterFunc(ctx, s.Stop)()
	return s.Serve(listener)
}

func (o *idOwner) EstablishStream(stream rdpb.DiscoveryService_EstablishStreamServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for _, ev := range o.events {
		response, err := wire.Encode(ev, "n", "")
		if err != nil {
			return err
		}
		if err := stream.Send(&rdpb.BidirectionalStream{Response: response}); err != nil {
			return err
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		o.codes = append(o.codes, answer.GetRequest().GetStatus().GetCode())
		time.Sleep(time.Minute)
	}
	<-stream.Context().Done()
	return nil
}

// A deletion that names no more than the resource_id of an earlier UPSERT is done.
func TestDeleteByResourceID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		web, api := services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2")
		o := &idOwner{
			options: []grpc.ServerOption{grpc.Creds(w.source(ownerAddress).Server())},
			events: []federation.Event{
				{Operation: federation.Upsert, Name: "web", ID: "7f3a", Service: web},
				{Operation: federation.Upsert, Name: "api", Service: api},
				{Operation: federation.Delete, Name: "7f3a", ID: "7f3a"},
				{Operation: federation.Delete, Name: "7f3a", ID: "7f3a"},
			},
		}
		w.run(ownerAddress, o)
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(90 * time.Second)
		if got := look(b, "web.fed.example"); got != "192.0.2.1 60" {
			t.Fatalf("web is %s", got)
		}
		asking := ask(b, map[string]string{"api.fed.example": "192.0.2.2 60"})
		time.Sleep(time.Hour / 20)
		asking.stop(t)
		if got := look(b, "web.fed.example"); got != "NXDOMAIN" || w.state() != "synced 1/0" {
			t.Errorf("web is %s after its deletion, owner is %s", got, w.state())
		}
		for i, code := range o.codes {
			if code != 0 {
				t.Errorf("response %d got the code %d", i, code)
			}
		}
		if len(o.codes) != len(o.events) {
			t.Errorf("%d answers to %d responses", len(o.codes), len(o.events))
		}
	})
}
