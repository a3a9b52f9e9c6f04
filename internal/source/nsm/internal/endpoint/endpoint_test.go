package endpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/networkservicemesh/api/pkg/api/registry"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

func mustAddress(t *testing.T, text string) federation.Address {
	t.Helper()
	return must.Get(federation.ParseAddress(text))(t)
}

func newRules(t *testing.T) *Rules {
	t.Helper()
	return &Rules{Prefix: "nsm/", Zone: services.FQDN("nsm.example")}
}

// nse returns an endpoint of network services.
func nse(name string, services ...string) *registry.NetworkServiceEndpoint {
	return &registry.NetworkServiceEndpoint{Name: name, NetworkServiceNames: services, Url: "tcp://192.0.2.1:5000"}
}

// published returns what is published of the endpoints.
func published(r *Rules, endpoints ...*registry.NetworkServiceEndpoint) (services map[string]*federation.Service, refused map[string]int) {
	services, refused = make(map[string]*federation.Service), make(map[string]int)
	offers := make(map[string][]*Endpoint)
	for _, message := range endpoints {
		e := r.Read(message)
		for _, rule := range e.Refused {
			refused[rule]++
		}
		for _, o := range e.Offers {
			offers[o.Service] = append(offers[o.Service], &e)
		}
	}
	for name, members := range offers {
		s, over := r.Encode(name, "", members)
		services[s.Name()] = s.Service()
		if over > 0 {
			refused[Limit] += over
		}
	}
	return services, refused
}

// What becomes of two endpoints, field by field.
func TestService(t *testing.T) {
	a, b := nse("nse-kernel-7d9f-abc", "web"), nse("NSE.b", "web", "api.v2")
	a.Url, b.Url = "https://192.0.2.1:8443/ignored", "tcp://[2001:db8::1]:5000"
	a.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"app": "shop", "zone": "a"}}}
	b.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"app": "shop", "zone": "b"}}}
	got, refused := published(newRules(t), a, b)
	want := map[string]*federation.Service{
		"nsm/web": {
			Name: "nsm/web", FQDN: services.FQDN("web.nsm.example"), Labels: []federation.Pair{{Key: "app", Value: "shop"}},
			Endpoints: []federation.Endpoint{
				{Address: mustAddress(t, "2001:db8::1"), Port: 5000, Labels: []string{"nse.b"}},
				{Address: mustAddress(t, "192.0.2.1"), Port: 8443, Labels: []string{"nse-kernel-7d9f-abc"}},
			},
			Instances: []federation.Instance{
				{
					ID: "nse.b", Protocol: federation.TCP, EndpointSelector: []string{"nse.b"},
					Metadata: []federation.Pair{{Key: "app", Value: "shop"}, {Key: "zone", Value: "b"}},
				},
				{
					ID: "nse-kernel-7d9f-abc", Protocol: federation.HTTPS, EndpointSelector: []string{"nse-kernel-7d9f-abc"},
					Metadata: []federation.Pair{{Key: "app", Value: "shop"}, {Key: "zone", Value: "a"}},
				},
			},
		},
		"nsm/api.v2": {
			Name: "nsm/api.v2", FQDN: services.FQDN("api.v2.nsm.example"),
			Endpoints: []federation.Endpoint{{Address: mustAddress(t, "2001:db8::1"), Port: 5000, Labels: []string{"nse.b"}}},
			Instances: []federation.Instance{{ID: "nse.b", Protocol: federation.TCP, EndpointSelector: []string{"nse.b"}}},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(federation.FQDN{}, federation.Address{}), cmp.Comparer(func(a, b federation.Address) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if len(refused) > 0 {
		t.Errorf("refused: %v", refused)
	}
}

// Each entry that is not published is counted by its rule, and harms no neighbour.
func TestRefused(t *testing.T) {
	at := func(url string) *registry.NetworkServiceEndpoint {
		e := nse("nse", "web")
		e.Url = url
		return e
	}
	labelled := func(labels map[string]string) *registry.NetworkServiceEndpoint {
		e := nse("nse", "web")
		e.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: labels}}
		return e
	}
	names := func(n int) []string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("s%d", i)
		}
		return all
	}
	tooMany := make(map[string]string)
	for i := range limits.Metadata + 1 {
		tooMany[fmt.Sprint(i)] = ""
	}
	for _, tc := range []struct {
		what     string
		endpoint *registry.NetworkServiceEndpoint
		want     map[string]int
	}{
		{"tcp", at("tcp://192.0.2.1:1"), nil},
		{"upper case", at("TCP://192.0.2.1:65535"), nil},
		{"host", at("grpc://nse.example:80"), nil},
		{"no URL", at(""), map[string]int{Missing: 1}},
		{"kernel", at("kernel://192.0.2.1:1"), map[string]int{Scheme: 1}},
		{"unix", at("unix:///run/nse.sock"), map[string]int{Scheme: 1}},
		{"memif", at("memif://x"), map[string]int{Scheme: 1}},
		{"no scheme", at("192.0.2.1"), map[string]int{Scheme: 1}},
		{"not a URL", at("tcp://[::1"), map[string]int{URL: 1}},
		{"control", at("tcp://a\x00b:1"), map[string]int{URL: 1}},
		{"no port", at("tcp://192.0.2.1"), map[string]int{Port: 1}},
		{"no port of https", at("https://192.0.2.1"), map[string]int{Port: 1}},
		{"port 0", at("tcp://192.0.2.1:0"), map[string]int{Port: 1}},
		{"port 65536", at("tcp://192.0.2.1:65536"), map[string]int{Port: 1}},
		{"port of letters", at("tcp://192.0.2.1:http"), map[string]int{Port: 1}},
		{"no host", at("tcp://:80"), map[string]int{Address: 1}},
		{"not a host", at("tcp://a..b:80"), map[string]int{Address: 1}},
		{"link of a machine", at("tcp://[fe80::1%25eth0]:80"), map[string]int{Address: 1}},
		{"loopback", at("tcp://127.0.0.1:80"), map[string]int{Address: 1}},
		{"credentials of a cloud", at("tcp://169.254.169.254:80"), map[string]int{Address: 1}},
		{"no name", nse("", "web"), map[string]int{Missing: 1}},
		{"no network service", nse("nse"), map[string]int{Missing: 1}},
		{"long name", nse(strings.Repeat("n", limits.NameBytes+1), "web"), map[string]int{Limit: 1}},
		{"longest name", nse(strings.Repeat("n", limits.NameBytes), "web"), nil},
		{"network services that are no names", nse("nse", "", "a b", "-a", "web", strings.Repeat("s", 64)), map[string]int{Name: 4}},
		{"out of the zone", nse("nse", "web.other.", "."), map[string]int{Name: 2}},
		{"network services", nse("nse", names(maxServices)...), nil},
		{"too many network services", nse("nse", names(maxServices+5)...), map[string]int{Limit: 1}},
		{"the same twice", nse("nse", "web", "web"), nil},
		{"labels", labelled(map[string]string{"k": strings.Repeat("v", maxMetadataBytes-1)}), nil},
		{"large labels", labelled(map[string]string{"k": strings.Repeat("v", maxMetadataBytes)}), map[string]int{Limit: 1}},
		{"many labels", labelled(tooMany), map[string]int{Limit: 1}},
		{"network service of another domain", nse("nse", "web@other.example"), map[string]int{Interdomain: 1}},
		{"endpoint of another domain", nse("nse@floating.example", "web"), map[string]int{Interdomain: 1}},
		{"a domain that is none", nse("nse@", "web"), map[string]int{Interdomain: 1}},
		{"the first domain decides", nse("nse@nsm.example", "web@other.example"), nil},
		{"own domain", nse("nse", "web@NSM.example."), nil},
	} {
		got, refused := published(newRules(t), tc.endpoint, nse("neighbour", "neighbour"))
		if !maps.Equal(refused, tc.want) {
			t.Errorf("%s: refused is %v, want %v", tc.what, refused, tc.want)
		}
		if got["nsm/neighbour"] == nil {
			t.Errorf("%s: the neighbour is not published", tc.what)
		}
		if tc.want == nil && len(got) < 2 {
			t.Errorf("%s: it is not published", tc.what)
		}
	}
	open := newRules(t)
	open.Policy = wire.AnyAddress()
	if got, _ := published(open, at("tcp://127.0.0.1:80")); len(got) != 1 {
		t.Error("an address is not published that the policy opens")
	}
}

// Names of the own domain are those without it.
func TestOwnDomain(t *testing.T) {
	got, _ := published(newRules(t), nse("nse@nsm.example", "web@nsm.example", "dns"), nse("nse", "web"))
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"nsm/dns", "nsm/web"}) {
		t.Fatalf("services are %v", names)
	}
	if id := got["nsm/dns"].Instances[0].ID; id != "nse" {
		t.Errorf("ID is %s", id)
	}
	if ids := ids(got["nsm/web"]); !slices.Equal(ids, []string{"nse", "nse-nsm-example-" + hexDigest("nse@nsm.example")[:8]}) {
		t.Errorf("IDs are %v", ids)
	}
}

func ids(s *federation.Service) []string {
	var all []string
	for _, in := range s.Instances {
		all = append(all, in.ID)
	}
	return all
}

// An ID is the name where that is a label; others can be read, and nobody can take the
// ID of somebody else.
func TestIDs(t *testing.T) {
	const odd = "Nse_1 of Ümit!"
	short, long := deriveID(odd, shortHash), deriveID(odd, longHash)
	for _, tc := range []struct {
		names []string
		want  []string // in the order of the names, bytewise
	}{
		{[]string{"b", "a"}, []string{"a", "b"}},
		{[]string{"nse", "NSE"}, []string{"nse-" + hexDigest("NSE")[:8], "nse"}},
		{[]string{"NSE"}, []string{"nse"}},
		{[]string{odd}, []string{short}},
		{[]string{odd, short}, []string{long, short}},
		{[]string{odd, short, long}, []string{odd, short, long}},
		{[]string{"!!!"}, []string{"nse-" + hexDigest("!!!")[:8]}},
	} {
		var endpoints []*registry.NetworkServiceEndpoint
		for _, name := range tc.names {
			endpoints = append(endpoints, nse(name, "web"))
		}
		services, refused := published(newRules(t), endpoints...)
		if len(refused) > 0 {
			t.Errorf("%q: refused: %v", tc.names, refused)
		}
		if got := ids(services["nsm/web"]); !slices.Equal(got, tc.want) {
			t.Errorf("%q: IDs are %q, want %q", tc.names, got, tc.want)
		}
	}
	for _, name := range []string{odd, strings.Repeat("long ", 100)} {
		for _, n := range []int{shortHash, longHash} {
			if _, err := federation.ParseLabel(deriveID(name, n)); err != nil {
				t.Errorf("%q: %v", deriveID(name, n), err)
			}
		}
	}
}

// The SPIFFE IDs that the registry knows of endpoints are SANs, and the payload of the
// network service is metadata.
func TestIdentityAndPayload(t *testing.T) {
	r := newRules(t)
	a, b, c := nse("a", "web"), nse("b", "web"), nse("c", "web")
	a.PathIds = []string{"spiffe://nsm.example/nse-a", "spiffe://nsm.example/nsmgr"}
	b.PathIds = []string{"nsmgr.example", "spiffe://nsm.example/nsmgr"} // no identity of an endpoint
	c.PathIds = []string{"spiffe://nsm.example/0"}
	c.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"payload": "mine", "zone": "a"}}}
	full := nse("d", "web")
	labels := make(map[string]string)
	for i := range limits.Metadata {
		labels[fmt.Sprintf("k%02d", i)] = "v"
	}
	full.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: labels}}
	var endpoints []*Endpoint
	for _, message := range []*registry.NetworkServiceEndpoint{a, b, c, full} {
		e := r.Read(message)
		endpoints = append(endpoints, &e)
	}
	for _, payload := range []string{"ETHERNET", "", "IP"} {
		encoded, _ := r.Encode("web", payload, endpoints)
		if encoded == nil {
			t.Fatal("it is not published")
		}
		s := encoded.Service()
		if want := []string{"spiffe://nsm.example/0", "spiffe://nsm.example/nse-a"}; !slices.Equal(s.SANs, want) {
			t.Errorf("the SANs are %v, expected %v", s.SANs, want)
		}
		if _, err := wire.EncodeV1Alpha1(wire.Event{Operation: wire.Upsert, Name: s.Name, Service: s}, "", false); err != nil {
			t.Error(err)
		}
		own := payload
		if payload == "" {
			own = "mine"
		}
		var alone []federation.Pair
		if payload != "" {
			alone = []federation.Pair{{Key: "payload", Value: payload}}
		}
		for i, want := range [][]federation.Pair{alone, alone, {{Key: "payload", Value: own}, {Key: "zone", Value: "a"}}, federation.Pairs(labels)} {
			if got := s.Instances[i].Metadata; !slices.Equal(got, want) {
				t.Errorf("payload %q: metadata of %s are %v, expected %v", payload, s.Instances[i].ID, got, want)
			}
		}
	}
	before := r.Read(a)
	a.PathIds[0] += "x"
	if after := r.Read(a); before.Equal(&after) {
		t.Error("another identity is no change")
	}
	for name, tt := range map[string]struct{ name, payload, service, want string }{
		"usual":          {"web", "IP", "web", "IP"},
		"of this domain": {"web@nsm.example", "IP", "web", "IP"},
		"foreign":        {"web@other.example", "IP", "web", ""},
		"too long":       {"web", strings.Repeat("x", maxPayloadBytes+1), "web", ""},
	} {
		if service, payload := r.ReadPayload(&registry.NetworkService{Name: tt.name, Payload: tt.payload}); service != tt.service || payload != tt.want {
			t.Errorf("%s: %q of %q, expected %q of %q", name, payload, service, tt.want, tt.service)
		}
	}
}
