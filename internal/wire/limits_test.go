package wire_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb1 "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha1"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	typespb "github.com/hamlet-federation/coredns-federation/proto/types/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// TestLimits decodes messages at each limit of this package and of package
// federation, and of the lengths of names, and one above it. The limits of this
// package are numbers here, because a change of one of them is a change for every
// peer.
func TestLimits(t *testing.T) {
	entries := func(n int) []string { return slices.Repeat([]string{"x"}, n) }
	pairs := func(n int) map[string]string {
		m := make(map[string]string, n)
		for i := range n {
			m[fmt.Sprintf("k%d", i)] = ""
		}
		return m
	}
	text := func(n int) string { return strings.Repeat("x", n) }
	// hostname returns a name of n bytes, of labels of 63 and what remains.
	hostname := func(n int) string {
		return strings.Repeat(text(63)+".", n/64) + text(n%64)
	}
	count := func(limit int) string { return fmt.Sprintf("more than %d entries", limit) }
	length := func(limit int) string { return fmt.Sprintf("%d bytes, the limit is %d", limit+1, limit) }
	literally := func(rule string) func(int) string { return func(int) string { return rule } }
	const tooLong = "name is longer than 254 characters with its final dot: "
	services := []struct {
		limit  string // the constant
		field  string
		at     int
		fill   func(m *typespb.FederatedService, n int)
		rule   func(limit int) string
		reason federation.Reason
	}{
		{"Endpoints", "endpoints", limits.Endpoints, func(m *typespb.FederatedService, n int) {
			m.Endpoints = make([]*typespb.FederatedService_Endpoint, n)
			for i := range n {
				m.Endpoints[i] = &typespb.FederatedService_Endpoint{Address: "192.0.2.1", Port: uint32(i + 1)}
			}
		}, count, federation.ReasonLimit},
		{"Instances", "instances", limits.Instances, func(m *typespb.FederatedService, n int) {
			m.Instances = make([]*typespb.FederatedService_Instance, n)
			for i := range n {
				m.Instances[i] = &typespb.FederatedService_Instance{Id: fmt.Sprint(i), Protocol: "TCP"}
			}
		}, count, federation.ReasonLimit},
		{"Tags", "tags", limits.Tags, func(m *typespb.FederatedService, n int) { m.Tags = entries(n) }, count, federation.ReasonLimit},
		{"SANs", "sans", limits.SANs, func(m *typespb.FederatedService, n int) { m.Sans = entries(n) }, count, federation.ReasonLimit},
		{"Labels", "labels", limits.Labels, func(m *typespb.FederatedService, n int) { m.Labels = pairs(n) }, count, federation.ReasonLimit},
		{"Labels", "endpoints[0].labels", limits.Labels, func(m *typespb.FederatedService, n int) { m.Endpoints[0].Labels = entries(n) }, count, federation.ReasonLimit},
		{"Selectors", "instances[0].endpoint_selector", limits.Selectors, func(m *typespb.FederatedService, n int) { m.Instances[0].EndpointSelector = entries(n) }, count, federation.ReasonLimit},
		{"Metadata", "instances[0].metadata", limits.Metadata, func(m *typespb.FederatedService, n int) { m.Instances[0].Metadata = pairs(n) }, count, federation.ReasonLimit},

		{"NameBytes", "name", limits.NameBytes, func(m *typespb.FederatedService, n int) { m.Name = text(n) }, length, federation.ReasonLimit},
		{"NameBytes", "instances[0].id", limits.NameBytes, func(m *typespb.FederatedService, n int) { m.Instances[0].Id = text(n) }, length, federation.ReasonLimit},
		{"DescriptionBytes", "description", limits.DescriptionBytes, func(m *typespb.FederatedService, n int) { m.Description = text(n) }, length, federation.ReasonLimit},
		{"DescriptionBytes", "endpoints[0].description", limits.DescriptionBytes, func(m *typespb.FederatedService, n int) { m.Endpoints[0].Description = text(n) }, length, federation.ReasonLimit},
		{"DescriptionBytes", "instances[0].description", limits.DescriptionBytes, func(m *typespb.FederatedService, n int) { m.Instances[0].Description = text(n) }, length, federation.ReasonLimit},
		{"TagBytes", "tags[1]", limits.TagBytes, func(m *typespb.FederatedService, n int) { m.Tags = []string{"x", text(n)} }, length, federation.ReasonLimit},
		{"TagBytes", "endpoints[0].labels[0]", limits.TagBytes, func(m *typespb.FederatedService, n int) { m.Endpoints[0].Labels = []string{text(n)} }, length, federation.ReasonLimit},
		{"TagBytes", "instances[0].endpoint_selector[0]", limits.TagBytes, func(m *typespb.FederatedService, n int) { m.Instances[0].EndpointSelector = []string{text(n)} }, length, federation.ReasonLimit},
		{"SANBytes", "sans[0]", limits.SANBytes, func(m *typespb.FederatedService, n int) { m.Sans = []string{text(n)} }, length, federation.ReasonLimit},
		{"KeyBytes", `labels["` + text(128) + `"... (513 bytes)].key`, limits.KeyBytes, func(m *typespb.FederatedService, n int) { m.Labels = map[string]string{text(n): ""} }, length, federation.ReasonLimit},
		{"KeyBytes", `instances[0].metadata["` + text(128) + `"... (513 bytes)].key`, limits.KeyBytes, func(m *typespb.FederatedService, n int) { m.Instances[0].Metadata = map[string]string{text(n): ""} }, length, federation.ReasonLimit},
		{"ValueBytes", `labels["k"].value`, limits.ValueBytes, func(m *typespb.FederatedService, n int) { m.Labels = map[string]string{"k": text(n)} }, length, federation.ReasonLimit},
		{"ValueBytes", `instances[0].metadata["cert"].value`, limits.ValueBytes, func(m *typespb.FederatedService, n int) { m.Instances[0].Metadata = map[string]string{"cert": text(n)} }, length, federation.ReasonLimit},

		{
			"", "fqdn", 253, func(m *typespb.FederatedService, n int) { m.Fqdn = hostname(n) },
			literally(tooLong + safetext.Quote(hostname(254))), federation.ReasonName,
		},
		{
			"", "endpoints[0].address", 253, func(m *typespb.FederatedService, n int) { m.Endpoints[0].Address = hostname(n) },
			literally("address is neither an IP address nor a host name: " + tooLong + safetext.Quote(hostname(254))), federation.ReasonAddress,
		},
		{
			"", "fqdn", 63, func(m *typespb.FederatedService, n int) { m.Fqdn = text(n) },
			literally("label is longer than 63 octets: " + safetext.Quote(text(64))), federation.ReasonName,
		},
		{
			"", "endpoints[0].port", 65535, func(m *typespb.FederatedService, n int) { m.Endpoints[0].Port = uint32(n) },
			literally("65536 is not in 1 to 65535"), federation.ReasonPort,
		},
	}
	tested := make(map[string]bool)
	for _, tt := range services {
		tested[tt.limit] = true
		t.Run(tt.limit+" of "+tt.field, func(t *testing.T) {
			m := minimal()
			tt.fill(m, tt.at)
			if _, err := wire.DecodeService(m, wire.AddressPolicy{}); err != nil {
				t.Errorf("at the limit: %v", err)
			}
			event, err := wire.Decode(upsert(t, m))
			if err != nil {
				t.Fatalf("at the limit: %v", err)
			}
			if _, err := wiretest.Response(event, "", ""); err != nil {
				t.Errorf("at the limit: %v", err)
			}

			m = minimal()
			tt.fill(m, tt.at+1)
			want := fmt.Sprintf("service %s: %s: %s", safetext.Quote(m.Name[:min(len(m.Name), limits.NameBytes)]), tt.field, tt.rule(tt.at))
			_, err = wire.DecodeService(m, wire.AddressPolicy{})
			expectInvalid(t, err, tt.reason, want)
			_, err = wire.Decode(upsert(t, m))
			expectInvalid(t, err, tt.reason, want)
		})
	}

	t.Run("NameBytes of resource_id", func(t *testing.T) {
		m := upsert(t, minimal())
		m.ResourceId = text(limits.NameBytes)
		event, err := wire.Decode(m)
		if err != nil || event.ID != m.ResourceId {
			t.Errorf("at the limit: %v, ID %q", err, event.ID)
		}
		m.ResourceId += "x"
		_, err = wire.Decode(m)
		expectInvalid(t, err, federation.ReasonLimit, `service "web": resource_id: 513 bytes, the limit is 512`)
	})

	tested["MaxProtocols"] = true
	t.Run("MaxProtocols", func(t *testing.T) {
		decode := func(n int) error {
			_, err := wire.DecodeV1Alpha1(create(goldenDraft, bytes.Repeat(str(8, "GRPC"), n-2))) // it has two
			return err
		}
		if err := decode(64); err != nil {
			t.Errorf("at the limit: %v", err)
		}
		expectInvalid(t, decode(65), federation.ReasonLimit, `service "web": protocols: more than 64 entries`)
	})

	tested["MaxMessageBytes"] = true
	t.Run("MaxMessageBytes", func(t *testing.T) {
		m, old := upsert(t, minimal()), create(goldenDraft)
		const room = 5 // of a nonce of that length
		m.Nonce, old.Nonce = text(16<<20-proto.Size(m)-room), text(16<<20-proto.Size(old)-room)
		decode := func() (errs []error) {
			_, err := wire.Decode(m)
			_, errOld := wire.DecodeV1Alpha1(old)
			return []error{err, errOld}
		}
		for _, err := range decode() {
			if err != nil {
				t.Errorf("at the limit: %v", err)
			}
		}
		m.Nonce, old.Nonce = m.Nonce+"x", old.Nonce+"x"
		for _, err := range decode() {
			expectInvalid(t, err, federation.ReasonLimit, `service "web": message of 16777217 bytes is larger than the 16777216 that are allowed`)
		}
		m.Operation, old.Operation = rdpb.StreamResponse_DELETE, rdpb1.StreamResponse_DELETE
		for _, err := range decode() {
			if err != nil {
				t.Errorf("a deletion: %v", err)
			}
		}
	})

	tested["MaxContextBytes"] = true
	t.Run("MaxContextBytes", func(t *testing.T) {
		if _, err := wire.ParseRequest(wire.Subscribe(text(512))); err != nil {
			t.Errorf("at the limit: %v", err)
		}
		_, err := wire.ParseRequest(wire.Subscribe(text(513)))
		expectInvalid(t, err, federation.ReasonLimit, "context: 513 bytes, the limit is 512")
	})

	tested["MaxRefusalBytes"] = true
	t.Run("MaxRefusalBytes", func(t *testing.T) {
		for _, n := range []int{2048, 2049} {
			request := must.Get(wire.ParseRequest(&rdpb.StreamRequest{ResponseNonce: "n", Status: &status.Status{Code: 3, Message: text(n)}}))(t)
			if got := len(request.Refusal); got != 2048 {
				t.Errorf("a message of %d bytes was cut to %d", n, got)
			}
		}
	})

	for _, file := range []string{"limits.go", "../limits/limits.go"} {
		for _, name := range limitConstants(t, file) {
			if !tested[name] {
				t.Errorf("no row tests %s", name)
			}
		}
	}
}

// limitConstants returns the names of the constants in a file.
func limitConstants(t *testing.T, name string) []string {
	t.Helper()
	file := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			names = append(names, spec.Names[0].Name)
		}
		return true
	})
	if len(names) == 0 {
		t.Fatalf("%s has no constants", name)
	}
	return names
}
