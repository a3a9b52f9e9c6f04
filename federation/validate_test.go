package federation_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// invalid fails the test unless err is an InvalidError with that reason and text.
func invalid(t *testing.T, err error, reason federation.Reason, text string) {
	t.Helper()
	got, ok := errors.AsType[*federation.InvalidError](err)
	if !ok || got.Reason != reason || got.Error() != text {
		t.Errorf("error is %v, expected %s: %s", err, reason, text)
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*federation.Service)
		reason federation.Reason // "": it is valid
		text   string            // without the service
	}{
		{"full", func(*federation.Service) {}, "", ""},
		{"least", func(s *federation.Service) {
			*s = federation.Service{
				Name: "a", FQDN: s.FQDN,
				Endpoints: []federation.Endpoint{{Address: s.Endpoints[0].Address, Port: 1}},
				Instances: []federation.Instance{{ID: "i", Protocol: federation.TCP}},
			}
		}, "", ""},
		{"address that consumers refuse by default", func(s *federation.Service) { s.Endpoints[0].Address = address(t, "127.0.0.1") }, "", ""},
		{"host", func(s *federation.Service) { s.Endpoints[0].Address = address(t, "web.example") }, "", ""},
		{"highest port", func(s *federation.Service) { s.Endpoints[0].Port = 65535 }, "", ""},
		{"empty key and value", func(s *federation.Service) { s.Labels = []federation.Pair{{}} }, "", ""},
		{"ID that is no DNS name", func(s *federation.Service) { s.Instances[0].ID = "v 1" }, "", ""},
		{"unnamed instances", func(s *federation.Service) {
			s.Instances = []federation.Instance{{Unnamed: true, Protocol: federation.HTTP}, {Unnamed: true, Protocol: federation.TCP}}
		}, "", ""},
		{"IDs that differ in case", func(s *federation.Service) { s.Instances = instances("v1", "V1") }, "", ""},

		{"no name", func(s *federation.Service) { s.Name = "" }, federation.ReasonMissing, "name: required"},
		{"no fqdn", func(s *federation.Service) { s.FQDN = federation.FQDN{} }, federation.ReasonMissing, "fqdn: required"},
		{"root as fqdn", func(s *federation.Service) { s.FQDN = origin(t, ".") }, federation.ReasonName, `fqdn: name has an empty label: "."`},
		{"fqdn of a zone", func(s *federation.Service) { s.FQDN = origin(t, "_tcp.example") }, federation.ReasonName, `fqdn: label begins with '_', which is kept for service labels: "_tcp.example."`},
		{"fqdn that looks like an address", func(s *federation.Service) { s.FQDN = origin(t, "1.2") }, federation.ReasonName, `fqdn: last label is a number, so the name looks like an address: "1.2."`},
		{"no endpoints", func(s *federation.Service) { s.Endpoints = nil }, federation.ReasonMissing, "endpoints: at least one is required"},
		{"no instances", func(s *federation.Service) { s.Instances = nil }, federation.ReasonMissing, "instances: at least one is required"},
		{"no address", func(s *federation.Service) { s.Endpoints[0].Address = federation.Address{} }, federation.ReasonMissing, "endpoints[0].address: required"},
		{"no port", func(s *federation.Service) { s.Endpoints[0].Port = 0 }, federation.ReasonPort, "endpoints[0].port: 0 is not in 1 to 65535"},
		{"second endpoint", func(s *federation.Service) { s.Endpoints = append(s.Endpoints, federation.Endpoint{}) }, federation.ReasonMissing, "endpoints[1].address: required"},
		{"no ID", func(s *federation.Service) { s.Instances[0].ID = "" }, federation.ReasonMissing, "instances[0].id: required"},
		{"unnamed with an ID", func(s *federation.Service) { s.Instances[0].Unnamed = true }, federation.ReasonName, `instances[0].id: an unnamed instance has none, and this one has "v1"`},
		{"one ID twice", func(s *federation.Service) { s.Instances = instances("a", "b", "a") }, federation.ReasonName, `instances[2].id: "a" is the ID of instances[0] as well`},
		{"one ID twice, and no other", func(s *federation.Service) { s.Instances = instances("a", "a") }, federation.ReasonName, `instances[1].id: "a" is the ID of instances[0] as well`},
		{"no ID twice", func(s *federation.Service) { s.Instances = instances("", "") }, federation.ReasonMissing, "instances[0].id: required"},
		{"no protocol", func(s *federation.Service) { s.Instances[0].Protocol = 0 }, federation.ReasonMissing, "instances[0].protocol: required"},
		{"unknown protocol", func(s *federation.Service) { s.Instances[0].Protocol = federation.MTLS + 1 }, federation.ReasonProtocol, "instances[0].protocol: there is no protocol 9"},
		{"second instance", func(s *federation.Service) { s.Instances = append(s.Instances, federation.Instance{ID: "v2"}) }, federation.ReasonMissing, "instances[1].protocol: required"},
		{"empty tag", func(s *federation.Service) { s.Tags = []string{"a", ""} }, federation.ReasonMissing, "tags[1]: is empty; leave it out"},
		{"empty SAN", func(s *federation.Service) { s.SANs = []string{""} }, federation.ReasonMissing, "sans[0]: is empty; leave it out"},
		{"empty label of an endpoint", func(s *federation.Service) { s.Endpoints[0].Labels = []string{""} }, federation.ReasonMissing, "endpoints[0].labels[0]: is empty; leave it out"},
		{"empty selector", func(s *federation.Service) { s.Instances[0].EndpointSelector = []string{""} }, federation.ReasonMissing, "instances[0].endpoint_selector[0]: is empty; leave it out"},
		{"label twice", func(s *federation.Service) { s.Labels = keys("a", "b", "b") }, federation.ReasonUndecodable, `labels: key "b" is there twice`},
		{"labels not sorted", func(s *federation.Service) { s.Labels = keys("a", "c", "b") }, federation.ReasonUndecodable, `labels: keys are not sorted: "c" stands before "b"`},
		{"metadata twice", func(s *federation.Service) { s.Instances[0].Metadata = keys("a", "a") }, federation.ReasonUndecodable, `instances[0].metadata: key "a" is there twice`},
		{"metadata not sorted", func(s *federation.Service) { s.Instances[0].Metadata = keys("a", "B") }, federation.ReasonUndecodable, `instances[0].metadata: keys are not sorted: "a" stands before "B"`},

		{"name that is not UTF-8", func(s *federation.Service) { s.Name = "\xff" }, federation.ReasonUndecodable, `name: not valid UTF-8: "\xff"`},
		{"description that is not UTF-8", func(s *federation.Service) { s.Description = "\xff" }, federation.ReasonUndecodable, `description: not valid UTF-8: "\xff"`},
		{"tag that is not UTF-8", func(s *federation.Service) { s.Tags = []string{"\xff"} }, federation.ReasonUndecodable, `tags[0]: not valid UTF-8: "\xff"`},
		{"SAN that is not UTF-8", func(s *federation.Service) { s.SANs = []string{"\xff"} }, federation.ReasonUndecodable, `sans[0]: not valid UTF-8: "\xff"`},
		{"key that is not UTF-8", func(s *federation.Service) { s.Labels = keys("\xff") }, federation.ReasonUndecodable, `labels["\xff"].key: not valid UTF-8: "\xff"`},
		{"endpoint label that is not UTF-8", func(s *federation.Service) { s.Endpoints[0].Labels = []string{"\xff"} }, federation.ReasonUndecodable, `endpoints[0].labels[0]: not valid UTF-8: "\xff"`},
		{"endpoint description that is not UTF-8", func(s *federation.Service) { s.Endpoints[0].Description = "\xff" }, federation.ReasonUndecodable, `endpoints[0].description: not valid UTF-8: "\xff"`},
		{"ID that is not UTF-8", func(s *federation.Service) { s.Instances[0].ID = "\xff" }, federation.ReasonUndecodable, `instances[0].id: not valid UTF-8: "\xff"`},
		{"selector that is not UTF-8", func(s *federation.Service) { s.Instances[0].EndpointSelector = []string{"\xff"} }, federation.ReasonUndecodable, `instances[0].endpoint_selector[0]: not valid UTF-8: "\xff"`},
		{"instance description that is not UTF-8", func(s *federation.Service) { s.Instances[0].Description = "\xff" }, federation.ReasonUndecodable, `instances[0].description: not valid UTF-8: "\xff"`},
		{"value that is not UTF-8", func(s *federation.Service) {
			s.Instances[0].Metadata = []federation.Pair{{Key: "k", Value: "\xff"}}
		}, federation.ReasonUndecodable, `instances[0].metadata["k"].value: not valid UTF-8: "\xff"`},
		{"first of two mistakes", func(s *federation.Service) { s.FQDN, s.Endpoints = federation.FQDN{}, nil }, federation.ReasonMissing, "fqdn: required"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := fullService(t)
			tt.change(s)
			err := s.Validate()
			switch {
			case tt.text == "":
				if err != nil {
					t.Errorf("error is %v", err)
				}
			case s.Name == "":
				invalid(t, err, tt.reason, tt.text)
			default:
				invalid(t, err, tt.reason, "service "+safetext.Quote(s.Name)+": "+tt.text)
			}
		})
	}
	invalid(t, (*federation.Service)(nil).Validate(), federation.ReasonMissing, "service: required")
}

// instances returns instances with the IDs.
func instances(ids ...string) []federation.Instance {
	list := make([]federation.Instance, len(ids))
	for i, id := range ids {
		list[i] = federation.Instance{ID: id, Protocol: federation.TCP}
	}
	return list
}

// keys returns pairs with the keys.
func keys(keys ...string) []federation.Pair {
	list := make([]federation.Pair, len(keys))
	for i, key := range keys {
		list[i].Key = key
	}
	return list
}

// TestValidateLimits validates services at each limit of limits.go and one above
// it. The limits are numbers here, because a change of one of them is a change for
// every peer (docs/protocol.md has them).
func TestValidateLimits(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	entries := func(n int) []string { return slices.Repeat([]string{"x"}, n) }
	numbered := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf("k%04d", i)
		}
		return list
	}
	const count, length = "more than %[1]d entries", "%[2]d bytes, the limit is %[1]d"
	tested := make(map[string]bool)
	for _, tt := range []struct {
		limit, field string
		at           int
		fill         func(s *federation.Service, n int)
		rule         string
	}{
		{"Endpoints", "endpoints", 1000, func(s *federation.Service, n int) {
			s.Endpoints = slices.Repeat(s.Endpoints, n)
		}, count},
		{"Instances", "instances", 1000, func(s *federation.Service, n int) { s.Instances = instances(numbered(n)...) }, count},
		{"Tags", "tags", 64, func(s *federation.Service, n int) { s.Tags = entries(n) }, count},
		{"Labels", "labels", 64, func(s *federation.Service, n int) { s.Labels = keys(numbered(n)...) }, count},
		{"Labels", "endpoints[0].labels", 64, func(s *federation.Service, n int) { s.Endpoints[0].Labels = entries(n) }, count},
		{"SANs", "sans", 64, func(s *federation.Service, n int) { s.SANs = entries(n) }, count},
		{"Selectors", "instances[0].endpoint_selector", 64, func(s *federation.Service, n int) { s.Instances[0].EndpointSelector = entries(n) }, count},
		{"Metadata", "instances[0].metadata", 64, func(s *federation.Service, n int) { s.Instances[0].Metadata = keys(numbered(n)...) }, count},

		{"NameBytes", "name", 512, func(s *federation.Service, n int) { s.Name = text(n) }, length},
		{"NameBytes", "instances[0].id", 512, func(s *federation.Service, n int) { s.Instances[0].ID = text(n) }, length},
		{"DescriptionBytes", "description", 4096, func(s *federation.Service, n int) { s.Description = text(n) }, length},
		{"DescriptionBytes", "endpoints[0].description", 4096, func(s *federation.Service, n int) { s.Endpoints[0].Description = text(n) }, length},
		{"DescriptionBytes", "instances[0].description", 4096, func(s *federation.Service, n int) { s.Instances[0].Description = text(n) }, length},
		{"TagBytes", "tags[0]", 512, func(s *federation.Service, n int) { s.Tags = []string{text(n)} }, length},
		{"TagBytes", "endpoints[0].labels[0]", 512, func(s *federation.Service, n int) { s.Endpoints[0].Labels = []string{text(n)} }, length},
		{"TagBytes", "instances[0].endpoint_selector[0]", 512, func(s *federation.Service, n int) { s.Instances[0].EndpointSelector = []string{text(n)} }, length},
		{"SANBytes", "sans[0]", 2048, func(s *federation.Service, n int) { s.SANs = []string{text(n)} }, length},
		{"KeyBytes", `labels["` + text(128) + `"... (513 bytes)].key`, 512, func(s *federation.Service, n int) { s.Labels = keys(text(n)) }, length},
		{"KeyBytes", `instances[0].metadata["` + text(128) + `"... (513 bytes)].key`, 512, func(s *federation.Service, n int) { s.Instances[0].Metadata = keys(text(n)) }, length},
		{"ValueBytes", `labels["k"].value`, 16384, func(s *federation.Service, n int) { s.Labels = []federation.Pair{{Key: "k", Value: text(n)}} }, length},
		{"ValueBytes", `instances[0].metadata["k"].value`, 16384, func(s *federation.Service, n int) {
			s.Instances[0].Metadata = []federation.Pair{{Key: "k", Value: text(n)}}
		}, length},
	} {
		tested[tt.limit] = true
		t.Run(tt.limit+" of "+tt.field, func(t *testing.T) {
			s := fullService(t)
			tt.fill(s, tt.at)
			if err := s.Validate(); err != nil {
				t.Errorf("at the limit: %v", err)
			}
			tt.fill(s, 1)
			tt.fill(s, tt.at+1)
			rule := strings.ReplaceAll(strings.ReplaceAll(tt.rule, "%[1]d", fmt.Sprint(tt.at)), "%[2]d", fmt.Sprint(tt.at+1))
			invalid(t, s.Validate(), federation.ReasonLimit,
				fmt.Sprintf("service %s: %s: %s", safetext.Quote(s.Name[:min(len(s.Name), limits.NameBytes)]), tt.field, rule))
		})
	}
	file := must.Get(parser.ParseFile(token.NewFileSet(), "../internal/limits/limits.go", nil, 0))(t)
	constants := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			constants++
			if name := spec.Names[0].Name; !tested[name] {
				t.Errorf("no row tests %s", name)
			}
		}
		return true
	})
	if constants == 0 {
		t.Error("limits.go has no constants")
	}
}
