package importer

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

var rewrite = flag.Bool("update", false, "write the files of testdata anew")

// stand is an owner, an API server and importers, in the time of a bubble.
type stand struct {
	*simulation.Simulation

	api      *testAPI
	registry *registry.Registry
	stop     func() // the owner
	files    mtls.Files
	config   func(*Config) // changes that of the next importer; may be nil
	dns      *testUpstream
}

const retention = time.Hour

func newStand(t *testing.T) *stand {
	s := &stand{Simulation: simulation.New(t), api: newTestAPI(t), dns: new(testUpstream)}
	s.files = pki.Issue(t, s.Authority(), pki.Named("importer"))
	return s
}

// testUpstream has the addresses of hosts. One that it does not have is not answered for.
type testUpstream struct{ hosts sync.Map }

// Address implements hostname.Upstream.
func (*testUpstream) Address() string { return "test" }

// Ask implements hostname.Upstream.
func (u *testUpstream) Ask(_ context.Context, host string, qtype uint16, _ int) *dns.Msg {
	address, known := u.hosts.Load(host)
	if !known {
		return nil
	}
	reply := new(dns.Msg)
	reply.SetQuestion(host, qtype)
	if rr, err := dns.NewRR(fmt.Sprint(host, " 60 IN A ", address)); err == nil && qtype == dns.TypeA {
		reply.Answer = []dns.RR{rr}
	}
	return reply
}

// persist has importers keep catalogs in files.
func (s *stand) persist() {
	folder := s.TempDir()
	s.config = func(c *Config) { c.Persist = folder }
}

// own runs the owner with these services.
func (s *stand) own(all ...*federation.Service) {
	s.Helper()
	s.registry, s.stop = s.Owner(simulation.OwnerAddress, all...)
}

// run runs an importer until the test ends or the returned function is called.
func (s *stand) run() (m *Importer, stop func()) {
	s.Helper()
	m = s.newImporter()
	return m, must.Run(s, m.Run)
}

func (s *stand) newImporter() *Importer {
	s.Helper()
	kubeconfig := filepath.Join(s.TempDir(), "kubeconfig")
	must.Do(s, os.WriteFile(kubeconfig, []byte(`{current-context: a, contexts: [{name: a, context: {cluster: a, namespace: fed}}], clusters: [{name: a, cluster: {server: "http://api.example"}}]}`), 0o600))
	config := Config{
		Owners: []Owner{{
			Owner:     consumer.Owner{Name: "mesh-a", Addresses: []string{simulation.OwnerAddress}, Zones: []federation.FQDN{services.FQDN("fed.example")}, Settle: 5 * time.Second, MaxCatalog: 1 << 30},
			Retention: retention,
		}},
		Identity: mtls.Origin{Files: s.files}, Target: Target{Kubeconfig: kubeconfig, Name: "{service}"}, Logger: slog.New(slog.NewTextHandler(&s.Logged, nil)),
	}
	if s.config != nil {
		s.config(&config)
	}
	return must.Get(newImporter(s.Context(), config, hooks{
		wrap: func(http.RoundTripper) http.RoundTripper { return s.api }, dial: s.Dial, identity: pki.NewIdentity(s.Source("consumer.example")), upstream: s.dns,
	}))(s)
}

// wrote checks what was written since it was asked last.
func (s *stand) wrote(when string, want ...string) {
	s.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, s.api.take()); diff != "" {
		s.Errorf("%s: unexpected writes (-want +got):\n%s", when, diff)
	}
}

// has checks which objects there are but for leases.
func (s *stand) has(when string, want ...string) {
	s.Helper()
	synctest.Wait()
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	var got []string
	for name := range s.api.objects {
		if !strings.HasPrefix(name, "leases/") && !strings.HasPrefix(name, "configmaps/") {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("%s: unexpected objects (-want +got):\n%s", when, diff)
	}
}

// count returns how many objects there are, with the lease and the ConfigMap.
func (s *stand) count() int {
	synctest.Wait()
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	return len(s.api.objects)
}

func (s *stand) service(name string) *corev1.Service {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	o, _ := s.api.objects["services/"+name].(*corev1.Service)
	return o
}

func (s *stand) slice(name string) *discoveryv1.EndpointSlice {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	o, _ := s.api.objects["endpointslices/"+name].(*discoveryv1.EndpointSlice)
	return o
}

func at(fqdn, address string) *federation.Service { return services.At(fqdn, address) }

// many returns so many services.
func many(n int) (all []*federation.Service) {
	for i := range n {
		all = append(all, at(fmt.Sprintf("s%02d.fed.example", i), "192.0.2.1"))
	}
	return all
}

// A service becomes a Service and a slice. A change of endpoints is one request, a new service two, and a
// deleted one two. Nothing is written without a change, not by a restart either.
func TestServices(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(at("web.shop.fed.example", "192.0.2.1"))
		_, stop := s.run()
		time.Sleep(10 * time.Second)
		s.wrote("a start", "POST configmaps/federation-import", "POST endpointslices/web-shop-v4-https-443", "POST services/web-shop")
		service, slice := s.service("web-shop"), s.slice("web-shop-v4-https-443")
		if service == nil || slice == nil {
			t.Fatal(s.Logged.String())
		}
		if got := service.Annotations[fqdnAnnotation]; got != "web.shop.fed.example." || service.Labels[managedBy] != manager || service.OwnerReferences[0].Name != anchor {
			t.Errorf("the Service is %+v", service)
		}
		want := []corev1.ServicePort{{Name: "https", Protocol: "TCP", Port: 443, TargetPort: intstr.FromInt32(443)}}
		if diff := cmp.Diff(want, service.Spec.Ports); diff != "" || len(service.Spec.Selector) > 0 {
			t.Errorf("unexpected ports (-want +got):\n%s", diff)
		}
		if slice.Labels[discoveryv1.LabelServiceName] != "web-shop" || slice.Endpoints[0].Addresses[0] != "192.0.2.1" || *slice.Ports[0].Port != 443 {
			t.Errorf("the slice is %+v", slice)
		}
		must.Get(s.registry.Upsert(at("web.shop.fed.example", "192.0.2.2")))(t)
		s.wrote("other endpoints", "PUT endpointslices/web-shop-v4-https-443")
		must.Get(s.registry.Upsert(at("db.fed.example", "2001:db8::1")))(t)
		s.wrote("a new service", "POST endpointslices/db-v6-https-443", "POST services/db")
		s.registry.Delete(at("db.fed.example", "2001:db8::1").Name)
		s.wrote("a deleted service", "DELETE endpointslices/db-v6-https-443", "DELETE services/db")
		must.Get(s.registry.Upsert(at("db.fed.example", "2001:db8::1")))(t)
		s.wrote("it is back", "POST endpointslices/db-v6-https-443", "POST services/db")
		time.Sleep(2 * time.Hour)
		s.wrote("at rest")
		stop()
		s.run()
		time.Sleep(time.Minute)
		s.wrote("a restart")
	})
}

// An owner that is lost and back within the grace, or after it, changes no object of a service. Beyond the
// retention its objects go, and come back with it.
func TestOwnerLost(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(many(20)...)
		m, _ := s.run()
		time.Sleep(10 * time.Second)
		s.api.take()
		s.stop()
		time.Sleep(time.Second)
		s.own(many(20)...)
		time.Sleep(time.Minute)
		s.wrote("a loss within the grace")
		s.stop()
		time.Sleep(retention - time.Minute)
		s.wrote("a longer loss")
		s.own(many(20)...)
		time.Sleep(2 * time.Minute)
		s.wrote("the owner is back")
		if got := m.Status().Imports; got.Services[status.ImportWritten] != 20 || len(got.Refused) > 0 {
			t.Errorf("written %d, refused %v", got.Services[status.ImportWritten], got.Refused)
		}
		s.stop()
		time.Sleep(retention - time.Second)
		if n := s.count(); n != 42 {
			t.Errorf("a moment before the end of the retention there are %d objects", n)
		}
		time.Sleep(2 * time.Second)
		s.has("after the retention")
		if u := m.Status().Owners[0]; u.State != "expired" {
			t.Errorf("the owner is %s", u.State)
		}
		s.own(many(20)...)
		time.Sleep(2 * time.Minute)
		if got := s.service("s00"); got == nil {
			t.Error("the Services are not back")
		}
	})
}

// Objects of an earlier start stay while their owner is lost, until the retention ends. It counts from when the
// owner was lost where a file has that, and otherwise from the start. The owner that is complete decides before.
func TestRestartWhileLost(t *testing.T) {
	for name, test := range map[string]struct {
		persist bool
		lostFor time.Duration // before the restart
		left    time.Duration // of the retention then
	}{
		"long ago":       {true, 50 * time.Minute, 10 * time.Minute},
		"over meanwhile": {true, 2 * retention, 0},
		"unknown":        {false, 50 * time.Minute, retention},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newStand, func(t *testing.T, s *stand) {
				if test.persist {
					s.persist()
				}
				s.own(many(20)...)
				_, stop := s.run()
				time.Sleep(10 * time.Second)
				s.stop()
				time.Sleep(min(test.lostFor, retention-time.Minute))
				stop()
				time.Sleep(test.lostFor - min(test.lostFor, retention-time.Minute))
				_, stop = s.run()
				if test.left > 0 {
					time.Sleep(test.left - 2*time.Second)
					if n := s.count(); n != 42 {
						t.Errorf("before the end of the retention there are %d objects", n)
					}
				}
				time.Sleep(5 * time.Second)
				s.has("after the retention")
				stop()
				s.own(many(20)...)
				s.run()
				time.Sleep(time.Minute)
				if s.service("s00") == nil {
					t.Error("the Services are not back")
				}
			})
		})
	}
}

// An owner that comes back to a restarted importer without most of its services, and marks the end of its catalog,
// has withdrawn them.
func TestRestartAndLess(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(many(20)...)
		_, stop := s.run()
		time.Sleep(10 * time.Second)
		stop()
		s.stop()
		m, _ := s.run()
		time.Sleep(time.Minute)
		if got := m.Status().Imports.Services; got[status.ImportKept] != 20 || len(got) > 1 {
			t.Errorf("%v, want 20 kept", got)
		}
		s.own(many(5)...)
		time.Sleep(time.Minute)
		if got := m.Status().Imports.Services; got[status.ImportWritten] != 5 || len(got) > 1 {
			t.Errorf("%v, want 5 written", got)
		}
		if n := s.count(); n != 12 {
			t.Errorf("there are %d objects", n)
		}
	})
}

// What somebody else has made is never touched, and gets no endpoints: before, after, and in the place of the
// importer's.
func TestForeignService(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		foreign := func(name string) *corev1.Service {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "fed", Name: name, UID: "foreign"}}
		}
		s.api.change(func() { s.api.put("", "services/web", foreign("web")) })
		s.own(at("web.fed.example", "192.0.2.1"), at("db.fed.example", "192.0.2.2"))
		m, _ := s.run()
		time.Sleep(time.Minute)
		s.wrote("somebody has it", "POST configmaps/federation-import", "POST endpointslices/db-v4-https-443", "POST services/db")
		if got := m.Status().Imports; got.Refused[status.ImportNameTaken] != 1 || got.Problems[0].Object != "fed/web" {
			t.Errorf("the status says %+v", got)
		}
		s.api.change(func() { s.api.remove("services/web") })
		s.wrote("it is gone", "POST endpointslices/web-v4-https-443", "POST services/web")
		s.api.change(func() {
			s.api.remove("services/db")
			s.api.put("", "services/db", foreign("db"))
		})
		s.wrote("in the place of one", "DELETE endpointslices/db-v4-https-443")
		s.registry.Delete(at("db.fed.example", "192.0.2.2").Name)
		time.Sleep(time.Minute)
		s.wrote("the service is gone")
		s.api.setAnswer(func(method, name string) int { // somebody makes one at the same time
			if method == http.MethodPost && name == "services/late" {
				s.api.answer = nil
				s.api.put("", name, foreign("late"))
			}
			return 0
		})
		must.Get(s.registry.Upsert(at("late.fed.example", "192.0.2.1")))(t)
		time.Sleep(time.Minute)
		s.wrote("at the same time", " services/late")
	})
}

// An acknowledgement waits for the server, and not for one that has refused. A server that is away takes
// nothing from anybody, and is read again when it is back.
func TestServerAway(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(many(3)...)
		m, _ := s.run()
		time.Sleep(10 * time.Second)
		s.api.take()
		s.api.setAway(true)
		must.Get(s.registry.Upsert(at("late.fed.example", "192.0.2.1")))(t)
		must.Get(s.registry.Upsert(at("s00.fed.example", "192.0.2.9")))(t)
		time.Sleep(5 * time.Second)
		if u := m.Status(); u.Imports.Failure == "" || u.Imports.Services[status.ImportPending] == 0 {
			t.Errorf("the status says %+v", u.Imports)
		}
		time.Sleep(time.Minute)
		s.api.change(func() { // restored from a backup: one object is older, and one is missing
			s.api.objects["services/s01"].SetResourceVersion("1")
			delete(s.api.objects, "endpointslices/s02-v4-https-443")
		})
		s.api.setAway(false)
		time.Sleep(time.Minute)
		s.wrote("it is back", "POST endpointslices/late-v4-https-443", "POST endpointslices/s02-v4-https-443", "POST services/late", "PUT endpointslices/s00-v4-https-443")
		if u := m.Status(); u.Imports.Failure != "" || u.Imports.Services[status.ImportPending] > 0 || u.Imports.Services[status.ImportWritten] != 4 {
			t.Errorf("the status says %+v", u.Imports)
		}
		s.api.change(func() { // restored once more, before any request could fail
			delete(s.api.objects, "endpointslices/s02-v4-https-443")
			s.api.objects["leases/federation-import"].SetResourceVersion("1")
		})
		time.Sleep(time.Minute)
		s.wrote("restored", "POST endpointslices/s02-v4-https-443")
		s.api.setAnswer(func(method, _ string) int {
			if method == http.MethodPost {
				return http.StatusForbidden
			}
			return 0
		})
		must.Get(s.registry.Upsert(at("quota.fed.example", "192.0.2.1")))(t)
		must.Get(s.registry.Upsert(at("s00.fed.example", "192.0.2.10")))(t)
		time.Sleep(time.Second)
		s.wrote("a quota", "PUT endpointslices/s00-v4-https-443")
		if u := m.Status(); u.Imports.Refused[status.ImportRejected] != 1 {
			t.Errorf("the status says %+v", u.Imports)
		}
		s.api.setAnswer(nil)
		time.Sleep(2 * time.Minute)
		s.wrote("the quota is gone", "POST endpointslices/quota-v4-https-443", "POST services/quota")
	})
}

// One replica writes, and another goes on when that one ends, without a write that changes nothing.
func TestReplicas(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(many(3)...)
		_, stop := s.run()
		time.Sleep(10 * time.Second)
		second, _ := s.run()
		time.Sleep(time.Minute)
		s.api.take()
		if u := second.Status(); u.Imports.Leads || !u.Ready {
			t.Errorf("the second replica: %+v", u.Imports)
		}
		must.Get(s.registry.Upsert(at("more.fed.example", "192.0.2.9")))(t)
		s.registry.Delete(at("more.fed.example", "192.0.2.9").Name)
		time.Sleep(time.Second)
		s.api.take()
		if n := len(second.names); n != 3 {
			t.Errorf("the second replica has %d names", n)
		}
		stop()
		must.Get(s.registry.Upsert(at("s00.fed.example", "192.0.2.9")))(t)
		time.Sleep(20 * time.Second)
		s.wrote("the second leads", "PUT endpointslices/s00-v4-https-443")
	})
}

// The ConfigMap that is deleted takes everything with it, and an importer that runs makes all of it anew.
func TestConfigMapDeleted(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(many(2)...)
		s.run()
		time.Sleep(10 * time.Second)
		s.api.change(func() {
			for _, name := range []string{"configmaps/federation-import", "services/s00", "endpointslices/s00-v4-https-443"} {
				s.api.remove(name)
			}
		})
		time.Sleep(time.Minute)
		s.wrote("all are of the new one", "POST configmaps/federation-import", "POST endpointslices/s00-v4-https-443", "POST services/s00",
			"PUT endpointslices/s01-v4-https-443", "PUT services/s01")
	})
}

// A namespace that is deleted takes the ConfigMap with it, after the Services. In the one that comes next, nothing
// refers to the ConfigMap that is gone.
func TestNamespaceDeleted(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(many(2)...)
		m, _ := s.run()
		time.Sleep(10 * time.Second)
		s.api.setAnswer(func(method, _ string) int {
			if method == http.MethodPost {
				return http.StatusNotFound
			}
			return 0
		})
		s.api.change(func() {
			for i := range 2 {
				s.api.remove(fmt.Sprintf("services/s%02d", i))
				s.api.remove(fmt.Sprintf("endpointslices/s%02d-v4-https-443", i))
			}
		})
		time.Sleep(10 * time.Second)
		s.wrote("it is being deleted")
		if got := m.Status().Imports; got.Refused[status.ImportNamespace] != 2 {
			t.Errorf("refused are %v", got.Refused)
		}
		s.api.change(func() { s.api.remove("configmaps/federation-import") })
		s.api.setAnswer(nil)
		time.Sleep(time.Minute)
		s.wrote("there is another", "POST configmaps/federation-import", "POST endpointslices/s00-v4-https-443", "POST endpointslices/s01-v4-https-443", "POST services/s00", "POST services/s01")
		if got := m.Status().Imports; len(got.Refused) > 0 || got.Services[status.ImportWritten] != 2 {
			t.Errorf("the status says %+v", got)
		}
	})
}

// A ConfigMap of the name that somebody else has made stays as it is, and nothing is written.
func TestForeignConfigMap(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.api.change(func() {
			s.api.put("", "configmaps/federation-import", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "fed", Name: anchor, UID: "foreign"}})
		})
		s.own(many(2)...)
		m, _ := s.run()
		time.Sleep(time.Minute)
		s.wrote("somebody has it")
		if got := m.Status().Imports; !strings.Contains(got.Failure, "no importer has made") || got.Services[status.ImportPending] == 0 || len(got.Services) > 1 { // the second may wait for the acknowledgement of the first
			t.Errorf("the status says %+v", got)
		}
		s.api.change(func() { s.api.remove("configmaps/federation-import") })
		time.Sleep(2 * time.Minute)
		if s.service("s00") == nil {
			t.Error("the Services are missing")
		}
	})
}

// Hosts are looked up, and followed by their TTL. One that cannot be looked up changes nothing.
func TestHosts(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.dns.hosts.Store("gw.example.", "192.0.2.7")
		s.own(at("web.fed.example", "gw.example"))
		m, _ := s.run()
		time.Sleep(10 * time.Second)
		if got := s.slice("web-v4-https-443"); got == nil || got.Endpoints[0].Addresses[0] != "192.0.2.7" {
			t.Fatalf("the slice is %+v", got)
		}
		s.api.take()
		s.dns.hosts.Store("gw.example.", "192.0.2.8")
		time.Sleep(time.Minute)
		s.wrote("another address", "PUT endpointslices/web-v4-https-443")
		s.dns.hosts.Delete("gw.example.")
		time.Sleep(10 * time.Minute)
		s.wrote("no answer")
		s.dns.hosts.Store("gw.example.", "127.0.0.1") // which nobody may publish
		time.Sleep(10 * time.Minute)
		s.wrote("a refused address", "DELETE endpointslices/web-v4-https-443")
		if got := m.Status().Imports; got.Refused[status.ImportNoEndpoint] != 1 {
			t.Errorf("the status says %+v", got)
		}
		s.dns.hosts.Store("gw.example.", "192.0.2.8")
		time.Sleep(10 * time.Minute)
		s.wrote("and back", "POST endpointslices/web-v4-https-443")
	})
}

// Of two services that lead to one name, the one that was there first has it, also after a restart.
func TestRivals(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(at("a-b.fed.example", "192.0.2.1"))
		_, stop := s.run()
		time.Sleep(10 * time.Second)
		must.Get(s.registry.Upsert(at("a.b.fed.example", "192.0.2.2")))(t)
		must.Get(s.registry.Upsert(at("0.fed.example", "192.0.2.3")))(t)
		stop()
		m, _ := s.run()
		time.Sleep(10 * time.Second)
		if got := s.slice("a-b-v4-https-443").Endpoints[0].Addresses[0]; got != "192.0.2.1" {
			t.Errorf("the name has %s", got)
		}
		if got := m.Status(); got.Imports.Refused[status.ImportRival] != 1 || got.Owners[0].NotAdmitted != 1 {
			t.Errorf("refused are %v, and %d of the owner", got.Imports.Refused, got.Owners[0].NotAdmitted)
		}
		w := must.Get(m.Why(t.Context(), "a.b.fed.example.", dns.TypeA))(t)
		if len(w.Imports) != 1 || w.Imports[0].State != status.ImportRival || !strings.Contains(w.Imports[0].Rule, "a-b.fed.example. of owner mesh-a") {
			t.Errorf("why: %+v", w.Imports)
		}
		w = must.Get(m.Why(t.Context(), "0.fed.example.", dns.TypeA))(t)
		if len(w.Imports) > 0 || len(w.Refused[0].Refusals) != 1 || !strings.HasPrefix(w.Refused[0].Refusals[0].Rule, "0 is no name of a Service") {
			t.Errorf("why: %+v", w)
		}
		s.registry.Delete(at("a-b.fed.example", "192.0.2.1").Name)
		time.Sleep(time.Minute)
		if got := s.slice("a-b-v4-https-443").Endpoints[0].Addresses[0]; got != "192.0.2.2" {
			t.Errorf("then the name has %s", got)
		}
	})
}

// A dry run prints the objects, and says which services have none. It asks no API server.
func TestDryRun(t *testing.T) {
	for name, test := range map[string]struct {
		mcs bool
		of  []*federation.Service
	}{
		"services": {false, []*federation.Service{at("web.fed.example", "192.0.2.1"), at("0.fed.example", "192.0.2.2"), at("gone.fed.example", "gone.example")}},
		"mcs":      {true, []*federation.Service{exported("west", "192.0.2.1", 1), exported("south", "gone.example", 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			simulation.Run(t, newStand, func(t *testing.T, s *stand) {
				s.own(test.of...)
				s.config = func(c *Config) {
					c.DryRun, c.Target = true, Target{Name: "{service}", Namespace: "fed", MCS: test.mcs, Cluster: "east"}
				}
				s.api.setAway(true)
				var out strings.Builder
				must.Do(t, s.newImporter().DryRun(t.Context(), &out))
				file := filepath.Join("testdata", "dryrun-"+name+".yaml")
				if *rewrite {
					must.Do(t, os.WriteFile(file, []byte(out.String()), 0o600))
				}
				want := must.Get(os.ReadFile(file))(t)
				if diff := cmp.Diff(string(want), out.String()); diff != "" {
					t.Errorf("printed (-want +got):\n%s", diff)
				}
				s.stop()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if err := s.newImporter().DryRun(ctx, io.Discard); err == nil || !strings.Contains(err.Error(), "not complete: mesh-a") {
					t.Errorf("without the owner: %v", err)
				}
			})
		})
	}
}

// TestMain takes client-go's error handlers away, one of which sleeps by the clock of the machine.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil //nolint:reassign // it has no other way
	os.Exit(m.Run())
}
