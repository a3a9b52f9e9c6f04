package wire_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestParseRequest(t *testing.T) {
	good := []accepted[*rdpb.StreamRequest, wire.Request]{
		{"ACK without resource_url", &rdpb.StreamRequest{ResponseNonce: "n", Status: &status.Status{}}, wire.Request{Nonce: "n"}},
		{"answer without status", &rdpb.StreamRequest{ResponseNonce: "n", ResourceUrl: wire.ResourceURL}, wire.Request{Nonce: "n"}},
		{"NACK with the code of the public implementation", &rdpb.StreamRequest{ResponseNonce: "n", Status: &status.Status{Code: 14, Message: "no"}}, wire.Request{Nonce: "n", Refusal: "no"}},
		{"NACK without a message", &rdpb.StreamRequest{ResponseNonce: "n", Status: &status.Status{Code: 3}}, wire.Request{Nonce: "n", Refusal: "InvalidArgument"}},
		{"NACK with an unknown code", &rdpb.StreamRequest{ResponseNonce: "n", Status: &status.Status{Code: -1}}, wire.Request{Nonce: "n", Refusal: "Code(4294967295)"}},
	}

	bad := []refused[*rdpb.StreamRequest]{
		{"nothing", nil, federation.ReasonMissing, `request: required`},
		{"initial without resource_url", &rdpb.StreamRequest{Context: "c"}, federation.ReasonMissing, `resource_url: required`},
		{"initial for another type", &rdpb.StreamRequest{ResourceUrl: "x"}, federation.ReasonUndecodable, `resource_url: "x" is not ` + wire.ResourceURL},
		{"answer for another type", &rdpb.StreamRequest{ResourceUrl: "x", ResponseNonce: "n"}, federation.ReasonUndecodable, `resource_url: "x" is not ` + wire.ResourceURL},
	}
	expectRead(t, wire.ParseRequest, good, bad)
}

// TestNackOfAnyText makes NACKs of errors with any text, which can all be sent.
func TestNackOfAnyText(t *testing.T) {
	for _, text := range []string{"", "\xff\xfe", strings.Repeat("ü", wire.MaxRefusalBytes), "x" + strings.Repeat("ü", wire.MaxRefusalBytes)} {
		m := wire.Answer("n", "c", &federation.InvalidError{Rule: text})
		if _, err := proto.Marshal(m); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if n := len(m.GetStatus().GetMessage()); n > wire.MaxRefusalBytes {
			t.Errorf("message has %d bytes", n)
		}
		request := must.Get(wire.ParseRequest(m))(t)
		if request.Refusal == "" {
			t.Errorf("%q: a NACK was read as an ACK", text)
		}
	}
}

// TestNackOfLongestText makes the longest text of an InvalidError, with everything in it
// escaped. It is not cut.
func TestNackOfLongestText(t *testing.T) {
	m := minimal()
	m.Name = strings.Repeat("\x00", limits.NameBytes)
	m.Endpoints = slices.Repeat(m.Endpoints, limits.Endpoints)
	m.Instances = slices.Repeat(m.Instances, limits.Instances)
	m.Instances[limits.Instances-1] = &typespb.FederatedService_Instance{Id: "v1", Protocol: "HTTP", Metadata: map[string]string{
		strings.Repeat("\x00", limits.KeyBytes): strings.Repeat("\xff", limits.ValueBytes),
	}}
	_, err := wire.DecodeService(m, wire.AddressPolicy{})
	invalid, refused := errors.AsType[*federation.InvalidError](err)
	if !refused {
		t.Fatal("accepted")
	}
	if got := wire.Answer("n", "c", invalid).GetStatus().GetMessage(); got != err.Error() {
		t.Errorf("a text of %d bytes was cut to %d", len(err.Error()), len(got))
	}
}
