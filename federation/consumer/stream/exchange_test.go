package stream

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// One stream, on which the owner sends everything that it may or may not. Each
// response gets exactly one answer, and none of them ends the stream.
func TestExchange(t *testing.T) {
	t.Parallel()
	service := func(name string) *anypb.Any {
		response := must.Get(wire.Encode(upsert(name), "", ""))(t)
		return response.GetResource()
	}
	const session = "SESSION" // stands for the context that the consumer chose

	for _, tc := range []struct {
		name     string
		response *rdpb.StreamResponse
		applied  string // "": nothing
		refusal  string // part of the message of the NACK; "": an ACK is due
	}{
		{
			"new service",
			&rdpb.StreamResponse{Nonce: "1", Context: session, ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_UPSERT, Resource: service("a")},
			"upsert a", "",
		},
		{
			"empty nonce, as the public implementation has it",
			&rdpb.StreamResponse{Context: session, ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_UPSERT, Resource: service("b")},
			"upsert b", "",
		},
		{
			"no context",
			&rdpb.StreamResponse{Nonce: "3", ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_UPSERT, Resource: service("c")},
			"upsert c", "",
		},
		{
			"withdrawn service",
			&rdpb.StreamResponse{Nonce: "4", Context: session, ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_DELETE, ResourceId: "a"},
			"delete a", "",
		},
		{
			"nothing",
			&rdpb.StreamResponse{Nonce: "5", Context: session, ResourceUrl: wire.ResourceURL},
			"alive", "",
		},
		{
			"context of another session",
			&rdpb.StreamResponse{Nonce: "6", Context: "other\n", ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_UPSERT, ResourceId: "d", Resource: service("d")},
			"", `service "d": context: "other\n" is not the context of this session`,
		},
		{
			"unknown operation",
			&rdpb.StreamResponse{Nonce: "7", Context: session, ResourceUrl: wire.ResourceURL, Operation: 9, Resource: service("e")},
			"", `service "e": operation: `,
		},
		{
			"service that the wire refuses",
			&rdpb.StreamResponse{Nonce: "8", Context: session, ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_UPSERT, Resource: &anypb.Any{TypeUrl: wire.ResourceURL}},
			"", "required",
		},
		{
			"service that the catalog refuses",
			&rdpb.StreamResponse{Nonce: "9", Context: session, ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_UPSERT, Resource: service("refuse")},
			"upsert refuse", `service "refuse": fqdn: "refuse.example" is outside`,
		},
		{
			"no response at all",
			nil,
			"", "response: required",
		},
		{
			"long nonce",
			&rdpb.StreamResponse{Nonce: strings.Repeat("n", 100_000), Context: session, ResourceUrl: wire.ResourceURL},
			"alive", "",
		},
		{
			"a service again",
			&rdpb.StreamResponse{Nonce: "1", Context: session, ResourceUrl: wire.ResourceURL, Operation: rdpb.StreamResponse_UPSERT, Resource: service("a")},
			"upsert a", "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.apply = func(event federation.Event) *federation.InvalidError {
					if event.Name != "refuse" {
						return nil
					}
					return &federation.InvalidError{Service: event.Name, Field: "fqdn", Reason: federation.ReasonOutOfZone, Rule: `"refuse.example" is outside`}
				}
				var got *rdpb.StreamRequest
				var chosen string
				sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) (err error) {
					if chosen, err = subscription(stream); err != nil {
						return err
					}
					if tc.response.GetContext() == session {
						tc.response.Context = chosen
					}
					if got, err = exchange(stream, tc.response); err != nil {
						return err
					}
					if err := publish(stream, chosen, upsert("after")); err != nil { // the stream lives
						return err
					}
					return silent(stream)
				})
				sim.run(sim.config())
				time.Sleep(time.Hour)
				synctest.Wait()

				if got.GetResourceUrl() != wire.ResourceURL || got.GetResponseNonce() != tc.response.GetNonce() || got.GetContext() != chosen || got.GetStatus() == nil {
					t.Errorf("answer is %.300v", got)
				}
				var applied, responded, refused []string
				if tc.applied != "" {
					applied = []string{tc.applied}
				}
				switch {
				case tc.refusal == "":
					responded = []string{strings.Fields(tc.applied)[0]}
					if got.GetStatus().GetCode() != 0 {
						t.Errorf("not acknowledged: %v", got)
					}
				case got.GetStatus().GetCode() != int32(codes.InvalidArgument) || !strings.Contains(got.GetStatus().GetMessage(), tc.refusal):
					t.Errorf("status is %v, want InvalidArgument with %q", got.GetStatus(), tc.refusal)
				default:
					refused = sim.Details("refused")
					if len(refused) != 1 {
						t.Errorf("refusals counted: %v", refused)
					}
				}
				if before := tc.refusal != "" && tc.applied == ""; before != (len(sim.Records("passed over")) == 1) {
					t.Errorf("the sink heard of %v, refused before it came there: %v", sim.Details("passed over"), before)
				}
				if diff := cmp.Diff(append(applied, "upsert after"), sim.Details("applied")); diff != "" {
					t.Errorf("applied, -want +got:\n%s", diff)
				}
				if diff := cmp.Diff(append(responded, "upsert"), sim.Details("responded")); diff != "" {
					t.Errorf("counted, -want +got:\n%s", diff)
				}
				if lost := sim.Records("lost"); lost != nil {
					t.Errorf("the stream ended: %v", lost)
				}
			})
		})
	}
}

// Each session has its own context, so that a late message of an earlier one
// can be told.
func TestContextIsFresh(t *testing.T) {
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			session, err := subscription(stream)
			sim.Record("session", session)
			return err
		})
		_, stop := sim.run(sim.config())
		time.Sleep(10 * time.Minute)
		stop()
		sessions := sim.Details("session")
		slices.Sort(sessions)
		if n := len(sim.Records("opened")); n < 10 || len(slices.Compact(sessions)) != n {
			t.Errorf("%d streams, contexts %q", n, sessions)
		}
	})
}

// The owner may ask for services of the consumer: the stream of v1alpha2 goes
// both ways. There are none, and no answer is due.
func TestRequestOfOwner(t *testing.T) {
	t.Parallel()
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

func TestEndOfCatalog(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		header metadata.MD
		first  []federation.Event // before the empty response
		want   []string
	}{
		"announced":             {metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked), []federation.Event{upsert("a")}, []string{"upsert a", "end"}},
		"announced, no service": {metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked), nil, []string{"end"}},
		"announced twice":       {metadata.Pairs(wire.CatalogEndHeader, "x", wire.CatalogEndHeader, wire.CatalogEndMarked), nil, []string{"end"}},
		"not announced":         {nil, []federation.Event{upsert("a")}, []string{"upsert a", "alive"}},
		"announced otherwise":   {metadata.Pairs(wire.CatalogEndHeader, "maybe"), nil, []string{"alive"}},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
				sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
					if err := stream.SetHeader(tc.header); err != nil { // goes out with the first message
						return err
					}
					session, err := subscription(stream)
					if err != nil {
						return err
					}
					for _, event := range append(tc.first, federation.Event{Operation: federation.End}) {
						if err := publish(stream, session, event); err != nil {
							return err
						}
					}
					return silent(stream)
				})
				sim.run(sim.config())
				time.Sleep(time.Hour)
				if diff := cmp.Diff(tc.want, sim.Details("applied")); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				announced := slices.Contains(tc.want, "end")
				if marked := len(sim.Records("marked")) == 1; marked != announced {
					t.Errorf("the sink heard of a mark: %v, want %v", marked, announced)
				}
			})
		})
	}
}

// An owner that has nothing to say sends no header either. The stream is open
// all the same, and no end of it is due.
func TestSilentOwner(t *testing.T) {
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			if err := stream.SetHeader(metadata.Pairs(wire.CatalogEndHeader, wire.CatalogEndMarked)); err != nil {
				return err
			}
			session, err := subscription(stream)
			if err != nil {
				return err
			}
			time.Sleep(24 * time.Hour)
			if err := publish(stream, session, federation.Event{Operation: federation.End}); err != nil {
				return err
			}
			return silent(stream)
		})
		sim.run(sim.config())
		time.Sleep(24*time.Hour - time.Second)
		if opened := sim.Records("opened"); len(opened) != 1 || opened[0].At > time.Second {
			t.Errorf("opened: %v", opened)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"end"}, sim.Details("applied")); diff != "" {
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
	t.Parallel()
	simulation.Run(t, newTestConsumer, func(t *testing.T, sim *testConsumer) {
		sim.serve(ownerAddress, func(stream rdpb.DiscoveryService_EstablishStreamServer) error {
			session, err := subscription(stream)
			if err != nil {
				return err
			}
			for _, name := range []string{"a", "b", "c"} {
				response, err := wire.Encode(upsert(name), "n", session)
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
