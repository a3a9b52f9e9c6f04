package wire

import (
	"testing"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestAvailability sends what an owner says of its catalog through both versions of the API.
func TestAvailability(t *testing.T) {
	for _, event := range []federation.Event{
		{Operation: federation.Unavailable},
		{Operation: federation.Available},
		{Operation: federation.Available, Header: federation.Header{Path: "A,B", Resume: "accepted 1/AA"}},
	} {
		v2 := must.Get(Encode(event, "7", "context"))(t)
		if got, err := Decode(v2, Policy{}); got != event || err != nil {
			t.Errorf("%v is %+v, %v", event, got, err)
		}
		v1 := must.Get(EncodeV1Alpha1(event, "7", false))(t)
		if got, err := DecodeV1Alpha1(v1, Policy{}); got != event || err != nil {
			t.Errorf("%v in v1alpha1 is %+v, %v", event, got, err)
		}
		if v2.GetOperation() != rdpb.StreamResponse_UNKNOWN || v1.GetOperation() != rdpb1.StreamResponse_UNKNOWN || v2.GetResourceId() != "" {
			t.Errorf("%v has an operation or an ID: %v, %v", event, v2, v1)
		}
	}
}

// TestNoAvailability refuses statuses that say nothing of a catalog.
func TestNoAvailability(t *testing.T) {
	for name, tc := range map[string]struct {
		response *rdpb.StreamResponse
		want     string
	}{
		"code":      {&rdpb.StreamResponse{Resource: must.Get(anypb.New(&status.Status{Code: 3}))(t)}, "resource.code: 3 is neither OK (0) nor UNAVAILABLE (14)"},
		"operation": {&rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: must.Get(anypb.New(&status.Status{}))(t)}, `resource.type_url: "type.googleapis.com/google.rpc.Status" is not ` + ResourceURL},
		"ID":        {&rdpb.StreamResponse{ResourceId: "web", Resource: must.Get(anypb.New(&status.Status{}))(t)}, `service "web": resource.type_url: "type.googleapis.com/google.rpc.Status" is not ` + ResourceURL},
		"URL":       {&rdpb.StreamResponse{ResourceUrl: "other", Resource: must.Get(anypb.New(&status.Status{}))(t)}, `resource_url: "other" is not ` + ResourceURL},
		"bytes":     {&rdpb.StreamResponse{Resource: &anypb.Any{TypeUrl: "type.googleapis.com/google.rpc.Status", Value: []byte{0xff}}}, undecodable().Error()},
	} {
		if got, err := Decode(tc.response, Policy{}); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
