package subtree_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/zone/subtree"
)

const fqdn = "s.fed.example."

// service makes a service with one endpoint.
func service(name string, instances ...federation.Instance) *federation.Service {
	return &federation.Service{Name: name, Endpoints: []federation.Endpoint{endpoint("192.0.2.1", 80)}, Instances: instances}
}

func endpoint(address string, port uint16, labels ...string) federation.Endpoint {
	a, err := federation.ParseAddress(address)
	if err != nil {
		panic(err) // the test spells it out
	}
	return federation.Endpoint{Address: a, Port: port, Labels: labels}
}

// compiled compiles a service at the fqdn, where no name is refused.
func compiled(s *federation.Service) *subtree.Subtree {
	t := new(subtree.Subtree)
	t.Compile(s, fqdn, func(_, _ string) subtree.Fault { return "" })
	return t
}

// example has two endpoints of its own, a host, and an instance whose ID has two
// labels.
func example() *federation.Service {
	s := service("s",
		federation.Instance{ID: "v1.eu", Protocol: federation.HTTP, EndpointSelector: []string{"eu"}},
		federation.Instance{ID: "v2", Protocol: federation.MONGO, EndpointSelector: []string{"none"}})
	s.Endpoints = []federation.Endpoint{
		endpoint("gw.example.net", 443), endpoint("192.0.2.7", 80, "eu"), endpoint("2001:db8::1", 80), endpoint("192.0.2.7", 80),
	}
	return s
}

// TestMatch has every role, and names that are near one.
func TestMatch(t *testing.T) {
	tree := compiled(example())
	for _, tt := range []struct {
		labels string
		want   string
	}{
		{"v1.eu", "instance v1.eu HTTP [0]"},
		{"v2", "instance v2 MONGO [0 1 2]"},
		{"eu", "empty"},
		{"v1", "missing"},
		{"u", "missing"},
		{"x.v2", "missing"},
		{"addr", "empty"},
		{"192-0-2-7.addr", "address 192.0.2.7"},
		{"2001-0db8-0000-0000-0000-0000-0000-0001.addr", "address 2001:db8::1"},
		{"2001-db8--1.addr", "missing"},
		{"192-0-2-8.addr", "missing"},
		{"_tcp", "always empty"},
		{"_tcp.v2", "always empty v2"},
		{"_tcp.v3", "missing"},
		{"_http._tcp", "protocol HTTP [0]"},
		{"_http._tcp.v1.eu", "protocol v1.eu HTTP [0]"},
		{"_http._tcp.v2", "missing"},
		{"_mongo._tcp.v2", "protocol v2 MONGO [0 1 2]"},
		{"_mongodb._tcp", "protocol MONGO [0 1 2]"},
		{"_grpc._tcp", "missing"},
		{"_http._tcpx", "missing"},
	} {
		m := tree.Match(tt.labels)
		if got := describe(&m); got != tt.want {
			t.Errorf("%s is %s, want %s", tt.labels, got, tt.want)
		}
		if got := tree.Has(tt.labels); got != (tt.want != "missing") {
			t.Errorf("%s: has is %v", tt.labels, got)
		}
	}
}

func describe(m *subtree.Match) string {
	words := []string{map[domain.Role]string{
		domain.Missing: "missing", domain.Empty: "empty", domain.EmptyAlways: "always empty",
		domain.Instance: "instance", domain.Protocol: "protocol", domain.Address: "address",
	}[m.Role]}
	if m.Instance != nil {
		words = append(words, m.Instance.Label)
	}
	if m.Protocol != 0 {
		words = append(words, m.Protocol.String())
	}
	if m.Endpoints != nil {
		words = append(words, fmt.Sprint([]uint16(m.Endpoints)))
	}
	if m.Address != (netip.Addr{}) {
		words = append(words, m.Address.String())
	}
	return strings.Join(words, " ")
}

// TestNamesMatch checks that every name of a subtree is found, and claims those
// that a service could have.
func TestNamesMatch(t *testing.T) {
	tree := compiled(example())
	names := slices.Collect(tree.Names())
	want := []string{
		"_http._tcp", "_mongo._tcp", "_mongodb._tcp", "v1.eu", "_http._tcp.v1.eu", "v2", "_mongo._tcp.v2", "_mongodb._tcp.v2",
		"192-0-2-7.addr", "2001-0db8-0000-0000-0000-0000-0000-0001.addr",
	}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
	for _, labels := range names {
		if !tree.Has(labels) {
			t.Errorf("%s is not found", labels)
		}
	}
	if d := cmp.Diff([]string{"v1.eu", "eu", "v2", "addr"}, slices.Collect(tree.Claims())); d != "" {
		t.Errorf("claims (-want +got):\n%s", d)
	}
}

// TestEndpoints checks that endpoints are in the order of their targets, each pair
// of target and port once.
func TestEndpoints(t *testing.T) {
	tree := compiled(example())
	var got []string
	for _, i := range tree.All() {
		target := tree.Target(i, fqdn)
		if n := tree.TargetLen(i, fqdn); n != len(target) || !tree.HasTarget(i, fqdn) {
			t.Errorf("%s has length %d", target, n)
		}
		got = append(got, fmt.Sprint(target, " ", tree.Endpoint(i).Port, " ", tree.Endpoint(i).IsHost()))
	}
	want := []string{
		"192-0-2-7.addr.s.fed.example. 80 false", "2001-0db8-0000-0000-0000-0000-0000-0001.addr.s.fed.example. 80 false",
		"gw.example.net. 443 true",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if !tree.HasHost() || compiled(service("s")).HasHost() {
		t.Error("the wrong one has a host")
	}
}

// TestRefusedInstance checks that an instance whose name is refused has none, and
// that this is counted.
func TestRefusedInstance(t *testing.T) {
	tree := new(subtree.Subtree)
	tree.Compile(example(), fqdn, func(_, name string) subtree.Fault {
		if name == "v2."+fqdn {
			return subtree.FaultReservedName
		}
		return ""
	})
	if tree.Has("v2") || !tree.Has("v1.eu") || !tree.Has("_mongo._tcp") {
		t.Error("want v1.eu and the protocol of v2, and not v2")
	}
	if d := cmp.Diff(subtree.Faults{subtree.FaultReservedName: 1}, tree.Faults()); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

// TestCopyHoldsItsOwn checks that a copy does not point into what it was copied
// from, which would keep that in memory.
func TestCopyHoldsItsOwn(t *testing.T) {
	of := compiled(service("s", federation.Instance{ID: "i", Protocol: federation.HTTP}))
	var tree subtree.Subtree
	tree.Copy(of)
	if tree.Endpoint(0) == of.Endpoint(0) || &tree.Instances()[0] == &of.Instances()[0] {
		t.Error("the copy points into the original")
	}
	was, is := of.Match("i"), tree.Match("i")
	if describe(&was) != describe(&is) || *tree.Endpoint(0) != *of.Endpoint(0) {
		t.Errorf("the copy has %s, want %s", describe(&is), describe(&was))
	}
	if d := cmp.Diff(of.Texts(1000), tree.Texts(1000)); d != "" {
		t.Errorf("texts (-want +got):\n%s", d)
	}
}
