package subtree_test

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
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

// tree is a Subtree with the service that it was compiled of.
type tree struct {
	*subtree.Subtree

	of packed.Service
}

func (t tree) Texts(room int) []string { return t.Subtree.Texts(t.of, nil, room) }

// compiled compiles a service at the fqdn, where no name is refused.
func compiled(s *federation.Service) tree {
	t := tree{new(subtree.Subtree), packed.PackService(s)}
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
		{"_http._tcp.v3", "missing"},
		{"_mongo._tcp.v2", "protocol v2 MONGO [0 1 2]"},
		{"_mongodb._tcp", "protocol MONGO [0 1 2]"},
		{"_grpc._tcp", "missing"},
	} {
		m := tree.MatchLabels(tt.labels)
		if got := describe(&m); got != tt.want {
			t.Errorf("%s is %s, want %s", tt.labels, got, tt.want)
		}
		if got := tree.HasLabels(tt.labels); got != (tt.want != "missing") {
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
	names := slices.Collect(tree.RecordLabels())
	want := []string{
		"_http._tcp", "_mongo._tcp", "_mongodb._tcp", "v1.eu", "_http._tcp.v1.eu", "v2", "_mongo._tcp.v2", "_mongodb._tcp.v2",
		"192-0-2-7.addr", "2001-0db8-0000-0000-0000-0000-0000-0001.addr",
	}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
	for _, labels := range names {
		if !tree.HasLabels(labels) {
			t.Errorf("%s is not found", labels)
		}
	}
	if d := cmp.Diff([]string{"v1.eu", "eu", "v2", "addr"}, slices.Collect(tree.ClaimedLabels())); d != "" {
		t.Errorf("claims (-want +got):\n%s", d)
	}
}

// TestEndpoints checks that endpoints are in the order of their targets, each pair
// of target and port once.
func TestEndpoints(t *testing.T) {
	tree := compiled(example())
	var got []string
	for _, i := range tree.SelectAll() {
		target := tree.Target(new(strings.Builder), i, fqdn)
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

// TestNamesAndClaimsStopEarly leaves both at each of their names.
func TestNamesAndClaimsStopEarly(t *testing.T) {
	tree := compiled(example())
	for _, all := range []iter.Seq[string]{tree.RecordLabels(), tree.ClaimedLabels()} {
		for stop := range slices.Collect(all) {
			n := 0
			for range all {
				if n++; n > stop {
					break
				}
			}
			if n != stop+1 {
				t.Errorf("%d names, want %d", n, stop+1)
			}
		}
	}
}

// TestHostsHaveNoAddressNames checks that addr is no name when all endpoints are
// hosts.
func TestHostsHaveNoAddressNames(t *testing.T) {
	s := service("s", federation.Instance{ID: "i", Protocol: federation.HTTP})
	s.Endpoints = []federation.Endpoint{endpoint("a.example.net", 1), endpoint("b.example.net", 1)}
	tree := compiled(s)
	if tree.HasLabels("addr") || tree.HasLabels("0-0-0-0.addr") {
		t.Error("there are names of addresses")
	}
	if d := cmp.Diff([]string{"i"}, slices.Collect(tree.ClaimedLabels())); d != "" {
		t.Errorf("claims (-want +got):\n%s", d)
	}
}

// TestHostThatIsATarget has a host that is the SRV target of an address of the
// service. One endpoint stands for both, and it is the address, in whatever order
// they come.
func TestHostThatIsATarget(t *testing.T) {
	host, ip := endpoint("192-0-2-1.addr."+strings.TrimSuffix(fqdn, "."), 80, "host"), endpoint("192.0.2.1", 80, "ip")
	other := endpoint("192.0.2.9", 80)
	for _, endpoints := range [][]federation.Endpoint{{host, ip, other}, {ip, host, other}, {other, host, ip}, {other, ip, host}} {
		s := service("s",
			federation.Instance{ID: "a", Protocol: federation.HTTP, EndpointSelector: []string{"host"}},
			federation.Instance{ID: "b", Protocol: federation.HTTP, EndpointSelector: []string{"ip"}})
		s.Endpoints = endpoints
		tree := compiled(s)
		if len(tree.SelectAll()) != 2 || tree.Endpoint(0).IsHost() || tree.HasHost() {
			t.Errorf("endpoints %v", tree.SelectAll())
		}
		for _, labels := range []string{"a", "b"} {
			if m := tree.MatchLabels(labels); !slices.Equal(m.Endpoints, subtree.Selection{0}) {
				t.Errorf("%s selects %v", labels, m.Endpoints)
			}
		}
	}
}

// TestSetsAtTheirLimit counts RRsets as too large exactly when their records, with
// a header of 12 octets each, are more than 64,752 octets.
func TestSetsAtTheirLimit(t *testing.T) {
	const limit = 65535 - 512 - (12 + 255 + 4)
	t.Run("SRV", func(t *testing.T) {
		// A record with a host of n characters has 12+6+1+n octets.
		for over := range 2 {
			s := service("s", federation.Instance{ID: "i", Protocol: federation.HTTP})
			s.Endpoints = nil
			left := limit + over
			for i := 0; left > 0; i++ {
				n := min(19+254, left)
				if rest := left - n; rest > 0 && rest < 60 {
					n -= 60
				}
				left -= n
				s.Endpoints = append(s.Endpoints, endpoint(host(i, n-19), 80))
			}
			if got := compiled(s).Faults()[subtree.FaultSize]; got != over {
				t.Errorf("%d endpoints of %d octets: %d faults, want %d", len(s.Endpoints), limit+over, got, over)
			}
		}
	})
	t.Run("TXT", func(t *testing.T) {
		for over := range 2 {
			s := service("s")
			left := limit + over - record.SizeTXT("\x09txtvers=1\x06name=s")
			for i := 0; left > 0; i++ {
				id := fmt.Sprintf("i%03d", i)
				n := min(200, left)
				if rest := left - n; rest > 0 && rest < 100 {
					n -= 100
				}
				left -= n
				empty := record.SizeTXT("\x09txtvers=1\x07id=" + id + "\x0dprotocol=HTTP\x05desc=")
				s.Instances = append(s.Instances, federation.Instance{ID: id, Protocol: federation.HTTP, Description: strings.Repeat("x", n-empty)})
			}
			tree := compiled(s)
			if got := tree.Faults()[subtree.FaultSize]; got != over {
				t.Errorf("%d instances of %d octets: %d faults, want %d", len(s.Instances), limit+over, got, over)
			}
			if got, want := len(tree.Texts(limit)), 1+len(s.Instances)-over; got != want {
				t.Errorf("%d records, want %d", got, want)
			}
		}
	})
}

// host returns the i-th name of n characters, with its final dot.
func host(i, n int) string {
	name := fmt.Sprintf("h%04d.", i)
	for len(name) < n {
		label := min(63, n-len(name)-1)
		if n-len(name)-1-label == 1 {
			label--
		}
		name += strings.Repeat("l", label) + "."
	}
	return name
}

// TestTextsEndBeyondRoom checks that there is one record more than fits, and no
// more than that.
func TestTextsEndBeyondRoom(t *testing.T) {
	tree := compiled(service("s", federation.Instance{ID: "a", Protocol: federation.HTTP}, federation.Instance{ID: "b", Protocol: federation.HTTP}))
	all := tree.Texts(1000)
	first, second := 12+len(all[0]), 12+len(all[1])
	for room, want := range map[int]int{0: 1, first - 1: 1, first: 2, first + second - 1: 2, first + second: 3, 1000: 3} {
		if got := tree.Texts(room); !slices.Equal(got, all[:want]) {
			t.Errorf("%d octets: %d records, want %d", room, len(got), want)
		}
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
	if tree.HasLabels("v2") || !tree.HasLabels("v1.eu") || !tree.HasLabels("_mongo._tcp") {
		t.Error("want v1.eu and the protocol of v2, and not v2")
	}
	if d := cmp.Diff(subtree.Faults{subtree.FaultReservedName: 1}, tree.Faults()); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}
