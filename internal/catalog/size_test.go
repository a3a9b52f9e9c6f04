package catalog_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestSize has a row for each thing that counts. An owner is told these figures when
// its catalog is too large, and a version that counts more refuses services that fitted
// before.
func TestSize(t *testing.T) {
	const (
		service  = 480 + len("web") + len("web.example.")
		endpoint = 84
		instance = 100
	)
	list := []string{"a", "bc"}
	for _, tt := range []struct {
		name    string
		service federation.Service
		want    int // beside service
	}{
		{"nothing but a name", federation.Service{}, 0},
		{"description", federation.Service{Description: "abc"}, 3 + 14},
		{"tags", federation.Service{Tags: []string{"a", "", "bc"}}, 1 + 0 + 2 + 3*14},
		{"SANs", federation.Service{SANs: []string{"a", "bc"}}, 3 + 2*14},
		{"labels", federation.Service{Labels: []federation.Pair{{Key: "a", Value: "bc"}, {Key: "def"}}}, 6 + 2*28},
		{
			"endpoints",
			federation.Service{Endpoints: []federation.Endpoint{
				{Address: address(t, "192.0.2.1"), Port: 80, Description: "abc"}, {Address: address(t, "2001:db8::1"), Port: 80},
			}},
			2*endpoint + 3 + 14,
		},
		{
			"host",
			federation.Service{Endpoints: []federation.Endpoint{{Address: address(t, "h.example"), Port: 80}}},
			endpoint + len("h.example.") + 14,
		},
		{
			"labels of endpoints",
			federation.Service{Endpoints: []federation.Endpoint{{Labels: list}, {Labels: list}, {Labels: []string{"abc"}}}},
			3*endpoint + 2*(3+2*14) + (3 + 14),
		},
		{
			"instances",
			federation.Service{Instances: []federation.Instance{{ID: "ab", Description: "c"}, {ID: "d"}}},
			2*instance + (2 + 14) + (1 + 14) + (1 + 14),
		},
		{
			"metadata",
			federation.Service{Instances: []federation.Instance{{Metadata: []federation.Pair{{Key: "a", Value: "bc"}}}}},
			instance + 3 + 28,
		},
		{
			"selector, with a mark for each endpoint",
			federation.Service{
				Endpoints: make([]federation.Endpoint, 3),
				Instances: []federation.Instance{{EndpointSelector: list}},
			},
			3*endpoint + instance + (3 + 2*14) + 3,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.service.Name, tt.service.FQDN = "web", services.FQDN("web.example")
			if got := catalog.Size(&tt.service, false); got != int64(service+tt.want) {
				t.Errorf("Size is %d, want %d", got, service+tt.want)
			}
		})
	}
}

// TestSizeOfFQDN counts the labels of a name: the first three are part of the service.
func TestSizeOfFQDN(t *testing.T) {
	for name, nodes := range map[string]int{"example": 0, "web.fed.example": 0, "a.web.fed.example": 1, "b.a.web.fed.example": 2} {
		s := &federation.Service{FQDN: services.FQDN(name)}
		if got, want := catalog.Size(s, false), int64(480+len(name)+1+nodes*48); got != want {
			t.Errorf("Size of %s is %d, want %d", name, got, want)
		}
	}
}

// TestSizeOfSharedName counts what a service adds to what owners have together.
func TestSizeOfSharedName(t *testing.T) {
	s := &federation.Service{Endpoints: make([]federation.Endpoint, 3), Instances: make([]federation.Instance, 2)}
	if got, want := catalog.Size(s, true)-catalog.Size(s, false), int64(300+3*45+2*60); got != want {
		t.Errorf("it counts %d octets more, want %d", got, want)
	}
}
