package node

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// nodes returns nodes of a service from lines: URI, instance and metadata.
func nodes(tb testing.TB, lines ...string) (list []*Node) {
	tb.Helper()
	for _, line := range lines {
		fields := append(strings.Fields(line), "", "")
		n := &Node{Key: Key{services.FQDN("web.acme.example"), uri(tb, fields[0])}, Instance: strings.Trim(fields[1], "-"), TTL: time.Second, Provider: sample(tb).Provider, Since: time.Unix(0, 0).UTC()}
		if fields[2] != "" {
			n.Metadata = federation.Pairs(map[string]string{"m": fields[2]})
		}
		must.Do(tb, n.Validate())
		list = append(list, n)
	}
	return list
}

// shown returns the instances and the endpoints of a service, a line each.
func shown(s *federation.Service) (lines []string) {
	for _, in := range s.Instances {
		lines = append(lines, strings.TrimSpace(fmt.Sprint(in.ID, " ", in.Protocol, " ", in.EndpointSelector, " ", in.Metadata)))
	}
	for _, e := range s.Endpoints {
		lines = append(lines, fmt.Sprint(e.Address, " ", e.Port, " ", e.Labels))
	}
	return lines
}

func TestService(t *testing.T) {
	for name, tc := range map[string]struct{ nodes, want []string }{
		"one": {[]string{"https://192.0.2.7:8443"}, []string{
			"192-0-2-7-8443 HTTPS [192-0-2-7-8443] []",
			"192.0.2.7 8443 [192-0-2-7-8443]",
		}},
		"IPv6 and a host": {[]string{"tcp://db.acme.example:5432", "tcp://[2001:db8::]:1"}, []string{
			"2001-db8-0-0-0-0-0-0-1 TCP [2001-db8-0-0-0-0-0-0-1] []",
			"db-acme-example-5432 TCP [db-acme-example-5432] []",
			"2001:db8:: 1 [2001-db8-0-0-0-0-0-0-1]",
			"db.acme.example. 5432 [db-acme-example-5432]",
		}},
		"shared instance": {[]string{"grpc://192.0.2.2:1 v1 second", "https://192.0.2.1:1 v1 first", "http://192.0.2.3:1 v2"}, []string{
			"v1 HTTPS [v1] [{m first}]",
			"v2 HTTP [v2] []",
			"192.0.2.1 1 [v1]",
			"192.0.2.2 1 [v1]",
			"192.0.2.3 1 [v2]",
		}},
		"two protocols of one port": {[]string{"https://192.0.2.7:8443", "grpc://192.0.2.7:8443"}, []string{
			"192-0-2-7-8443 HTTPS [192-0-2-7-8443] []",
			"node-237633b182af519f GRPC [node-237633b182af519f] []",
			"192.0.2.7 8443 [192-0-2-7-8443]",
			"192.0.2.7 8443 [node-237633b182af519f]",
		}},
		"ID that a provider has given": {[]string{"https://192.0.2.7:8443", "https://192.0.2.8:8443 192-0-2-7-8443"}, []string{
			"node-a531339e3dae3ccf HTTPS [node-a531339e3dae3ccf] []",
			"192-0-2-7-8443 HTTPS [192-0-2-7-8443] []",
			"192.0.2.7 8443 [node-a531339e3dae3ccf]",
			"192.0.2.8 8443 [192-0-2-7-8443]",
		}},
		"hash that a provider has given": {[]string{"https://192.0.2.7:8443", "https://192.0.2.8:8443 192-0-2-7-8443", "https://192.0.2.9:1 node-a531339e3dae3ccf"}, []string{
			"node-32758e55848911f7 HTTPS [node-32758e55848911f7] []",
			"192-0-2-7-8443 HTTPS [192-0-2-7-8443] []",
			"node-a531339e3dae3ccf HTTPS [node-a531339e3dae3ccf] []",
			"192.0.2.7 8443 [node-32758e55848911f7]",
			"192.0.2.8 8443 [192-0-2-7-8443]",
			"192.0.2.9 1 [node-a531339e3dae3ccf]",
		}},
		"no label": {[]string{"tls://" + strings.Repeat("a", 60) + ".example:1", "tls://node-1" + strings.Repeat("b", 54) + ".example:1"}, []string{
			"node-159be8afcfd4c5bd TLS [node-159be8afcfd4c5bd] []",
			"node-298f125fd03f0253 TLS [node-298f125fd03f0253] []",
			strings.Repeat("a", 60) + ".example. 1 [node-159be8afcfd4c5bd]",
			"node-1" + strings.Repeat("b", 54) + ".example. 1 [node-298f125fd03f0253]",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := RenderService("registration", nodes(t, tc.nodes...))
			if s.Name != "registration/web.acme.example" || s.FQDN.String() != "web.acme.example." {
				t.Errorf("service %s with fqdn %s", s.Name, s.FQDN)
			}
			if diff := cmp.Diff(tc.want, shown(s)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			checkService(t, s)
		})
	}
}

// checkService fails unless the service can be published, and its instances be told
// apart by their endpoints.
func checkService(t *testing.T, s *federation.Service) {
	t.Helper()
	must.Get(wire.NewEncoded(s))(t)
	for _, in := range s.Instances {
		if !slices.ContainsFunc(s.Endpoints, func(e federation.Endpoint) bool { return in.Selects(e.Labels) }) {
			t.Fatalf("instance %s has no endpoint", in.ID)
		}
	}
}

func TestServiceWithTooManyNodes(t *testing.T) {
	var list []*Node
	for i := range limits.Endpoints + 1 {
		n := sample(t)
		n.Instance = ""
		n.URI = uri(t, fmt.Sprintf("tcp://192.0.2.1:%d", limits.Endpoints+1-i))
		list = append(list, n)
	}
	s := RenderService("registration", list)
	checkService(t, s)
	if n := len(s.Endpoints); n != limits.Endpoints || s.Endpoints[n-1].Port != limits.Endpoints {
		t.Errorf("%d endpoints, the last at port %d", n, s.Endpoints[n-1].Port)
	}
}

// The SANs of a service are the SPIFFE IDs with which its nodes have been registered. So
// consumers of v1alpha1 can be told of it.
func TestSANs(t *testing.T) {
	list := nodes(t, "https://192.0.2.1:1", "https://192.0.2.2:1", "https://192.0.2.3:1", "https://192.0.2.4:1")
	for i, id := range []string{"spiffe://acme.example/web", "host.acme.example", "spiffe://acme.example/api", "spiffe://acme.example/web"} {
		provider := must.Get(federation.ParseID(id))(t)
		list[i].Provider = provider
	}
	s := RenderService("registration", list)
	if want := []string{"spiffe://acme.example/api", "spiffe://acme.example/web"}; !slices.Equal(s.SANs, want) {
		t.Errorf("the SANs are %v, expected %v", s.SANs, want)
	}
	if _, err := wire.EncodeV1Alpha1(wire.Event{Operation: wire.Upsert, Name: s.Name, Service: s}, "", false); err != nil {
		t.Error(err)
	}
	var many []*Node
	for i := range limits.SANs + 1 {
		n := nodes(t, fmt.Sprintf("https://192.0.2.1:%d", i+1))[0]
		var err error
		if n.Provider, err = federation.ParseID(fmt.Sprintf("spiffe://acme.example/%03d", i)); err != nil {
			t.Fatal(err)
		}
		many = append(many, n)
	}
	s = RenderService("registration", many)
	checkService(t, s)
	if n := len(s.SANs); n != limits.SANs || s.SANs[n-1] != "spiffe://acme.example/063" {
		t.Errorf("%d SANs: %v", n, s.SANs)
	}
}

// FuzzService renders random sets of nodes that get into each other's way: what comes
// out depends neither on their order nor on what is not told.
func FuzzService(f *testing.F) {
	f.Add(uint64(1), uint8(3), "v1")
	f.Add(uint64(2), uint8(40), "192-0-2-1-1")
	f.Add(uint64(3), uint8(255), "node-1.a")
	f.Fuzz(func(t *testing.T, seed uint64, count uint8, instance string) {
		random := rand.New(rand.NewPCG(seed, 0))
		var list []*Node
		for range max(1, count) {
			n := sample(t)
			n.URI = URI{
				federation.HTTP + federation.Protocol(random.IntN(3)),
				address(t, []string{"192.0.2.1", "192.0.2.2", "192-0-2-1", "a.b", "a-b", "2001:db8::1", "2001-db8-0-0-0-0-0-1", "xn--bcher-kva.example"}[random.IntN(8)]),
				uint16(1 + random.IntN(3)),
			}
			if slices.ContainsFunc(list, func(m *Node) bool { return m.Key == n.Key }) {
				continue
			}
			switch random.IntN(4) {
			case 0:
				n.Instance = readableID(n.URI)
			case 1:
				n.Instance = instance
			default:
				n.Instance = ""
			}
			n.Description = fmt.Sprint(random.Int())
			if n.Validate() != nil {
				n.Instance = ""
			}
			list = append(list, n)
		}
		want := RenderService("registration", slices.Clone(list))
		checkService(t, want)
		for _, n := range list {
			n.Owner, n.Stream, n.Rule, n.TTL = "another", random.Uint64(), "another", n.TTL+1
			n.Since = n.Since.Add(time.Hour)
		}
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		if got := RenderService("registration", list); !got.Equal(want) {
			t.Fatalf("-want +got:\n%s", cmp.Diff(shown(want), shown(got)))
		}
	})
}

func BenchmarkService(b *testing.B) {
	for _, count := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			var list []*Node
			for i := range count {
				n := sample(b)
				n.Instance = ""
				n.URI.Address = address(b, netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}).String())
				list = append(list, n)
			}
			b.ReportAllocs()
			for b.Loop() {
				RenderService("registration", list)
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	n, room := sample(b), make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		n.AppendStored(room)
	}
}

func BenchmarkParse(b *testing.B) {
	data := sample(b).AppendStored(nil)
	b.ReportAllocs()
	for b.Loop() {
		must.Get(ParseStored(data))(b)
	}
}

func BenchmarkParseURI(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		must.Get(ParseURI("https://192.0.2.1:8443", netip.Addr{}))(b)
	}
}
