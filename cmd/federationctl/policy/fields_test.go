package policy

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// whole returns a service with everything that one can have.
func whole(t *testing.T) *federation.Service {
	t.Helper()
	fqdn := must.Get(federation.ParseFQDN("shop.example"))(t)
	address := must.Get(federation.ParseAddress("192.0.2.1"))(t)
	return &federation.Service{
		Name: "shop", FQDN: fqdn, Description: "Shop", Tags: []string{"a", "b"}, SANs: []string{"spiffe://a.example/b"},
		Labels: federation.Pairs(map[string]string{"team": "x", "empty": ""}),
		Endpoints: []federation.Endpoint{
			{Address: address, Port: 80, Labels: []string{"l"}, Description: "one"},
			{Address: address, Port: 80, Labels: []string{"m"}},
			{Address: address, Port: 81},
		},
		Instances: []federation.Instance{
			{ID: "v1", Protocol: federation.HTTP, Metadata: federation.Pairs(map[string]string{"SNI": "s"}), EndpointSelector: []string{"l"}, Description: "first"},
			{ID: "v2", Protocol: federation.TCP},
		},
	}
}

// TestCompare changes one thing at a time.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		change func(s *federation.Service)
		want   []string
	}{
		{func(s *federation.Service) {}, nil},
		{func(s *federation.Service) { s.FQDN = mustParse("a.example") }, []string{"fqdn: shop.example -> a.example"}},
		{func(s *federation.Service) { s.Description = "" }, []string{"-description"}},
		{func(s *federation.Service) { s.Description = "A\n" }, []string{`description: Shop -> "A\n"`}},
		{func(s *federation.Service) { s.Tags = []string{"b", "c", "c"} }, []string{"-tags[a]", "+tags[c]", "+tags[c]"}},
		{func(s *federation.Service) { slices.Reverse(s.Tags) }, []string{"order of lists: one -> another"}},
		{func(s *federation.Service) { s.SANs = nil }, []string{"-sans[spiffe://a.example/b]"}},
		{func(s *federation.Service) { s.Labels = federation.Pairs(map[string]string{"team": "y", "new": ""}) }, []string{"-labels.empty", "labels.team: x -> y", `+labels.new: ""`}},
		{func(s *federation.Service) { s.Endpoints = s.Endpoints[1:] }, []string{"-endpoints[192.0.2.1:80].labels[l]", "+endpoints[192.0.2.1:80].labels[m]", "-endpoints[192.0.2.1:80].description", "-endpoints[192.0.2.1:80]"}},
		{func(s *federation.Service) { s.Endpoints[2].Port = 82 }, []string{"-endpoints[192.0.2.1:81]", "+endpoints[192.0.2.1:82]"}},
		{func(s *federation.Service) { s.Endpoints[2].Description = "d" }, []string{"+endpoints[192.0.2.1:81].description: d"}},
		{func(s *federation.Service) { s.Instances[0].Protocol = federation.HTTPS }, []string{"instances[v1].protocol: HTTP -> HTTPS"}},
		{func(s *federation.Service) { s.Instances[0].Metadata = nil }, []string{"-instances[v1].metadata.SNI"}},
		{func(s *federation.Service) { s.Instances[0].EndpointSelector = nil }, []string{"-instances[v1].endpointSelector[l]"}},
		{func(s *federation.Service) { s.Instances[0].Description = "" }, []string{"-instances[v1].description"}},
		{func(s *federation.Service) { s.Instances = s.Instances[:1] }, []string{"-instances[v2]"}},
	} {
		changed := whole(t)
		tt.change(changed)
		var got []string
		for _, f := range Compare(whole(t), changed) {
			got = append(got, f.String())
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("unexpected differences (-want +got):\n%s", diff)
		}
	}
}

func mustParse(name string) federation.FQDN {
	fqdn, err := federation.ParseFQDN(name)
	if err != nil {
		panic(err)
	}
	return fqdn
}
