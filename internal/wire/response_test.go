package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// resource returns a resource of our type with the bytes in it.
func resource(fields ...[]byte) *anypb.Any {
	return &anypb.Any{TypeUrl: wire.ResourceURL, Value: join(fields...)}
}

func TestDecode(t *testing.T) {
	const (
		unknown = rdpb.StreamResponse_UNKNOWN
		upsert  = rdpb.StreamResponse_UPSERT
		del     = rdpb.StreamResponse_DELETE
	)
	web := wire.Event{Operation: wire.Upsert, Name: "web", Service: wantService(t)}
	withdrawn := wire.Event{Operation: wire.Delete, Name: "web"}
	byID := wire.Event{Operation: wire.Delete, Name: "web", ID: "web"}
	known := web
	known.ID = "web.fed.example"
	good := []accepted[*rdpb.StreamResponse, wire.Event]{
		{"empty", &rdpb.StreamResponse{}, wire.Event{Operation: wire.Alive}},
		{"alive", &rdpb.StreamResponse{ResourceUrl: wire.ResourceURL, Nonce: "n", Context: "c"}, wire.Event{Operation: wire.Alive}},
		{"upsert", &rdpb.StreamResponse{Operation: upsert, Resource: resource(goldenService)}, web},
		{"upsert with an ID that is not the name", &rdpb.StreamResponse{Operation: upsert, ResourceId: "web.fed.example", Resource: resource(goldenService)}, known},
		{"upsert with an ID that is the name", &rdpb.StreamResponse{Operation: upsert, ResourceId: "web", Resource: resource(goldenService)}, web},
		{"upsert with a type of another authority", &rdpb.StreamResponse{Operation: upsert, Resource: &anypb.Any{
			TypeUrl: "types.example/federation.types.v1alpha2.FederatedService", Value: goldenService,
		}}, web},
		{"upsert with unknown fields", &rdpb.StreamResponse{Operation: upsert, Resource: resource(
			num(6, 1), str(7, "san"), str(8, "HTTP"), goldenService, str(12, "x"), str(9999, "x"),
		)}, web},
		{"upsert with a name twice", &rdpb.StreamResponse{Operation: upsert, Resource: resource(str(1, "old"), goldenService)}, web},
		{"delete by ID", &rdpb.StreamResponse{Operation: del, ResourceId: "web"}, byID},
		{"delete by resource", &rdpb.StreamResponse{Operation: del, Resource: resource(goldenService)}, withdrawn},
		{"delete by resource, with an ID that is not the name", &rdpb.StreamResponse{Operation: del, ResourceId: "web.fed.example", Resource: resource(goldenService)}, withdrawn},
		{"delete by ID, with a resource that has no name", &rdpb.StreamResponse{Operation: del, ResourceId: "web", Resource: resource()}, byID},
		{"delete of a service that is not valid", &rdpb.StreamResponse{Operation: del, Resource: resource(str(1, "web"), str(3, "\xff"), msg(9))}, withdrawn},
	}

	other := "type.googleapis.com/federation.types.v1alpha1.FederatedService"
	bad := []refused[*rdpb.StreamResponse]{
		{"nothing", nil, federation.ReasonMissing, `response: required`},
		{"about another type", &rdpb.StreamResponse{ResourceUrl: other}, federation.ReasonUndecodable, `resource_url: "` + other + `" is not ` + wire.ResourceURL},
		{"no operation, with an ID", &rdpb.StreamResponse{ResourceId: "web"}, federation.ReasonUndecodable, `service "web": operation: 0 is neither UPSERT (1) nor DELETE (2)`},
		{"no operation, with a resource", &rdpb.StreamResponse{Resource: resource(goldenService)}, federation.ReasonUndecodable, `service "web": operation: 0 is neither UPSERT (1) nor DELETE (2)`},
		{"unknown operation", &rdpb.StreamResponse{Operation: 3, ResourceId: "web"}, federation.ReasonUndecodable, `service "web": operation: 3 is neither UPSERT (1) nor DELETE (2)`},
		{"negative operation", &rdpb.StreamResponse{Operation: -1}, federation.ReasonUndecodable, `operation: -1 is neither UPSERT (1) nor DELETE (2)`},
		{"upsert without a resource", &rdpb.StreamResponse{Operation: upsert, ResourceId: "web"}, federation.ReasonMissing, `service "web": resource: required`},
		{"upsert without a name", &rdpb.StreamResponse{Operation: upsert, ResourceId: "id", Resource: resource()}, federation.ReasonMissing, `service "id": name: required`},
		{"resource of another type", &rdpb.StreamResponse{Operation: upsert, Resource: &anypb.Any{TypeUrl: other, Value: goldenService}}, federation.ReasonUndecodable, `service "web": resource.type_url: "` + other + `" is not ` + wire.ResourceURL},
		{"resource without a type", &rdpb.StreamResponse{Operation: del, ResourceId: "web", Resource: &anypb.Any{}}, federation.ReasonUndecodable, `service "web": resource.type_url: "" is not ` + wire.ResourceURL},
		{"resource that is cut", &rdpb.StreamResponse{Operation: upsert, Resource: resource(goldenService[:len(goldenService)-1])}, federation.ReasonUndecodable, `service "web": resource.value: malformed, or a string in it is not valid UTF-8`},
		{"resource that is cut in its first field", &rdpb.StreamResponse{Operation: upsert, ResourceId: "id", Resource: resource(goldenService[:3])}, federation.ReasonUndecodable, `service "id": resource.value: malformed, or a string in it is not valid UTF-8`},
		{"resource with a string that is not UTF-8", &rdpb.StreamResponse{Operation: upsert, Resource: resource(str(1, "web"), str(2, "\xff"))}, federation.ReasonUndecodable, `service "web": resource.value: malformed, or a string in it is not valid UTF-8`},
		{"resource with a name that is not UTF-8", &rdpb.StreamResponse{Operation: upsert, Resource: resource(str(1, "w\xff"))}, federation.ReasonUndecodable, `service "w\xff": resource.value: malformed, or a string in it is not valid UTF-8`},
		{"delete of nothing", &rdpb.StreamResponse{Operation: del}, federation.ReasonMissing, `resource_id: required`},
		{"delete of a cut resource", &rdpb.StreamResponse{Operation: del, ResourceId: "id", Resource: resource(str(1, "web"), []byte{0x12})}, federation.ReasonUndecodable, `service "web": resource.value: malformed, or a string in it is not valid UTF-8`},
		{"delete of a name that is not UTF-8", &rdpb.StreamResponse{Operation: del, Resource: resource(str(1, "w\xff"))}, federation.ReasonUndecodable, `service "w\xff": resource.name: not valid UTF-8: "w\xff"`},
	}
	expectRead(t, wire.Decode, good, bad)
}

// TestDecodeHostile decodes messages of 4 MiB with as many entries as fit. They must
// neither take memory for each entry nor time for more than one pass over the bytes.
func TestDecodeHostile(t *testing.T) {
	tests := []struct {
		name  string
		value []byte
		text  string
	}{
		{"endpoints", fill(msg(9)), `endpoints: more than 1000 entries`},
		{"labels of an endpoint", join(msg(9), msg(9, fill(str(3, "")))), `endpoints[1].labels: more than 64 entries`},
		{"metadata", msg(11, fill(msg(3))), `instances[0].metadata: more than 64 entries`},
		{"a name", str(1, strings.Repeat("x", hostileBytes)), `service "` + strings.Repeat("x", 128) + `"... (512 bytes): name: 4194304 bytes, the limit is 512`},
		{"an fqdn", str(5, strings.Repeat("x.", hostileBytes/2)), `name: required`},
		{"unknown fields", fill(num(6, 0)), `name: required`},
		{"unknown groups", fill([]byte{0x33}), `resource.value: malformed, or a string in it is not valid UTF-8`},
	}
	for _, tt := range tests {
		m := &rdpb.StreamResponse{Operation: rdpb.StreamResponse_UPSERT, Resource: resource(tt.value)}
		expectCheap(t, tt.name, tt.text, func() (wire.Event, error) { return wire.Decode(m) })
	}
}

// TestDecodeCutsNamesInErrors refuses messages with a name and an ID that are too
// long. What is kept of them has the longest length that a name may have.
func TestDecodeCutsNamesInErrors(t *testing.T) {
	long := strings.Repeat("x", limits.NameBytes+1)
	for _, m := range []*rdpb.StreamResponse{
		{ResourceId: long},
		{ResourceId: long, Resource: resource(str(1, long)), Operation: rdpb.StreamResponse_UPSERT},
	} {
		event, err := wire.Decode(m)
		invalid, ok := errors.AsType[*federation.InvalidError](err)
		if !ok || invalid.Service != long[1:] || event.ID != long[1:] {
			t.Errorf("the event is %+v with the error %v", event, err)
		}
	}
}

// TestEqualServicesGetEqualBytes encodes a service with many labels, which a map
// without an order holds on the way, in both versions.
func TestEqualServicesGetEqualBytes(t *testing.T) {
	service := wantDraft(t)
	service.Instances = []federation.Instance{{ID: "v1", Protocol: federation.HTTP}}
	service.Labels = nil
	var labels []byte
	for i := range limits.Labels {
		key := fmt.Sprintf("k%02d", i)
		service.Labels = append(service.Labels, federation.Pair{Key: key})
		labels = append(labels, msg(4, str(1, key), str(2, ""))...)
	}
	event := wire.Event{Operation: wire.Upsert, Name: "web", Service: service}
	newer := must.Get(wire.NewEncoded(service))(t)
	older := must.Get(wire.EncodeV1Alpha1(event, "", false))(t)
	for version, value := range map[string][]byte{"v1alpha2": newer.Resource().GetValue(), "v1alpha1": older.GetResource().GetValue()} {
		if !bytes.Contains(value, labels) {
			t.Errorf("%s: the labels are not in order", version)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	remove := wire.Event{Operation: wire.Delete, Name: "\xff"}
	if got, err := wire.EncodeDelete(remove); err == nil || got != nil || !strings.HasPrefix(err.Error(), `encode service "\xff": `) {
		t.Errorf("%+v has the resource %v, %v", remove, got, err)
	}
	for _, event := range []wire.Event{{Operation: wire.Alive}, remove} {
		if got, err := wire.EncodeV1Alpha1(event, "", true); err == nil || got != nil {
			t.Errorf("%+v is %v, %v", event, got, err)
		}
	}
}
