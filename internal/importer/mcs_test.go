package importer

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/mcs"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// newClusterSet returns a stand whose importers are of the cluster east, and make ServiceImports.
func newClusterSet(t *testing.T) *stand {
	s := newStand(t)
	s.config = func(c *Config) { c.Target.MCS, c.Target.Cluster = true, "east" }
	return s
}

// exported returns what the owner of a cluster makes of the Service fed/web and its ServiceExport of an
// hour: an endpoint with the port number 8000 for its TCP port 80, and changes.
func exported(cluster, address string, hour int, change ...func(*mcs.Export)) *federation.Service {
	e := mcs.Export{
		Cluster: cluster, Namespace: "fed", Name: "web", Created: metav1.Date(2000, 1, 1, hour, 0, 0, 0, time.UTC),
		ServiceImportSpec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}, SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		},
		Targets: map[string][]uint16{"TCP/80": {8000}},
	}
	for _, c := range change {
		c(&e)
	}
	service := at("web.fed."+cluster+".fed.example", address)
	service.Name, service.Labels = cluster+"/fed/web", []federation.Pair{{Key: mcs.Label, Value: must.Value(e.Encode())}}
	service.Endpoints[0].Port = 8000
	return service
}

// derived is the name of the derived Service of fed/web.
var derived = derivedName(&mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "fed", Name: "web"}})

// imported returns the ServiceImport fed/web that there is, or nil.
func (s *stand) imported() *mcsv1beta1.ServiceImport {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	o, _ := s.api.objects["serviceimports/web"].(*mcsv1beta1.ServiceImport)
	return o
}

// ownExport has east export the Service fed/web, with a pod at 10.9.0.1, at an hour.
func (s *stand) ownExport(hour int, change ...func(*corev1.Service)) {
	s.api.change(func() {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "fed", Name: "web", UID: "own"}}
		service.Spec = corev1.ServiceSpec{
			ClusterIP: "10.0.9.9", Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}, SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		}
		for _, c := range change {
			c(service)
		}
		s.api.put("", "services/web", service)
		s.api.put("", "endpointslices/web-abc", &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "fed", Name: "web-abc", UID: "own-slice", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.0.1"}, NodeName: new("n1"), Hostname: new("web-0"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}},
		})
		s.api.put("", "serviceexports/web", &mcsv1beta1.ServiceExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fed", Name: "web", UID: "own-export", CreationTimestamp: metav1.Date(2000, 1, 1, hour, 0, 0, 0, time.UTC)},
			Status:     mcsv1beta1.ServiceExportStatus{Conditions: []metav1.Condition{{Type: "Valid", Status: metav1.ConditionTrue}}},
		})
	})
}

// conflict returns the reason of the condition Conflict of the own ServiceExport, and its message.
func (s *stand) conflict() (reason, message string) {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	export, _ := s.api.objects["serviceexports/web"].(*mcsv1beta1.ServiceExport)
	if c := meta.FindStatusCondition(export.Status.Conditions, string(mcsv1beta1.ServiceExportConditionConflict)); c != nil {
		reason, message = c.Reason, c.Message
	}
	if meta.FindStatusCondition(export.Status.Conditions, "Valid") == nil {
		s.Error("the condition Valid is gone, which is not the importer's")
	}
	return reason, message
}

// What one cluster exports becomes a ServiceImport with the addresses of a derived Service, and slices.
// Nothing is written without a change, not by a restart either.
func TestServiceImport(t *testing.T) {
	simulation.Run(t, newClusterSet, func(t *testing.T, s *stand) {
		more := func(e *mcs.Export) {
			e.Ports = append(e.Ports, mcsv1beta1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}, mcsv1beta1.ServicePort{Name: "none", Protocol: corev1.ProtocolSCTP, Port: 54})
			e.Targets["UDP/53"] = []uint16{5300}
			e.SessionAffinity, e.SessionAffinityConfig = corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10))}}
			e.TrafficDistribution = new("PreferClose")
			e.Labels, e.Annotations = map[string]string{"tier": "public", managedBy: "mallory", mcsv1beta1.LabelServiceName: "other"}, map[string]string{"a": "b", ownerKey: "mesh-a"}
		}
		plain := at("plain.fed.example", "192.0.2.9")
		s.own(exported("west", "192.0.2.1", 1, more), plain)
		m, stop := s.run()
		time.Sleep(10 * time.Second)
		d := derived
		s.wrote("a start", "PATCH serviceimports/web", "POST endpointslices/"+d+"-west-v4-dns-5300", "POST endpointslices/"+d+"-west-v4-http-8000",
			"POST serviceimports/web", "POST services/"+d, "PUT serviceimports/web")
		i, service, slice := s.imported(), s.service(d), s.slice(d+"-west-v4-dns-5300")
		if i == nil || service == nil || slice == nil {
			t.Fatal(s.Logged.String())
		}
		want := mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, IPs: service.Spec.ClusterIPs, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []mcsv1beta1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}, {Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "none", Protocol: corev1.ProtocolSCTP, Port: 54},
			},
			SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10))}},
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), TrafficDistribution: new("PreferClose"),
		}
		if diff := cmp.Diff(want, i.Spec); diff != "" {
			t.Errorf("ServiceImport (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"tier": "public", managedBy: mcsManager}, i.Labels) + cmp.Diff(map[string]string{"a": "b"}, i.Annotations); diff != "" {
			t.Errorf("labels and annotations (-want +got):\n%s", diff)
		}
		if i.Status.EndpointSliceObjects != mcsv1beta1.EndpointSliceObjectsPresent || len(i.Status.Clusters) != 1 || i.Status.Clusters[0].Cluster != "west" {
			t.Errorf("status %+v", i.Status)
		}
		if len(service.Spec.Ports) != 3 || len(service.Spec.Selector) > 0 || service.OwnerReferences[0].UID != i.UID {
			t.Errorf("derived Service %+v", service)
		}
		wantLabels := map[string]string{
			managedBy: mcsManager, ownerKey: "mesh-a", mcsv1beta1.LabelServiceName: "web", mcsv1beta1.LabelSourceCluster: "west",
			discoveryv1.LabelServiceName: d, discoveryv1.LabelManagedBy: mcsManager,
		}
		if diff := cmp.Diff(wantLabels, slice.Labels); diff != "" || slice.Endpoints[0].Addresses[0] != "192.0.2.1" || *slice.Ports[0].Port != 5300 || slice.OwnerReferences[0].UID != i.UID {
			t.Errorf("slice %+v, labels (-want +got):\n%s", slice, diff)
		}
		if r := m.Status().Imports; r.Services[status.ImportWritten] != 1 || len(r.Refused) > 0 {
			t.Errorf("status %+v", r)
		}
		must.Get(s.registry.Upsert(exported("west", "192.0.2.2", 1, more)))(t)
		s.wrote("other endpoints", "PUT endpointslices/"+d+"-west-v4-dns-5300", "PUT endpointslices/"+d+"-west-v4-http-8000")
		must.Get(s.registry.Upsert(exported("west", "192.0.2.2", 1)))(t)
		s.wrote("fewer properties", "DELETE endpointslices/"+d+"-west-v4-dns-5300", "PUT serviceimports/web", "PUT services/"+d)
		if i := s.imported(); i.Spec.TrafficDistribution != nil || i.Spec.SessionAffinityConfig != nil || len(i.Labels) != 1 || len(i.Annotations) > 0 {
			t.Errorf("of the properties stay %+v", i)
		}
		time.Sleep(24 * time.Hour)
		stop()
		s.run()
		time.Sleep(time.Minute)
		s.wrote("a day and a restart")
		must.Get(s.registry.Upsert(exported("west", "192.0.2.2", 1, func(e *mcs.Export) { e.Type = mcsv1beta1.Headless })))(t)
		s.wrote("a headless Service", "DELETE services/"+d, "PUT serviceimports/web")
		if i := s.imported(); i.Spec.Type != mcsv1beta1.Headless || len(i.Spec.IPs) > 0 {
			t.Errorf("ServiceImport %+v", i.Spec)
		}
		s.registry.Delete("west/fed/web")
		s.wrote("a deleted ServiceExport", "DELETE endpointslices/"+d+"-west-v4-http-8000", "DELETE serviceimports/web")
	})
}

// The own cluster exports the Service as well. Its pods are endpoints, and the difference is a conflict
// until it is over.
func TestOwnExport(t *testing.T) {
	simulation.Run(t, newClusterSet, func(t *testing.T, s *stand) {
		headless := func(e *mcs.Export) { e.Type = mcsv1beta1.Headless }
		s.own(exported("west", "192.0.2.1", 2, headless))
		s.run()
		s.ownExport(1)
		time.Sleep(10 * time.Second)
		i := s.imported()
		if i == nil || i.Spec.Type != mcsv1beta1.ClusterSetIP || len(i.Status.Clusters) != 2 || i.Status.Clusters[0].Cluster != "east" {
			t.Fatalf("ServiceImport %+v: %s", i, s.Logged.String())
		}
		reason, message := s.conflict()
		if reason != "TypeConflict" || message != "east has precedence, because its ServiceExport is the oldest; 1 of 2 clusters differ from it" {
			t.Errorf("conflict %s: %s", reason, message)
		}
		var own *discoveryv1.EndpointSlice
		s.api.change(func() {
			for name, o := range s.api.objects {
				if strings.HasPrefix(name, "endpointslices/"+derived+"-east-") {
					own = o.(*discoveryv1.EndpointSlice)
				}
			}
		})
		if own == nil || own.Labels[mcsv1beta1.LabelSourceCluster] != "east" || own.Endpoints[0].Addresses[0] != "10.9.0.1" || *own.Endpoints[0].Conditions.Ready || *own.Endpoints[0].NodeName != "n1" || own.Endpoints[0].TargetRef.Name != "web-0" || *own.Ports[0].Port != 8080 {
			t.Errorf("slice of the own cluster: %+v", own)
		}
		must.Get(s.registry.Upsert(exported("west", "192.0.2.1", 2)))(t)
		s.api.take()
		time.Sleep(time.Second)
		if reason, _ := s.conflict(); reason != "NoConflicts" {
			t.Errorf("the conflict is over: %s", reason)
		}
		s.registry.Delete("west/fed/web")
		time.Sleep(time.Second)
		s.api.take()
		if i := s.imported(); len(i.Status.Clusters) != 1 {
			t.Errorf("status %+v", i.Status)
		}
		s.api.change(func() { s.api.remove("serviceexports/web") })
		s.wrote("the last ServiceExport is gone", "DELETE endpointslices/"+own.Name, "DELETE serviceimports/web", "DELETE services/"+derived)
		if s.service("web") == nil || s.slice("web-abc") == nil {
			t.Error("objects of the exported Service are gone as well")
		}
	})
}

// TestOwnExportNoPart has exports of the own cluster that are none: of no Service, and of one of the type
// ExternalName.
func TestOwnExportNoPart(t *testing.T) {
	simulation.Run(t, newClusterSet, func(t *testing.T, s *stand) {
		s.own()
		s.run()
		s.ownExport(1, func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeExternalName })
		time.Sleep(10 * time.Second)
		s.api.change(func() { s.api.remove("services/web") })
		time.Sleep(10 * time.Second)
		s.wrote("no Service")
		if s.imported() != nil {
			t.Error("there is a ServiceImport")
		}
	})
}

// Two clusters of one owner, of which one is not offered any more after a restart: while the owner is
// lost its slices stay, and so does the ServiceImport, until the retention ends.
func TestServiceImportKept(t *testing.T) {
	simulation.Run(t, newClusterSet, func(t *testing.T, s *stand) {
		s.own(exported("west", "192.0.2.1", 1), exported("south", "192.0.2.3", 2, func(e *mcs.Export) { e.TrafficDistribution = new("PreferClose") }))
		_, stop := s.run()
		time.Sleep(10 * time.Second)
		s.ownExport(3)
		time.Sleep(10 * time.Second)
		stop()
		s.stop()
		s.api.take()
		before, _ := s.conflict()
		m, _ := s.run()
		time.Sleep(retention / 2)
		s.api.change(func() {
			slice := s.api.objects["endpointslices/web-abc"].DeepCopyObject().(*discoveryv1.EndpointSlice)
			slice.Endpoints[0].Addresses[0] = "10.9.0.2"
			s.api.put("", "endpointslices/web-abc", slice)
		})
		time.Sleep(time.Second)
		if writes := s.api.take(); len(writes) != 1 || !strings.HasPrefix(writes[0], "PUT endpointslices/"+derived+"-east-") {
			t.Errorf("after a change of the own cluster: %v", writes)
		}
		if i := s.imported(); len(i.Status.Clusters) != 3 || m.Status().Imports.Services[status.ImportKept] != 2 {
			t.Errorf("ServiceImport %+v, status %+v", i.Status, m.Status().Imports)
		}
		if after, _ := s.conflict(); after != before || after != "TrafficDistributionConflict" {
			t.Errorf("conflict %q, and while the owner is lost %q", before, after)
		}
		time.Sleep(retention)
		s.wrote("the retention has ended", "DELETE endpointslices/"+derived+"-south-v4-http-8000", "DELETE endpointslices/"+derived+"-west-v4-http-8000", "PATCH serviceexports/web", "PATCH serviceimports/web")
		s.own(exported("west", "192.0.2.1", 1))
		time.Sleep(time.Minute)
		if i := s.imported(); len(i.Status.Clusters) != 2 {
			t.Errorf("status %+v", i.Status)
		}
	})
}

// Two owners offer one cluster. After a restart, slices of the one that is lost become those of the other when the
// retention ends, and stay that.
func TestOtherOwnerOfCluster(t *testing.T) {
	simulation.Run(t, newClusterSet, func(t *testing.T, s *stand) {
		const address = "other.example:8008"
		mcsConfig := s.config
		s.config = func(c *Config) {
			mcsConfig(c)
			other := c.Owners[0]
			other.Name, other.Addresses = "mesh-b", []string{address}
			c.Owners = append(c.Owners, other)
		}
		s.own(exported("west", "192.0.2.1", 1))
		_, stop := s.run()
		time.Sleep(10 * time.Second)
		stop()
		s.stop()
		s.api.take()
		s.Owner(address, exported("west", "192.0.2.2", 1))
		m, _ := s.run()
		time.Sleep(retention - time.Minute)
		name := derived + "-west-v4-http-8000"
		s.wrote("the other owner alone")
		time.Sleep(2 * time.Minute)
		s.wrote("beyond the retention of the first", "PUT endpointslices/"+name)
		if slice := s.slice(name); slice.Annotations[ownerKey] != "mesh-b" || slice.Endpoints[0].Addresses[0] != "192.0.2.2" || len(m.Status().Imports.Problems) > 0 {
			t.Errorf("slice %+v, status %+v", slice, m.Status().Imports)
		}
		s.own(exported("west", "192.0.2.1", 1))
		time.Sleep(2 * time.Minute)
		s.wrote("the first is back")
		if r := m.Status().Imports; r.Refused[status.ImportRival] != 1 || r.Problems[0].Owner != "mesh-a" {
			t.Errorf("status %+v", r)
		}
	})
}

// A ServiceImport of another controller is left alone, and so are objects of an importer of Services.
func TestForeignServiceImport(t *testing.T) {
	simulation.Run(t, newClusterSet, func(t *testing.T, s *stand) {
		s.api.change(func() {
			s.api.put("", "serviceimports/web", &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "fed", Name: "web", UID: "other"}})
			s.api.put("", "services/lone", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "fed", Name: "lone", UID: "lone", Labels: map[string]string{managedBy: manager}}})
		})
		s.own(exported("west", "192.0.2.1", 1))
		m, _ := s.run()
		time.Sleep(time.Minute)
		s.wrote("a foreign ServiceImport")
		if r := m.Status().Imports; len(r.Problems) != 1 || r.Problems[0].State != "name_taken" || r.Problems[0].Owner != "mesh-a" {
			t.Errorf("status %+v", r)
		}
		s.api.change(func() { s.api.remove("serviceimports/web") })
		time.Sleep(time.Minute)
		if s.imported() == nil || len(m.Status().Imports.Problems) > 0 {
			t.Errorf("it is gone: %v, status %+v", s.imported(), m.Status().Imports)
		}
	})
}

// A namespace that does not exist is no failure, and is tried again.
func TestServiceImportWithoutNamespace(t *testing.T) {
	simulation.Run(t, newClusterSet, func(t *testing.T, s *stand) {
		s.own(exported("west", "192.0.2.1", 1))
		s.api.answer = func(method, name string) int {
			if method == http.MethodPost && name == "serviceimports/web" {
				return http.StatusNotFound
			}
			return 0
		}
		m, _ := s.run()
		time.Sleep(time.Minute)
		s.wrote("no namespace")
		if r := m.Status().Imports; len(r.Problems) != 1 || r.Problems[0].State != "no_namespace" || r.Failure != "" {
			t.Errorf("status %+v", r)
		}
		s.api.mu.Lock()
		s.api.answer = nil
		s.api.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if s.imported() == nil || len(m.Status().Imports.Problems) > 0 {
			t.Errorf("there is a namespace: %v, status %+v", s.imported(), m.Status().Imports)
		}
	})
}

// TestAdmitPart has services that are no part of a ServiceImport.
func TestAdmitPart(t *testing.T) {
	target := Target{MCS: true, Cluster: "east"}
	bad := exported("west", "192.0.2.1", 1)
	bad.Labels[0].Value = `{"cluster":"west"}`
	elsewhere := exported("west", "192.0.2.1", 1, func(e *mcs.Export) { e.Namespace = "kube-system" })
	for _, tc := range []struct {
		name    string
		service *federation.Service
		want    string
	}{
		{"a part", exported("west", "192.0.2.1", 1), ""},
		{"no label", at("a.fed.example", "192.0.2.1"), "not imported"},
		{"this cluster", exported("east", "192.0.2.1", 1), "not imported"},
		{"another namespace", elsewhere, "names kube-system/web, with which the fqdn web.fed.west.fed.example. does not begin"},
		{"a label that is not valid", bad, `labels[multicluster.x-k8s.io/export]: namespace: "": a lowercase RFC 1123 label`},
	} {
		got := ""
		if _, invalid := target.admitPart(tc.service); invalid != nil {
			got = invalid.Error()
		}
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
