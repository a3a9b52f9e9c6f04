package wire_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// The messages of this file are made of field numbers and bytes, as in the public
// definitions of the protocol, and not with the stubs: with these, a mistake in the
// .proto files would be at both ends and go unnoticed.

func str(number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), s)
}

func msg(number protowire.Number, fields ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(fields, nil))
}

func num(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func join(fields ...[]byte) []byte { return bytes.Join(fields, nil) }

// goldenService has every field of FederatedService, in the order in which a
// deterministic encoder writes them.
var goldenService = join(
	str(1, "web"),
	str(2, "Web shop"),
	str(3, "a"), str(3, "b"),
	msg(4, str(1, "app"), str(2, "shop")), msg(4, str(1, "tier"), str(2, "")),
	str(5, "web.fed.example"),
	msg(9, str(1, "192.0.2.1"), num(2, 8080), str(3, "eu"), str(3, "fast"), str(4, "ingress")),
	msg(9, str(1, "2001:db8::1"), num(2, 8443), str(3, "us")),
	msg(9, str(1, "gw.example.net"), num(2, 443)),
	str(10, "spiffe://o1/web"), str(10, "spiffe://o1/web2"),
	msg(11, str(1, "v1"), str(2, "HTTP"),
		msg(3, str(1, "HOSTNAME"), str(2, "web.int")), msg(3, str(1, "PORT"), str(2, "80")), msg(3, str(1, "zone"), str(2, "eu")),
		str(4, "eu"), str(4, "none"), str(5, "first")),
	msg(11, str(1, "no DNS name!"), str(2, "MTLS")),
)

func wantService(t testing.TB) *federation.Service {
	t.Helper()
	return &federation.Service{
		Name:        "web",
		FQDN:        services.FQDN("web.fed.example"),
		Description: "Web shop",
		Tags:        []string{"a", "b"},
		Labels:      []federation.Pair{{Key: "app", Value: "shop"}, {Key: "tier", Value: ""}},
		SANs:        []string{"spiffe://o1/web", "spiffe://o1/web2"},
		Endpoints: []federation.Endpoint{
			{Address: address(t, "192.0.2.1"), Port: 8080, Labels: []string{"eu", "fast"}, Description: "ingress"},
			{Address: address(t, "2001:db8::1"), Port: 8443, Labels: []string{"us"}},
			{Address: address(t, "gw.example.net"), Port: 443},
		},
		Instances: []federation.Instance{
			{
				ID: "v1", Protocol: federation.HTTP, EndpointSelector: []string{"eu", "none"}, Description: "first",
				Metadata: []federation.Pair{{Key: "HOSTNAME", Value: "web.int"}, {Key: "PORT", Value: "80"}, {Key: "zone", Value: "eu"}},
			},
			{ID: "no DNS name!", Protocol: federation.MTLS},
		},
	}
}

func address(t testing.TB, s string) federation.Address {
	t.Helper()
	return must.Get(federation.ParseAddress(s))(t)
}

// comparers lets go-cmp compare the value types of package federation.
var comparers = cmp.Options{
	cmp.Comparer(func(a, b federation.FQDN) bool { return a == b }),
	cmp.Comparer(func(a, b federation.Address) bool { return a == b }),
}

func TestGoldenResponse(t *testing.T) {
	tests := []struct {
		name   string
		golden []byte
		event  wire.Event
	}{
		{
			name: "upsert",
			golden: join(str(1, "n-1"), str(2, wire.ResourceURL), str(3, "web"),
				msg(4, str(1, wire.ResourceURL), msg(2, goldenService)), num(5, 1), str(6, "ctx")),
			event: wire.Event{Operation: wire.Upsert, Name: "web", Service: wantService(t)},
		},
		{
			name: "delete",
			golden: join(str(1, "n-1"), str(2, wire.ResourceURL), str(3, "web"),
				msg(4, str(1, wire.ResourceURL), msg(2, str(1, "web"))), num(5, 2), str(6, "ctx")),
			event: wire.Event{Operation: wire.Delete, Name: "web"},
		},
		{
			name:   "end",
			golden: join(str(1, "n-1"), str(2, wire.ResourceURL), str(6, "ctx")),
			event:  wire.Event{Operation: wire.End},
		},
	}
	for _, tt := range tests {
		m := must.Get(wiretest.Response(tt.event, "n-1", "ctx"))(t)
		expectGolden(t, tt.name, tt.golden, m, wire.Decode, unmarked(tt.event))
		expectGolden(t, tt.name+" of both", msg(2, tt.golden), &rdpb.BidirectionalStream{Response: m}, func(m *rdpb.BidirectionalStream) (bool, error) {
			return m.GetRequest() == nil, nil
		}, true)
	}
}

func TestGoldenRequest(t *testing.T) {
	tests := []struct {
		name    string
		golden  []byte
		message *rdpb.StreamRequest
		request wire.Request
	}{
		{
			name:    "initial",
			golden:  join(str(1, wire.ResourceURL), str(4, "ctx")),
			message: wire.Subscribe("ctx"),
			request: wire.Request{Initial: true, Context: "ctx"},
		},
		{
			name:    "ACK",
			golden:  join(str(1, wire.ResourceURL), str(2, "n-1"), msg(3), str(4, "ctx")),
			message: wire.Answer("n-1", "ctx", nil),
			request: wire.Request{Nonce: "n-1", Context: "ctx"},
		},
		{
			name:    "ACK of an empty nonce",
			golden:  join(str(1, wire.ResourceURL), msg(3), str(4, "ctx")),
			message: wire.Answer("", "ctx", nil),
			request: wire.Request{Context: "ctx"},
		},
		{
			name:    "NACK",
			golden:  join(str(1, wire.ResourceURL), str(2, "n-1"), msg(3, num(1, 3), str(2, "fqdn: required")), str(4, "ctx")),
			message: wire.Answer("n-1", "ctx", &federation.InvalidError{Rule: "fqdn: required"}),
			request: wire.Request{Nonce: "n-1", Context: "ctx", Refusal: "fqdn: required"},
		},
	}
	for _, tt := range tests {
		expectGolden(t, tt.name, tt.golden, tt.message, wire.ParseRequest, tt.request)
		expectGolden(t, tt.name+" of both", msg(1, tt.golden), &rdpb.BidirectionalStream{Request: tt.message}, func(m *rdpb.BidirectionalStream) (bool, error) {
			return m.GetResponse() == nil, nil
		}, true)
	}
}

func TestGoldenService(t *testing.T) {
	expectBytes(t, must.Get(wire.EncodeService(wantService(t)))(t), goldenService)

	var m typespb.FederatedService
	must.Do(t, proto.Unmarshal(goldenService, &m))
	got := must.Get(wire.DecodeService(&m, wire.AddressPolicy{}))(t)
	if diff := cmp.Diff(wantService(t), got, comparers); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
}

func TestMethodName(t *testing.T) {
	for got, want := range map[string]string{
		rdpb.DiscoveryService_EstablishStream_FullMethodName:  "/federation.resourcediscovery.v1alpha2.DiscoveryService/EstablishStream",
		rdpb1.DiscoveryService_EstablishStream_FullMethodName: "/federation.resourcediscovery.v1alpha1.DiscoveryService/EstablishStream",
	} {
		if got != want {
			t.Errorf("method is %s, want %s", got, want)
		}
	}
}

func expectBytes(t *testing.T, m proto.Message, want []byte) {
	t.Helper()
	got := must.Get(proto.MarshalOptions{Deterministic: true}.Marshal(m))(t)
	if !bytes.Equal(got, want) {
		t.Errorf("%T is encoded as\n%x, want\n%x", m, got, want)
	}
}
