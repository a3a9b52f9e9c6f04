package nsm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/networkservicemesh/api/pkg/api/registry"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

func mustAddress(t *testing.T, text string) federation.Address {
	t.Helper()
	a, err := federation.ParseAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// published returns what is published of the endpoints.
func published(r *rules, endpoints ...*registry.NetworkServiceEndpoint) (map[string]*federation.Service, map[string]int) {
	w := newWorld()
	for _, e := range endpoints {
		w.tell(r.read(e, false), time.Time{})
	}
	w.render(r)
	services := make(map[string]*federation.Service)
	for _, s := range w.all() {
		services[s.Name()] = s.Service()
	}
	return services, w.counts()
}

// What becomes of two endpoints, field by field.
func TestService(t *testing.T) {
	a, b := nse("nse-kernel-7d9f-abc", "web"), nse("NSE.b", "web", "api.v2")
	a.Url, b.Url = "https://192.0.2.1:8443/ignored", "tcp://[2001:db8::1]:5000"
	a.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"app": "shop", "zone": "a"}}}
	b.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"app": "shop", "zone": "b"}}}
	got, refused := published(&newSource(t).rules, a, b)
	want := map[string]*federation.Service{
		"nsm/web": {
			Name: "nsm/web", FQDN: mustFQDN(t, "web.nsm.example"), Labels: []federation.Pair{{Key: "app", Value: "shop"}},
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
			Name: "nsm/api.v2", FQDN: mustFQDN(t, "api.v2.nsm.example"),
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
	for i := range federation.MaxMetadata + 1 {
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
		{"no URL", at(""), map[string]int{ruleMissing: 1}},
		{"kernel", at("kernel://192.0.2.1:1"), map[string]int{ruleScheme: 1}},
		{"unix", at("unix:///run/nse.sock"), map[string]int{ruleScheme: 1}},
		{"memif", at("memif://x"), map[string]int{ruleScheme: 1}},
		{"no scheme", at("192.0.2.1"), map[string]int{ruleScheme: 1}},
		{"not a URL", at("tcp://[::1"), map[string]int{ruleURL: 1}},
		{"control", at("tcp://a\x00b:1"), map[string]int{ruleURL: 1}},
		{"no port", at("tcp://192.0.2.1"), map[string]int{rulePort: 1}},
		{"no port of https", at("https://192.0.2.1"), map[string]int{rulePort: 1}},
		{"port 0", at("tcp://192.0.2.1:0"), map[string]int{rulePort: 1}},
		{"port 65536", at("tcp://192.0.2.1:65536"), map[string]int{rulePort: 1}},
		{"port of letters", at("tcp://192.0.2.1:http"), map[string]int{rulePort: 1}},
		{"no host", at("tcp://:80"), map[string]int{ruleAddress: 1}},
		{"not a host", at("tcp://a..b:80"), map[string]int{ruleAddress: 1}},
		{"link of a machine", at("tcp://[fe80::1%25eth0]:80"), map[string]int{ruleAddress: 1}},
		{"loopback", at("tcp://127.0.0.1:80"), map[string]int{ruleAddress: 1}},
		{"credentials of a cloud", at("tcp://169.254.169.254:80"), map[string]int{ruleAddress: 1}},
		{"no name", nse("", "web"), map[string]int{ruleMissing: 1}},
		{"no network service", nse("nse"), map[string]int{ruleMissing: 1}},
		{"long name", nse(strings.Repeat("n", federation.MaxNameBytes+1), "web"), map[string]int{ruleLimit: 1}},
		{"longest name", nse(strings.Repeat("n", federation.MaxNameBytes), "web"), nil},
		{"network services that are no names", nse("nse", "", "a b", "-a", "web", strings.Repeat("s", 64)), map[string]int{ruleName: 4}},
		{"out of the zone", nse("nse", "web.other.", "."), map[string]int{ruleName: 2}},
		{"network services", nse("nse", names(maxServices)...), nil},
		{"too many network services", nse("nse", names(maxServices+5)...), map[string]int{ruleLimit: 1}},
		{"the same twice", nse("nse", "web", "web"), nil},
		{"labels", labelled(map[string]string{"k": strings.Repeat("v", maxMetadataBytes-1)}), nil},
		{"large labels", labelled(map[string]string{"k": strings.Repeat("v", maxMetadataBytes)}), map[string]int{ruleLimit: 1}},
		{"many labels", labelled(tooMany), map[string]int{ruleLimit: 1}},
		{"network service of another domain", nse("nse", "web@other.example"), map[string]int{ruleInterdomain: 1}},
		{"endpoint of another domain", nse("nse@floating.example", "web"), map[string]int{ruleInterdomain: 1}},
		{"a domain that is none", nse("nse@", "web"), map[string]int{ruleInterdomain: 1}},
		{"the first domain decides", nse("nse@nsm.example", "web@other.example"), nil},
		{"own domain", nse("nse", "web@NSM.example."), nil},
	} {
		got, refused := published(&newSource(t).rules, tc.endpoint, nse("neighbour", "neighbour"))
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
	open := newSource(t).rules
	open.policy = wire.AnyAddress()
	if got, _ := published(&open, at("tcp://127.0.0.1:80")); len(got) != 1 {
		t.Error("an address is not published that the policy opens")
	}
}

// Names of the own domain are those without it.
func TestOwnDomain(t *testing.T) {
	got, _ := published(&newSource(t).rules, nse("nse@nsm.example", "web@nsm.example", "dns"), nse("nse", "web"))
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"nsm/dns", "nsm/web"}) {
		t.Fatalf("services are %v", names)
	}
	if id := got["nsm/dns"].Instances[0].ID; id != "nse" {
		t.Errorf("ID is %s", id)
	}
	if ids := ids(got["nsm/web"]); !slices.Equal(ids, []string{"nse", "nse-nsm-example-" + digest("nse@nsm.example")[:8]}) {
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
	short, long := derive(odd, shortHash), derive(odd, longHash)
	for _, tc := range []struct {
		names []string
		want  []string // in the order of the names, bytewise
	}{
		{[]string{"b", "a"}, []string{"a", "b"}},
		{[]string{"nse", "NSE"}, []string{"nse-" + digest("NSE")[:8], "nse"}},
		{[]string{"NSE"}, []string{"nse"}},
		{[]string{odd}, []string{short}},
		{[]string{odd, short}, []string{long, short}},
		{[]string{odd, short, long}, []string{odd, short, long}},
		{[]string{"!!!"}, []string{"nse-" + digest("!!!")[:8]}},
	} {
		var endpoints []*registry.NetworkServiceEndpoint
		for _, name := range tc.names {
			endpoints = append(endpoints, nse(name, "web"))
		}
		services, refused := published(&newSource(t).rules, endpoints...)
		if len(refused) > 0 {
			t.Errorf("%q: refused: %v", tc.names, refused)
		}
		if got := ids(services["nsm/web"]); !slices.Equal(got, tc.want) {
			t.Errorf("%q: IDs are %q, want %q", tc.names, got, tc.want)
		}
	}
	for _, name := range []string{odd, strings.Repeat("long ", 100)} {
		for _, n := range []int{shortHash, longHash} {
			if _, err := federation.ParseLabel(derive(name, n)); err != nil {
				t.Errorf("%q: %v", derive(name, n), err)
			}
		}
	}
}

// What is published depends on what is registered, and not on how it came to that.
func TestDeterministic(t *testing.T) {
	r := &newSource(t).rules
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "A", "b", "B!", "c.d", "nse-1", "nse-2", "x y", "Ö", derive("x y", shortHash)}
	services := []string{"web", "dns", "api", "W", "bad name"}
	final := make([]*registry.NetworkServiceEndpoint, len(names))
	for i, name := range names {
		final[i] = someEndpoint(random, name, services)
	}
	want, wantRefused := published(r, final...)
	for range 200 {
		w := newWorld()
		for range random.IntN(50) { // a history that leads nowhere
			e := someEndpoint(random, names[random.IntN(len(names))], services)
			w.tell(r.read(e, false), time.Time{})
			if known := w.endpoints[e.GetName()]; known != nil && random.IntN(3) == 0 {
				w.forget(known)
			}
			if random.IntN(4) == 0 {
				w.render(r)
			}
		}
		random.Shuffle(len(final), func(i, j int) { final[i], final[j] = final[j], final[i] })
		for _, e := range final {
			w.tell(r.read(e, false), time.Time{})
		}
		w.render(r)
		got := make(map[string]*federation.Service)
		for _, s := range w.all() {
			if !s.Encodes(want[s.Name()]) {
				t.Fatalf("%s is not the same", s.Name())
			}
			got[s.Name()] = nil
		}
		if len(got) != len(want) || !maps.Equal(w.counts(), wantRefused) {
			t.Fatalf("%d services, want %d; refused %v, want %v", len(got), len(want), w.counts(), wantRefused)
		}
	}
}

func someEndpoint(random *rand.Rand, name string, services []string) *registry.NetworkServiceEndpoint {
	e := nse(name)
	for _, s := range services {
		if random.IntN(2) == 0 {
			e.NetworkServiceNames = append(e.NetworkServiceNames, s)
		}
	}
	e.Url = []string{"tcp://192.0.2.1:5000", "https://192.0.2.2:443", "unix:///x"}[random.IntN(3)]
	e.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"app": fmt.Sprint(random.IntN(2)), "same": "1"}}}
	return e
}

// Whatever two endpoints say, each service that is published is valid, and so is that of
// their neighbour, which is in it.
func FuzzEndpoints(f *testing.F) {
	add := func(a, b *registry.NetworkServiceEndpoint) {
		one, err := proto.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		two, err := proto.Marshal(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(one, two)
	}
	labelled := nse("nse", "web")
	labelled.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"app": "x"}}, "dns": nil}
	labelled.ExpirationTime = &timestamppb.Timestamp{Seconds: -1, Nanos: -1}
	add(nse("a", "web"), nse("A", "web"))
	add(nse("x y", "web"), nse(derive("x y", shortHash), "web@nsm.example"))
	add(labelled, nse("neighbour@nsm.example", "web", "web", ""))
	r := &newSource(f).rules
	f.Fuzz(func(t *testing.T, one, two []byte) {
		w := newWorld()
		w.tell(r.read(nse("neighbour", "web"), false), time.Time{})
		for _, data := range [][]byte{one, two} {
			message := new(registry.NetworkServiceEndpoint)
			if proto.Unmarshal(data, message) != nil || message.GetName() == "neighbour" {
				return
			}
			w.tell(r.read(message, false), time.Time{})
		}
		w.render(r)
		found := false
		for _, s := range w.all() {
			service := s.Service()
			if err := service.Validate(); err != nil {
				t.Error(err)
			}
			if invalid := r.policy.Check(service); invalid != nil {
				t.Error(invalid)
			}
			if !service.FQDN.Within(r.zone) || !strings.HasPrefix(service.Name, "nsm/") {
				t.Errorf("service %s has the fqdn %s", service.Name, service.FQDN)
			}
			found = found || slices.Contains(ids(service), "neighbour")
		}
		if !found {
			t.Error("the neighbour is not published")
		}
		for _, e := range w.endpoints {
			w.forget(e)
		}
		w.render(r)
		if len(w.all()) > 0 || len(w.services) > 0 || len(w.counts()) > 0 || len(w.deadlines) > 0 {
			t.Errorf("something is left: %v", w.counts())
		}
	})
}
