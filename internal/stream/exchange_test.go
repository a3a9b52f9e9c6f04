package stream

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// One stream, on which the owner sends everything that it may or may not. Each
// response gets exactly one answer, and none of them ends the stream.
func TestExchange(t *testing.T) {
	const session = "SESSION" // stands for the context that the consumer chose
	upserts := func(nonce, context, name string) *rdpb.StreamResponse {
		response := must.Get(wiretest.Response(upsert(name), nonce, context))(t)
		response.ResourceId = name
		return response
	}
	odd, torn := upserts("7", session, "e"), upserts("8", session, "f")
	odd.Operation, torn.Resource = 9, &anypb.Any{TypeUrl: wire.ResourceURL}
	empty := func(nonce string) *rdpb.StreamResponse {
		return &rdpb.StreamResponse{Nonce: nonce, Context: session, ResourceUrl: wire.ResourceURL}
	}
	withdrawn := empty("4")
	withdrawn.Operation, withdrawn.ResourceId = rdpb.StreamResponse_DELETE, "a"

	steps := []struct {
		name     string
		response *rdpb.StreamResponse
		applied  string // "": nothing
		refusal  string // part of the message of the NACK; "": an ACK is due
	}{
		{"new service", upserts("1", session, "a"), "upsert a", ""},
		{"empty nonce, as the public implementation has it", upserts("", session, "b"), "upsert b", ""},
		{"no context", upserts("3", "", "c"), "upsert c", ""},
		{"withdrawn service", withdrawn, "delete a", ""},
		{"nothing", empty("5"), "alive", ""},
		{"context of another session", upserts("6", "other\n", "d"), "", `service "d": context: "other\n" is not the context of this session`},
		{"unknown operation", odd, "", `service "e": operation: `},
		{"service that the wire refuses", torn, "", "required"},
		{"service that the catalog refuses", upserts("9", session, "refuse"), "upsert refuse", `service "refuse": fqdn: "refuse.example" is outside`},
		{"no response at all", nil, "", "response: required"},
		{"long nonce", empty(strings.Repeat("n", 100_000)), "alive", ""},
		{"a service again", upserts("1", session, "a"), "upsert a", ""},
	}
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.apply = refuseOne
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			chosen, err := subscription(stream)
			if err != nil {
				return err
			}
			for _, step := range steps {
				if step.response.GetContext() == session {
					step.response.Context = chosen
				}
				got, err := exchange(stream, step.response)
				if err != nil {
					return err
				}
				if got.GetResourceUrl() != wire.ResourceURL || got.GetResponseNonce() != step.response.GetNonce() || got.GetContext() != chosen {
					t.Errorf("%s: the answer is %.300v", step.name, got)
				}
				if !answers(got.GetStatus(), step.refusal) {
					t.Errorf("%s: the status is %v, want %q", step.name, got.GetStatus(), step.refusal)
				}
			}
			return silent(stream)
		})
		sim.run(sim.config())
		time.Sleep(time.Hour)

		var applied, responded []string
		passedOver := 0
		for _, step := range steps {
			if step.applied != "" {
				applied = append(applied, step.applied)
			} else {
				passedOver++
			}
			if step.refusal == "" {
				responded = append(responded, strings.Fields(step.applied)[0])
			}
		}
		if diff := cmp.Diff(applied, sim.Details("applied")); diff != "" {
			t.Errorf("applied, -want +got:\n%s", diff)
		}
		if diff := cmp.Diff(responded, sim.Details("responded")); diff != "" {
			t.Errorf("counted, -want +got:\n%s", diff)
		}
		if n, over := len(sim.Records("refused")), len(sim.Records("passed over")); n != len(steps)-len(responded) || over != passedOver {
			t.Errorf("%d refusals counted, and %d before the sink, want %d and %d", n, over, len(steps)-len(responded), passedOver)
		}
		if lost := sim.Records("lost"); lost != nil {
			t.Errorf("the stream ended: %v", lost)
		}
	})
}

// refuseOne is what a catalog says that refuses the service of that name.
func refuseOne(event wire.Event) *federation.InvalidError {
	if event.Name != "refuse" {
		return nil
	}
	return &federation.InvalidError{Service: event.Name, Field: "fqdn", Reason: federation.ReasonOutOfZone, Rule: `"refuse.example" is outside`}
}

// answers reports whether the status of an answer is an acknowledgement, or a refusal with the
// text.
func answers(s *rpcstatus.Status, refusal string) bool {
	if refusal == "" {
		return s != nil && s.GetCode() == 0
	}
	return s.GetCode() == int32(codes.InvalidArgument) && strings.Contains(s.GetMessage(), refusal)
}

// Each session has its own context, so that a late message of an earlier one
// can be told.
func TestContextIsFresh(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			session, err := subscription(stream)
			sim.Record("session", session)
			return err
		})
		_, stop := sim.run(sim.config())
		time.Sleep(2 * time.Minute)
		stop()
		sessions := sim.Details("session")
		slices.Sort(sessions)
		if n := len(sim.Records("opened")); n < 3 || len(slices.Compact(sessions)) != n {
			t.Errorf("%d streams, contexts %q", n, sessions)
		}
	})
}

// The owner may ask for services of the consumer: the stream of v1alpha2 goes
// both ways. There are none, and no answer is due.
func TestRequestOfOwner(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			session, err := subscription(stream)
			if err != nil {
				return err
			}
			if err := stream.Send(&rdpb.BidirectionalStream{Request: wire.Subscribe("mine")}); err != nil {
				return err
			}
			if err := publish(stream, session, upsert("a")); err != nil {
				return err
			}
			return silent(stream)
		})
		sim.run(sim.config())
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"upsert a"}, sim.Details("applied")); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if lost := sim.Records("lost"); lost != nil {
			t.Errorf("the stream ended: %v", lost)
		}
	})
}

// What an owner sent before it ended the stream counts, although it reads no
// acknowledgement any more.
func TestLastWords(t *testing.T) {
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			session, err := subscription(stream)
			if err != nil {
				return err
			}
			for _, name := range []string{"a", "b", "c"} {
				response, err := wiretest.Response(upsert(name), "n", session)
				if err != nil {
					return err
				}
				if err := stream.Send(&rdpb.BidirectionalStream{Response: response}); err != nil {
					return err
				}
			}
			return status.Error(codes.Unauthenticated, "go away")
		})
		sim.run(sim.config())
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"upsert a", "upsert b", "upsert c"}, sim.Details("applied")); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if diff := cmp.Diff([]string{"Unauthenticated"}, sim.Details("ended")); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}
