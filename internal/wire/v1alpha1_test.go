package wire_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// goldenDraft has every field of FederatedService in v1alpha1.
var goldenDraft = join(
	str(1, "web"),
	str(2, "Web shop"),
	str(3, "a"), str(3, "b"),
	msg(4, str(1, "app"), str(2, "shop")), msg(4, str(1, "tier"), str(2, "")),
	str(5, "web.fed.example"),
	str(6, "web"),
	str(7, "spiffe://o1/web"),
	str(8, "HTTP"), str(8, "GRPC"),
	msg(9, str(1, "192.0.2.1"), num(2, 8080)),
	msg(9, str(1, "gw.example.net"), num(2, 443)),
)

func wantDraft(t testing.TB) *federation.Service {
	t.Helper()
	sni := []federation.Pair{{Key: "SNI", Value: "web"}}
	return &federation.Service{
		Name:        "web",
		FQDN:        services.FQDN("web.fed.example"),
		Description: "Web shop",
		Tags:        []string{"a", "b"},
		Labels:      []federation.Pair{{Key: "app", Value: "shop"}, {Key: "tier", Value: ""}},
		SANs:        []string{"spiffe://o1/web"},
		Endpoints: []federation.Endpoint{
			{Address: address(t, "192.0.2.1"), Port: 8080},
			{Address: address(t, "gw.example.net"), Port: 443},
		},
		Instances: []federation.Instance{
			{Protocol: federation.HTTP, Metadata: sni, Unnamed: true},
			{Protocol: federation.GRPC, Metadata: sni, Unnamed: true},
		},
	}
}

// draft returns a resource of v1alpha1 with the bytes in it.
func draft(fields ...[]byte) *anypb.Any {
	return &anypb.Any{TypeUrl: wire.ResourceURLV1Alpha1, Value: join(fields...)}
}

// create returns the response that carries such a resource.
func create(fields ...[]byte) *rdpb1.StreamResponse {
	return &rdpb1.StreamResponse{ResourceUrl: wire.ResourceURLV1Alpha1, Operation: rdpb1.StreamResponse_CREATE, Resource: draft(fields...)}
}

func TestGoldenResponseV1Alpha1(t *testing.T) {
	service := func(operation uint64) []byte {
		return join(str(1, "n-1"), str(2, wire.ResourceURLV1Alpha1),
			msg(3, str(1, wire.ResourceURLV1Alpha1), msg(2, goldenDraft)), num(4, operation))
	}
	web := wire.Event{Operation: wire.Upsert, Name: "web", Service: wantDraft(t)}
	tests := []struct {
		name   string
		golden []byte
		event  wire.Event
		known  bool
	}{
		{name: "create", golden: service(1), event: web},
		{name: "update", golden: service(2), event: web, known: true},
		{
			name: "delete",
			golden: join(str(1, "n-1"), str(2, wire.ResourceURLV1Alpha1),
				msg(3, str(1, wire.ResourceURLV1Alpha1), msg(2, str(6, "web"))), num(4, 3)),
			event: wire.Event{Operation: wire.Delete, Name: "web"},
		},
		{
			name:   "end",
			golden: join(str(1, "n-1"), str(2, wire.ResourceURLV1Alpha1)),
			event:  wire.Event{Operation: wire.End},
		},
	}
	for _, tt := range tests {
		m := must.Get(wire.EncodeV1Alpha1(tt.event, "n-1", tt.known))(t)
		expectGolden(t, tt.name, tt.golden, m, wire.DecodeV1Alpha1, unmarked(tt.event))
	}
}

func TestGoldenRequestV1Alpha1(t *testing.T) {
	tests := []struct {
		name    string
		golden  []byte
		message *rdpb1.StreamRequest
		request wire.Request
	}{
		{
			name:    "initial",
			golden:  str(1, wire.ResourceURLV1Alpha1),
			message: wire.SubscribeV1Alpha1(),
			request: wire.Request{Initial: true},
		},
		{
			name:    "ACK",
			golden:  join(str(1, wire.ResourceURLV1Alpha1), str(2, "n-1"), msg(3)),
			message: wire.AnswerV1Alpha1("n-1", nil),
			request: wire.Request{Nonce: "n-1"},
		},
		{
			name:    "ACK of an empty nonce",
			golden:  join(str(1, wire.ResourceURLV1Alpha1), msg(3)),
			message: wire.AnswerV1Alpha1("", nil),
			request: wire.Request{},
		},
		{
			name:    "NACK",
			golden:  join(str(1, wire.ResourceURLV1Alpha1), str(2, "n-1"), msg(3, num(1, 3), str(2, "fqdn: required"))),
			message: wire.AnswerV1Alpha1("n-1", &federation.InvalidError{Rule: "fqdn: required"}),
			request: wire.Request{Nonce: "n-1", Refusal: "fqdn: required"},
		},
	}
	for _, tt := range tests {
		expectGolden(t, tt.name, tt.golden, tt.message, wire.ParseRequestV1Alpha1, tt.request)
	}
}

func TestParseRequestV1Alpha1(t *testing.T) {
	good := []accepted[*rdpb1.StreamRequest, wire.Request]{
		{"ACK without resource_url", &rdpb1.StreamRequest{ResponseNonce: "n", Status: &status.Status{}}, wire.Request{Nonce: "n"}},
	}

	bad := []refused[*rdpb1.StreamRequest]{
		{"nothing", nil, federation.ReasonMissing, `request: required`},
		{"initial without resource_url", &rdpb1.StreamRequest{}, federation.ReasonMissing, `resource_url: required`},
		{"initial for another type", &rdpb1.StreamRequest{ResourceUrl: wire.ResourceURL}, federation.ReasonUndecodable, `resource_url: "` + wire.ResourceURL + `" is not ` + wire.ResourceURLV1Alpha1},
	}
	expectRead(t, wire.ParseRequestV1Alpha1, good, bad)
}

func TestDecodeV1Alpha1(t *testing.T) {
	const (
		update = rdpb1.StreamResponse_UPDATE
		del    = rdpb1.StreamResponse_DELETE
	)
	web := wire.Event{Operation: wire.Upsert, Name: "web", Service: wantDraft(t)}
	withdrawn := wire.Event{Operation: wire.Delete, Name: "web"}
	good := []accepted[*rdpb1.StreamResponse, wire.Event]{
		{"empty", &rdpb1.StreamResponse{}, wire.Event{Operation: wire.Alive}},
		{"alive", &rdpb1.StreamResponse{ResourceUrl: wire.ResourceURLV1Alpha1, Nonce: "n"}, wire.Event{Operation: wire.Alive}},
		{"create", create(goldenDraft), web},
		{"create without resource_url", &rdpb1.StreamResponse{Operation: rdpb1.StreamResponse_CREATE, Resource: draft(goldenDraft)}, web},
		{"update", &rdpb1.StreamResponse{Operation: update, Resource: draft(goldenDraft)}, web},
		{"type of another authority", &rdpb1.StreamResponse{Operation: update, Resource: &anypb.Any{
			TypeUrl: "types.example/federation.types.v1alpha1.FederatedService", Value: goldenDraft,
		}}, web},
		{"unknown fields", create(goldenDraft, str(10, "spiffe://x"), msg(11), str(9999, "x")), web},
		{"name that is not the id", create(goldenDraft, str(1, "The web shop")), web},
		{"id twice", create(str(6, "old"), goldenDraft), web},
		{"protocols in lower case, as in the draft's examples, and twice", create(goldenDraft, str(8, "http"), str(8, "grpc")), web},
		{"delete", &rdpb1.StreamResponse{Operation: del, Resource: draft(goldenDraft)}, withdrawn},
		{"delete with an id only", &rdpb1.StreamResponse{Operation: del, Resource: draft(str(6, "web"))}, withdrawn},
		{"delete of a service that is not valid", &rdpb1.StreamResponse{Operation: del, Resource: draft(str(6, "web"), str(3, "\xff"), msg(9))}, withdrawn},
	}

	const unusable = `is none of CREATE (1), UPDATE (2), DELETE (3)`
	bad := []refused[*rdpb1.StreamResponse]{
		{"nothing", nil, federation.ReasonMissing, `response: required`},
		{"about another type", &rdpb1.StreamResponse{ResourceUrl: wire.ResourceURL}, federation.ReasonUndecodable, `resource_url: "` + wire.ResourceURL + `" is not ` + wire.ResourceURLV1Alpha1},
		{"no operation, with a resource", &rdpb1.StreamResponse{Resource: draft(goldenDraft)}, federation.ReasonUndecodable, `service "web": operation: 0 ` + unusable},
		{"unknown operation", &rdpb1.StreamResponse{Operation: 4, Resource: draft(goldenDraft)}, federation.ReasonUndecodable, `service "web": operation: 4 ` + unusable},
		{"negative operation", &rdpb1.StreamResponse{Operation: -1}, federation.ReasonUndecodable, `operation: -1 ` + unusable},
		{"create without a resource", &rdpb1.StreamResponse{Operation: rdpb1.StreamResponse_CREATE}, federation.ReasonMissing, `resource: required`},
		{"resource of another version", &rdpb1.StreamResponse{Operation: update, Resource: resource(goldenService)}, federation.ReasonUndecodable, `resource.type_url: "` + wire.ResourceURL + `" is not ` + wire.ResourceURLV1Alpha1},
		{"resource that is cut", create(goldenDraft[:len(goldenDraft)-1]), federation.ReasonUndecodable, `service "web": resource.value: malformed, or a string in it is not valid UTF-8`},
		{"resource with a string that is not UTF-8", create(str(6, "web"), str(2, "\xff")), federation.ReasonUndecodable, `service "web": resource.value: malformed, or a string in it is not valid UTF-8`},
		{"delete without a resource", &rdpb1.StreamResponse{Operation: del}, federation.ReasonMissing, `resource: required`},
		{"delete without an id", &rdpb1.StreamResponse{Operation: del, Resource: draft(str(1, "web"))}, federation.ReasonMissing, `resource.id: required`},
		{"delete of an id that is not UTF-8", &rdpb1.StreamResponse{Operation: del, Resource: draft(str(6, "w\xff"))}, federation.ReasonUndecodable, `service "w\xff": resource.id: not valid UTF-8: "w\xff"`},
		{"delete of a cut resource", &rdpb1.StreamResponse{Operation: del, Resource: draft(str(6, "web"), []byte{0x12})}, federation.ReasonUndecodable, `service "web": resource.value: malformed, or a string in it is not valid UTF-8`},

		{"no id", create(str(1, "web")), federation.ReasonMissing, `id: required`},
		{"long id", create(str(6, strings.Repeat("x", 513))), federation.ReasonLimit, `service "` + strings.Repeat("x", 128) + `"... (512 bytes): id: 513 bytes, the limit is 512`},
		{"no san", create(str(6, "web")), federation.ReasonMissing, `service "web": san: required`},
		{"no fqdn, as in the samples of the public implementation", create(str(6, "web"), str(7, "spiffe://o1/web")), federation.ReasonMissing, `service "web": fqdn: required`},
		{"no endpoints", create(str(5, "web.example"), str(6, "web"), str(7, "x"), str(8, "HTTP")), federation.ReasonMissing, `service "web": endpoints: at least one is required`},
		{"no protocols", create(str(5, "web.example"), str(6, "web"), str(7, "x"), msg(9, str(1, "192.0.2.1"), num(2, 1))), federation.ReasonMissing, `service "web": protocols: at least one is required`},
		{"protocol of another kind", create(goldenDraft, str(8, "UDP")), federation.ReasonProtocol, `service "web": protocols[2]: "UDP" is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS`},
		{"empty protocol", create(goldenDraft, str(8, "")), federation.ReasonMissing, `service "web": protocols[2]: required`},
		{"wildcard", create(goldenDraft, str(5, "*.example")), federation.ReasonName, `service "web": fqdn: label has a character other than a-z, 0-9, '-' and '_': "*.example"`},
		{"CIDR block", create(goldenDraft, msg(9, str(1, "192.0.2.0/24"), num(2, 443))), federation.ReasonAddress, `service "web": endpoints[2].address: "192.0.2.0/24" is a CIDR block, an endpoint must be one IP address or host name`},
		{"CIDR block of one address", create(goldenDraft, msg(9, str(1, "2001:db8::1/128"), num(2, 443))), federation.ReasonAddress, `service "web": endpoints[2].address: "2001:db8::1/128" is a CIDR block, an endpoint must be one IP address or host name`},
		{"no port", create(goldenDraft, msg(9, str(1, "192.0.2.1"))), federation.ReasonPort, `service "web": endpoints[2].port: 0 is not in 1 to 65535`},
	}
	expectRead(t, wire.DecodeV1Alpha1, good, bad)
}

// TestDecodeHostileV1Alpha1 is TestDecodeHostile for v1alpha1.
func TestDecodeHostileV1Alpha1(t *testing.T) {
	tests := []struct {
		name  string
		value []byte
		text  string
	}{
		{"protocols", fill(str(8, "")), `protocols: more than 64 entries`},
		{"instances, which are unknown", fill(msg(11)), `id: required`},
	}
	for _, tt := range tests {
		m := create(tt.value)
		expectCheap(t, tt.name, tt.text, func() (wire.Event, error) { return wire.DecodeV1Alpha1(m) })
	}
}

// TestEncodeV1Alpha1 encodes services with more than v1alpha1 can express. The message
// may say less than the service, and nothing that is not true.
func TestEncodeV1Alpha1(t *testing.T) {
	const sni = "SNI"
	endpoint := func(ip string, labels ...string) federation.Endpoint {
		return federation.Endpoint{Address: address(t, ip), Port: 443, Labels: labels, Description: "ingress"}
	}
	instance := func(id string, protocol federation.Protocol, selector ...string) federation.Instance {
		return federation.Instance{ID: id, Protocol: protocol, EndpointSelector: selector, Description: "instance"}
	}
	with := func(in federation.Instance, key, value string) federation.Instance {
		in.Metadata = append(slices.Clone(in.Metadata), federation.Pair{Key: key, Value: value})
		return in
	}
	a, b, c := endpoint("192.0.2.1", "eu"), endpoint("192.0.2.2", "us"), endpoint("192.0.2.3")
	at := func(ips ...string) (fields []byte) {
		for _, ip := range ips {
			fields = append(fields, msg(9, str(1, ip), num(2, 443))...)
		}
		return fields
	}
	tests := []struct {
		name      string
		endpoints []federation.Endpoint
		instances []federation.Instance
		sans      []string
		want      []byte // fields 7 to 9; nil where it cannot be expressed
		reason    string
	}{
		{
			name:      "several instances, protocols in their order",
			endpoints: []federation.Endpoint{a, b},
			instances: []federation.Instance{instance("v2", federation.HTTPS), instance("v1", federation.HTTP), instance("v3", federation.HTTPS)},
			want:      join(str(7, "spiffe://o1/web"), str(8, "HTTPS"), str(8, "HTTP"), at("192.0.2.1", "192.0.2.2")),
		},
		{
			name:      "the first of several sans",
			endpoints: []federation.Endpoint{a},
			instances: []federation.Instance{instance("v1", federation.MTLS)},
			sans:      []string{"spiffe://o1/first", "spiffe://o1/second"},
			want:      join(str(7, "spiffe://o1/first"), str(8, "MTLS"), at("192.0.2.1")),
		},
		{
			name:      "versions of one protocol at different endpoints",
			endpoints: []federation.Endpoint{a, b},
			instances: []federation.Instance{instance("v1", federation.HTTPS, "eu"), instance("v2", federation.HTTPS, "us")},
			want:      join(str(7, "spiffe://o1/web"), str(8, "HTTPS"), at("192.0.2.1", "192.0.2.2")),
		},
		{
			name:      "protocols at the same endpoints by different selectors",
			endpoints: []federation.Endpoint{a, b},
			instances: []federation.Instance{instance("v1", federation.HTTPS, "eu", "us"), instance("v2", federation.GRPC, "no endpoint has it")},
			want:      join(str(7, "spiffe://o1/web"), str(8, "HTTPS"), str(8, "GRPC"), at("192.0.2.1", "192.0.2.2")),
		},
		{
			name:      "an endpoint that no instance is reached through",
			endpoints: []federation.Endpoint{a, b, c},
			instances: []federation.Instance{instance("v1", federation.HTTPS, "us")},
			want:      join(str(7, "spiffe://o1/web"), str(8, "HTTPS"), at("192.0.2.2")),
		},
		{
			name:      "the name as SNI, and metadata that is left out",
			endpoints: []federation.Endpoint{a},
			instances: []federation.Instance{with(instance("v1", federation.TLS), sni, "web"), with(instance("v2", federation.TCP), "PORT", "80")},
			want:      join(str(7, "spiffe://o1/web"), str(8, "TLS"), str(8, "TCP"), at("192.0.2.1")),
		},
		{
			name:      "no SAN",
			endpoints: []federation.Endpoint{a},
			instances: []federation.Instance{instance("v1", federation.HTTP)},
			sans:      []string{},
			reason:    `v1alpha1 requires a SAN; add one to sans`,
		},
		{
			name:      "another SNI",
			endpoints: []federation.Endpoint{a},
			instances: []federation.Instance{instance("v1", federation.TLS), with(instance("v2", federation.TLS), sni, "canary.internal")},
			reason:    `v1alpha1 has the name of the service for its SNI, and instance "v2" has another`,
		},
		{
			name:      "another SNI, in the case of the public definition",
			endpoints: []federation.Endpoint{a},
			instances: []federation.Instance{with(instance("v1", federation.TLS), "sni", "canary.internal")},
			reason:    `v1alpha1 has the name of the service for its SNI, and instance "v1" has another`,
		},
		{
			name:      "the name as SNI in one case, and another in the other",
			endpoints: []federation.Endpoint{a},
			instances: []federation.Instance{with(with(instance("v1", federation.TLS), sni, "web"), "Sni", "canary.internal")},
			reason:    `v1alpha1 has the name of the service for its SNI, and instance "v1" has another`,
		},
		{
			name:      "protocols at different endpoints",
			endpoints: []federation.Endpoint{a, b},
			instances: []federation.Instance{instance("v1", federation.HTTPS), instance("v2", federation.GRPC, "us")},
			reason:    `v1alpha1 has the same endpoints for all protocols, and HTTPS and GRPC are reached through different ones`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			service := &federation.Service{
				Name: "web", FQDN: services.FQDN("web.fed.example"), SANs: []string{"spiffe://o1/web"},
				Endpoints: tt.endpoints, Instances: tt.instances,
			}
			if tt.sans != nil {
				service.SANs = tt.sans
			}
			m, err := wire.EncodeV1Alpha1(wire.Event{Operation: wire.Upsert, Name: "web", Service: service}, "", false)
			if tt.reason != "" {
				if err == nil || err.Error() != tt.reason {
					t.Errorf("error is %v, want %s", err, tt.reason)
				}
				return
			}
			must.Do(t, err)
			want := join(str(1, "web"), str(5, "web.fed.example"), str(6, "web"), tt.want)
			if got := m.GetResource().GetValue(); !bytes.Equal(got, want) {
				t.Errorf("service is\n%x, want\n%x", got, want)
			}
			if _, err := wire.DecodeV1Alpha1(m); err != nil {
				t.Errorf("a consumer refuses it: %v", err)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	for _, v := range []wire.APIVersion{wire.V1Alpha2, wire.V1Alpha1} {
		if got, err := wire.ParseVersion(v.String()); err != nil || got != v {
			t.Errorf("%v is read as %v, %v", v, got, err)
		}
	}
	if _, err := wire.ParseVersion("v2"); err == nil || err.Error() != `"v2" is not v1alpha2 or v1alpha1` {
		t.Errorf("error is %v", err)
	}
	if got := wire.APIVersion(0); got != wire.V1Alpha2 {
		t.Errorf("the default is %v", got)
	}
}
