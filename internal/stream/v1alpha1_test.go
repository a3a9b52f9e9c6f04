package stream

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

type handler1 func(rdpb1.DiscoveryService_EstablishStreamServer) error

type script1 struct {
	rdpb1.UnimplementedDiscoveryServiceServer
	handler handler1
}

func (s script1) EstablishStream(stream rdpb1.DiscoveryService_EstablishStreamServer) error {
	return s.handler(stream)
}

// serve1 is serve for v1alpha1.
func (sim *testConsumer) serve1(address string, handler handler1) {
	sim.listenAndServe(address, func(server *grpc.Server) {
		rdpb1.RegisterDiscoveryServiceServer(server, script1{handler: handler})
	})
}

// config1 is config for v1alpha1.
func (sim *testConsumer) config1() Config {
	config := sim.config()
	config.Version = wire.V1Alpha1
	return config
}

// draft returns the resource for a service of that name.
func draft(t *testing.T, name string) *anypb.Any {
	t.Helper()
	service := *upsert(name).Service
	service.SANs = []string{"spiffe://owner.example/" + name}
	response := must.Get(wire.EncodeV1Alpha1(wire.Event{Operation: wire.Upsert, Name: name, Service: &service}, "", false))(t)
	return response.GetResource()
}

// exchange1 sends a response and returns the request that answers it.
func exchange1(stream rdpb1.DiscoveryService_EstablishStreamServer, response *rdpb1.StreamResponse) (*rdpb1.StreamRequest, error) {
	if err := stream.Send(response); err != nil {
		return nil, err
	}
	return stream.Recv()
}

// One stream of v1alpha1 with everything on it. Each response gets exactly one
// answer, and none of them ends the stream.
func TestExchangeV1Alpha1(t *testing.T) {
	const (
		create = rdpb1.StreamResponse_CREATE
		update = rdpb1.StreamResponse_UPDATE
		del    = rdpb1.StreamResponse_DELETE
	)
	steps := []struct {
		response *rdpb1.StreamResponse
		applied  string // "": nothing
		refusal  string // part of the message of the NACK; "": an ACK is due
	}{
		{&rdpb1.StreamResponse{Nonce: "1", ResourceUrl: wire.ResourceURLV1Alpha1, Operation: create, Resource: draft(t, "a")}, "upsert a", ""},
		{&rdpb1.StreamResponse{ResourceUrl: wire.ResourceURLV1Alpha1, Operation: create, Resource: draft(t, "b")}, "upsert b", ""},
		{&rdpb1.StreamResponse{Nonce: "3", Operation: update, Resource: draft(t, "a")}, "upsert a", ""},
		{&rdpb1.StreamResponse{Nonce: "4", Operation: del, Resource: draft(t, "a")}, "delete a", ""},
		{&rdpb1.StreamResponse{Nonce: "5"}, "end", ""},
		{&rdpb1.StreamResponse{Nonce: "6", Operation: 9, Resource: draft(t, "c")}, "", `service "c": operation: `},
		{&rdpb1.StreamResponse{Nonce: "7", Operation: create}, "", "resource: required"},
		{&rdpb1.StreamResponse{Nonce: "8", ResourceUrl: wire.ResourceURL}, "", "resource_url: "},
		{&rdpb1.StreamResponse{Nonce: "9", Operation: create, Resource: draft(t, "refuse")}, "upsert refuse", `service "refuse": fqdn: "refuse.example" is outside`},
		{&rdpb1.StreamResponse{Nonce: "10", Operation: create, Resource: draft(t, "d")}, "upsert d", ""},
	}
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.apply = refuseOne
		sim.serve1(ownerAddress, func(stream rdpb1.DiscoveryService_EstablishStreamServer) error {
			if err := stream.SetHeader(metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)); err != nil {
				return err
			}
			first, err := stream.Recv()
			if err != nil {
				return err
			}
			if first.GetResourceUrl() != wire.ResourceURLV1Alpha1 || first.GetResponseNonce() != "" || first.GetStatus() != nil {
				t.Errorf("the first request is %v", first)
			}
			for _, step := range steps {
				got, err := exchange1(stream, step.response)
				if err != nil {
					return err
				}
				if got.GetResourceUrl() != wire.ResourceURLV1Alpha1 || got.GetResponseNonce() != step.response.GetNonce() || !answers(got.GetStatus(), step.refusal) {
					t.Errorf("answer to %v is %v, want %q", step.response, got, step.refusal)
				}
			}
			<-stream.Context().Done()
			return nil
		})
		sim.run(sim.config1())
		time.Sleep(time.Hour)

		var applied []string
		for _, step := range steps {
			if step.applied != "" {
				applied = append(applied, step.applied)
			}
		}
		if diff := cmp.Diff(applied, sim.Details("applied")); diff != "" {
			t.Errorf("applied, -want +got:\n%s", diff)
		}
		if diff := cmp.Diff([]string{"c", "", ""}, sim.Details("passed over")); diff != "" {
			t.Errorf("refused before the sink, -want +got:\n%s", diff)
		}
		if lost, opened := sim.Records("lost"), sim.Records("opened"); lost != nil || len(opened) != 1 || len(sim.Records("marked")) != 1 {
			t.Errorf("opened %v, lost %v", opened, lost)
		}
	})
}

// An owner that does not speak the version is tried again, as it may be upgraded,
// and the log says what to look at.
func TestVersionThatOwnerDoesNotSpeak(t *testing.T) {
	for _, tt := range []struct {
		version  wire.APIVersion
		register func(*grpc.Server)
	}{
		{wire.V1Alpha1, func(s *grpc.Server) { rdpb.RegisterDiscoveryServiceServer(s, script{handler: good}) }},
		{wire.V1Alpha2, func(s *grpc.Server) { rdpb1.RegisterDiscoveryServiceServer(s, script1{}) }},
	} {
		t.Run(tt.version.String(), func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.listenAndServe(ownerAddress, tt.register)
				config := sim.config()
				config.Version = tt.version
				sim.run(config)
				time.Sleep(10 * time.Minute)
				ended := sim.Details("ended")
				if len(ended) < 5 || ended[0] != codes.Unimplemented.String() {
					t.Errorf("sessions ended with %v", ended)
				}
				lines := sim.Logged.Lines()
				if len(lines) != 1 || !strings.Contains(lines[0], "set api to the version that the owner speaks") {
					t.Errorf("the log is %q", lines)
				}
			})
		})
	}
}
