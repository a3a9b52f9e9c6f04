package wire_test

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// TestDecline answers the response of a peer that publishes to its owner.
func TestDecline(t *testing.T) {
	m := wire.DeclineResponse(&rdpb.StreamResponse{Nonce: "7", Context: "session", ResourceUrl: wire.ResourceURL})
	if m.GetResponseNonce() != "7" || m.GetContext() != "session" || m.GetResourceUrl() != wire.ResourceURL {
		t.Errorf("the answer is %v", m)
	}
	if request, err := wire.ParseRequest(m); err != nil || request.Initial || request.Refusal != "this owner takes no services from its consumers" {
		t.Errorf("a peer reads %+v, %v", request, err)
	}
	// The answer to a long context is one that a peer can take.
	if _, err := wire.ParseRequest(wire.DeclineResponse(&rdpb.StreamResponse{Context: strings.Repeat("x", wire.MaxContextBytes+1)})); err != nil {
		t.Error(err)
	}
	if _, err := wire.ParseRequest(wire.DeclineResponse(nil)); err != nil {
		t.Error(err)
	}
}
