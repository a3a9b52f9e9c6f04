package nsm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/networkservicemesh/api/pkg/api/registry"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// say has the state learn what the registry says of an endpoint that never expires.
func say(w *registryState, s *Source, e *registry.NetworkServiceEndpoint) {
	w.noteEndpoint(endpointReport{key: e.GetName(), said: s.rules.Read(e)}, time.Time{})
}

// all returns every service that is published.
func all(w *registryState, s *Source) []*wire.EncodedService {
	for name := range w.services {
		w.changed[name] = struct{}{}
	}
	services, _ := w.encodeChanged(&s.rules)
	return services
}

// What is published depends on what is registered, and not on how it came to that.
func TestDeterministic(t *testing.T) {
	src := newSource(t)
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "A", "b", "B!", "c.d", "nse-1", "nse-2", "x y", "Ö", "x-y-"}
	services := []string{"web", "dns", "api", "W", "bad name"}
	final := make([]*registry.NetworkServiceEndpoint, len(names))
	for i, name := range names {
		final[i] = someEndpoint(random, name, services)
	}
	want := newRegistryState()
	for _, e := range final {
		say(want, src, e)
	}
	for range 200 {
		w := newRegistryState()
		for range random.IntN(50) { // a history that leads nowhere
			e := someEndpoint(random, names[random.IntN(len(names))], services)
			say(w, src, e)
			if known := w.endpoints[e.GetName()]; known != nil && random.IntN(3) == 0 {
				w.removeEndpoint(known)
			}
			if random.IntN(4) == 0 {
				w.encodeChanged(&src.rules)
			}
		}
		random.Shuffle(len(final), func(i, j int) { final[i], final[j] = final[j], final[i] })
		for _, e := range final {
			say(w, src, e)
		}
		if !slices.EqualFunc(all(w, src), all(want, src), (*wire.EncodedService).Equal) || !maps.Equal(w.refusedCounts(), want.refusedCounts()) {
			t.Fatalf("it is not the same; refused %v, want %v", w.refusedCounts(), want.refusedCounts())
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
		one := must.Get(proto.Marshal(a))(f)
		two := must.Get(proto.Marshal(b))(f)
		f.Add(one, two)
	}
	labelled := nse("nse", "web")
	labelled.NetworkServiceLabels = map[string]*registry.NetworkServiceLabels{"web": {Labels: map[string]string{"app": "x"}}, "dns": nil}
	labelled.ExpirationTime = &timestamppb.Timestamp{Seconds: -1, Nanos: -1}
	add(nse("a", "web"), nse("A", "web"))
	add(nse("x y", "web"), nse("x-y", "web@nsm.example"))
	add(labelled, nse("neighbour@nsm.example", "web", "web", ""))
	src := newSource(f)
	f.Fuzz(func(t *testing.T, one, two []byte) {
		w := newRegistryState()
		say(w, src, nse("neighbour", "web"))
		for _, data := range [][]byte{one, two} {
			message := new(registry.NetworkServiceEndpoint)
			if proto.Unmarshal(data, message) != nil || message.GetName() == "neighbour" {
				return
			}
			say(w, src, message)
		}
		found := false
		for _, s := range all(w, src) {
			service := s.Service()
			if err := service.Validate(); err != nil {
				t.Error(err)
			}
			if invalid := src.rules.Policy.Check(service); invalid != nil {
				t.Error(invalid)
			}
			if !service.FQDN.Within(src.rules.Zone) || !strings.HasPrefix(service.Name, "nsm/") {
				t.Errorf("service %s has the fqdn %s", service.Name, service.FQDN)
			}
			for _, in := range service.Instances {
				found = found || in.ID == "neighbour"
			}
		}
		if !found {
			t.Error("the neighbour is not published")
		}
		for _, e := range w.endpoints {
			w.removeEndpoint(e)
		}
		if len(all(w, src)) > 0 || len(w.services) > 0 || len(w.refusedCounts()) > 0 || !w.nextDeadline(time.Now().Add(1000*time.Hour)).IsZero() {
			t.Errorf("something is left: %v", w.refusedCounts())
		}
	})
}
