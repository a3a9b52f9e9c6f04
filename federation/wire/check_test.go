package wire_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
)

// What Check refuses is refused by every consumer, and what it takes is taken.
func TestCheck(t *testing.T) {
	pairs := func(keys ...string) []federation.Pair {
		var list []federation.Pair
		for _, key := range keys {
			list = append(list, federation.Pair{Key: key})
		}
		return list
	}
	for _, tt := range []struct {
		name   string
		change func(*federation.Service)
		reason federation.Reason // "": it is taken
		text   string            // without the service
	}{
		{"whole", func(*federation.Service) {}, "", ""},
		{"address that a consumer has to open", func(s *federation.Service) { s.Endpoints[0].Address = address(t, "127.0.0.1") }, "", ""},
		{"no name", func(s *federation.Service) { s.Name = "" }, federation.ReasonMissing, "name: required"},
		{"no fqdn", func(s *federation.Service) { s.FQDN = federation.FQDN{} }, federation.ReasonMissing, "fqdn: required"},
		{"no endpoints", func(s *federation.Service) { s.Endpoints = nil }, federation.ReasonMissing, "endpoints: at least one is required"},
		{"no instances", func(s *federation.Service) { s.Instances = nil }, federation.ReasonMissing, "instances: at least one is required"},
		{"no address", func(s *federation.Service) { s.Endpoints[0].Address = federation.Address{} }, federation.ReasonMissing, "endpoints[0].address: required"},
		{"no port", func(s *federation.Service) { s.Endpoints[0].Port = 0 }, federation.ReasonPort, "endpoints[0].port: 0 is not in 1 to 65535"},
		{"no ID", func(s *federation.Service) { s.Instances[0].ID = "" }, federation.ReasonMissing, "instances[0].id: required"},
		{"no protocol", func(s *federation.Service) { s.Instances[0].Protocol = 0 }, federation.ReasonMissing, "instances[0].protocol: required"},
		{"no such protocol", func(s *federation.Service) { s.Instances[0].Protocol = federation.MTLS + 1 }, federation.ReasonMissing, "instances[0].protocol: required"},
		{"not UTF-8", func(s *federation.Service) { s.Description = "\xff" }, federation.ReasonUndecodable, `description: not valid UTF-8: "\xff"`},
		{"name that is not UTF-8", func(s *federation.Service) { s.Name = "\xff" }, federation.ReasonUndecodable, `name: not valid UTF-8: "\xff"`},
		{"value that is not UTF-8", func(s *federation.Service) {
			s.Instances[0].Metadata = []federation.Pair{{Key: "k", Value: "\xff"}}
		}, federation.ReasonUndecodable, `instances[0].metadata["k"].value: not valid UTF-8: "\xff"`},
		{"long tag", func(s *federation.Service) { s.Tags = []string{strings.Repeat("x", wire.MaxTagBytes+1)} }, federation.ReasonLimit, "tags[0]: 513 bytes, the limit is 512"},
		{"many SANs", func(s *federation.Service) { s.SANs = slices.Repeat([]string{"x"}, wire.MaxSANs+1) }, federation.ReasonLimit, "sans: more than 64 entries"},
		{"label twice", func(s *federation.Service) { s.Labels = pairs("a", "b", "a") }, federation.ReasonUndecodable, `labels: key "a" is there twice`},
		{"metadata twice", func(s *federation.Service) { s.Instances[0].Metadata = pairs("a", "a") }, federation.ReasonUndecodable, `instances[0].metadata: key "a" is there twice`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &federation.Service{
				Name: "web", FQDN: fqdn(t, "web.fed.example"), Tags: []string{"t"}, Labels: pairs("a", "b"),
				Endpoints: []federation.Endpoint{{Address: address(t, "192.0.2.1"), Port: 80, Labels: []string{"l"}}},
				Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTP, EndpointSelector: []string{"l"}}},
			}
			tt.change(s)
			err := wire.Check(s)
			if tt.text == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if text := tt.text; s.Name != "" {
				expectInvalid(t, err, tt.reason, "service "+federation.Quote(s.Name)+": "+text)
			} else {
				expectInvalid(t, err, tt.reason, text)
			}
		})
	}
	expectInvalid(t, wire.Check(nil), federation.ReasonMissing, "service: required")
}

// A peer that publishes is told that nobody takes it, in terms of its response.
func TestDecline(t *testing.T) {
	m := wire.Decline(&rdpb.StreamResponse{Nonce: "7", Context: "session", ResourceUrl: wire.ResourceURL})
	if m.GetResponseNonce() != "7" || m.GetContext() != "session" || m.GetResourceUrl() != wire.ResourceURL {
		t.Errorf("the answer is %v", m)
	}
	if request, err := wire.ParseRequest(m); err != nil || request.Initial || request.Refusal != "this owner takes no services from its consumers" {
		t.Errorf("a peer reads %+v, %v", request, err)
	}
	// The answer to a long context is one that a peer can take.
	if _, err := wire.ParseRequest(wire.Decline(&rdpb.StreamResponse{Context: strings.Repeat("x", wire.MaxContextBytes+1)})); err != nil {
		t.Error(err)
	}
	if _, err := wire.ParseRequest(wire.Decline(nil)); err != nil {
		t.Error(err)
	}
}
